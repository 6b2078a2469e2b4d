"""Work of many requests in one thread, some requests at a time."""

import asyncio
from collections import deque

# Requests that go on in one turn of the event loop: each takes about a millisecond.
_TOGETHER = 8


class Turns:
    """Lets some of the requests that wait go on in each turn of the event loop.

    Hundreds of them may arrive or be answered at once; what comes meanwhile would wait for all.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return when it is the caller's turn: the first to wait goes on first."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._next)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        for _ in range(min(_TOGETHER, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
