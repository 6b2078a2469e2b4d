"""Fair scheduling of many requests in one thread."""

import asyncio
from collections import deque

# Requests resumed in one turn of the event loop: each takes about a millisecond.
_TOGETHER = 8


class Turns:
    """Resumes a few of the waiting requests in each turn of the event loop.

    If hundreds were resumed at once, requests that arrive meanwhile would wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the caller's turn, first come, first served."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._release_next)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _release_next(self) -> None:
        for _ in range(min(_TOGETHER, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._release_next)
