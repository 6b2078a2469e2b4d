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
    """A connection that records since when it waits for a request (its creation, or its last
    complete response), and for its client (bytes in the send buffer, and their last change)."""

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
        """Check all connections of the server, which are modified concurrently, periodically."""
        self.connections = connections
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self._close_unread()
            now = time.monotonic()
            for connection in list(connections):
                if connection.idle and now - connection.idle_since > self.seconds:
                    connection.transport.close()
            self._close_surplus()

    def _close_surplus(self) -> None:
        self._new = 0
        idle = [
            connection
            for connection in self.connections
            if connection.idle and not connection.transport.is_closing()
        ]
        idle.sort(key=lambda connection: connection.idle_since)
        for connection in idle[: max(0, len(idle) - self.most)]:
            connection.transport.close()

    def _close_unread(self) -> None:
        """Abort connections with unread responses: closing alone would wait for the client."""
        now, waiting = time.monotonic(), []
        for connection in list(self.connections):
            unread = connection.transport.get_write_buffer_size()
            if unread != connection.unread:
                connection.unread, connection.unread_since = unread, now
            if unread and now - connection.unread_since > self.seconds:
                connection.transport.abort()
            elif unread:
                waiting.append(connection)
        total = sum(connection.unread for connection in waiting)
        for connection in sorted(waiting, key=lambda connection: connection.idle_since):
            if total <= _MOST_UNREAD:
                return
            connection.transport.abort()
            total -= connection.unread
