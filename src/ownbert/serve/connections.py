"""Limits of connections: idle time, clients that do not read, and their number."""

import asyncio
import time
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds between checks of all connections.
_SWEEP_SECONDS = 1.0
# Maximum bytes of responses that clients have not read yet.
_MOST_UNREAD = 1 << 28


class Connection(H11Protocol):
    """A connection that records how long it has been waiting for a request or for its client.

    Attributes:
        idle_since: time of its creation or of its last complete response.
        unread: bytes of its responses in the send buffer.
        unread_since: time of the last change of ``unread``.
        bounds: limits of all connections of the server.
    """

    bounds: "Bounds"

    def connection_made(self, transport: Any) -> None:
        self.idle_since = self.unread_since = time.monotonic()
        self.unread = 0
        super().connection_made(transport)
        self.bounds.accepted()

    def on_response_complete(self) -> None:
        self.idle_since = time.monotonic()
        super().on_response_complete()

    @property
    def idle(self) -> bool:
        """Whether no response is in progress."""
        return self.cycle is None or self.cycle.response_complete


class Bounds:
    """Closes connections of a server, because uvicorn has no such limits.

    It closes connections that have not sent a complete request head for some time, the oldest of
    them if there are too many, and those whose clients do not read a response.

    Args:
        seconds: maximum time to be idle, or to leave a response unread.
        most: maximum number of idle connections.

    Attributes:
        protocol: class of the connections.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.protocol = type("BoundedConnection", (Connection,), {"bounds": self})
        self.connections: set[Connection] = set()
        self._new = 0

    def accepted(self) -> None:
        """Register a new connection; with many at once, do not wait for the next sweep."""
        self._new += 1
        if self._new > self.most:
            self._close_surplus()

    async def sweep(self, connections: set[Any]) -> None:
        """Check all connections periodically.

        Args:
            connections: connections of the server, modified concurrently.
        """
        self.connections = connections
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._close_unread()
            now = time.monotonic()
            for each in list(connections):
                if each.idle and now - each.idle_since > self.seconds:
                    each.transport.close()
            self._close_surplus()

    def _close_surplus(self) -> None:
        self._new = 0
        idle = [each for each in self.connections if each.idle and not each.transport.is_closing()]
        idle.sort(key=lambda each: each.idle_since)
        for each in idle[: max(0, len(idle) - self.most)]:
            each.transport.close()

    def _close_unread(self) -> None:
        """Abort connections with unread responses: closing alone would wait for the client."""
        now, waiting = time.monotonic(), []
        for each in list(self.connections):
            unread = each.transport.get_write_buffer_size()
            if unread != each.unread:
                each.unread, each.unread_since = unread, now
            if unread and now - each.unread_since > self.seconds:
                each.transport.abort()
            elif unread:
                waiting.append(each)
        total = sum(each.unread for each in waiting)
        for each in sorted(waiting, key=lambda each: each.idle_since):
            if total <= _MOST_UNREAD:
                return
            each.transport.abort()
            total -= each.unread
