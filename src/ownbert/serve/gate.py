"""Checks before a request is parsed: limits, API key, access log."""

import asyncio
import contextlib
import hmac
import json
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from ownbert.serve.exchange import Refusal, bad_field, too_large
from ownbert.serve.service import Service, Usage

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

# Paths that need no key, and paths that work while the models are being loaded.
_OPEN = ("/livez", "/readyz", "/health", "/ping", "/")
_ALWAYS = ("/livez", "/readyz", "/health", "/ping", "/metrics")
# Up to this multiple of the maximum request size, the body of a rejected request is read and
# discarded.
_DISCARDED = 8
# Bodies up to this size, in bytes, are examined in the event loop's thread.
_EXAMINED = 100_000
# Turns of the event loop between two large bodies, as many as a small request takes.
_TURNS = 5
# Weights of JSON separators: parsing a key takes longer than a number.
_SEPARATOR_WEIGHTS = {b",": 1, b"[": 1, b"{": 1, b":": 4}
# Maximum length of a request id sent by the client.
_LONGEST_ID = 128
_JSON = re.compile(rb"\s*[\[{]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# In JSON, characters beyond 16 bits are escaped as surrogate pairs: matches a high surrogate
# without a low one, and vice versa.
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][\da-fA-F]{2})\\u[dD][c-fC-F]"
)


def error_response(refusal: Refusal, path: str) -> JSONResponse:
    """An error in the format of the path's API."""
    body: dict[str, Any] = {"error": refusal.message, "error_type": refusal.kind}
    if path.startswith("/v1/"):
        error = {"message": refusal.message, "type": refusal.kind}
        body = {"error": {**error, "param": refusal.param, "code": refusal.code}}
    headers = None if refusal.retry_after is None else {"retry-after": str(refusal.retry_after)}
    return JSONResponse(body, refusal.status, headers)


class Gate:
    """An ASGI application behind limits.

    The application is called with the complete body. ``log`` is the stream for the access log, one
    JSON object per line without texts, or None.
    """

    def __init__(self, app: Asgi, service: Service, log: Any = sys.stderr) -> None:
        self.app, self.service, self.log = app, service, log
        self.running = 0  # requests in progress
        self.bytes = 0  # bytes of their bodies
        # Parsing JSON cannot be interrupted: other requests get a turn between two large bodies.
        self._large = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        if scope["method"] == "HEAD":  # as GET; uvicorn leaves out the body
            scope = {**scope, "method": "GET"}
        began, status = time.monotonic(), 500
        given = request.headers.get("x-request-id", "")
        valid = 0 < len(given) <= _LONGEST_ID and given.isascii() and given.isprintable()
        request_id = given if valid else uuid.uuid4().hex
        usage = scope["ownbert"] = Usage()

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                header = {"x-request-id": request_id}
                if usage.tokens:
                    header["x-compute-tokens"] = str(usage.tokens)
                    header["x-queue-time"] = str(round(1000 * usage.waited))
                    header["x-inference-time"] = str(round(1000 * usage.computed))
                    header["x-total-time"] = str(round(1000 * (time.monotonic() - began)))
                pairs = [(key.encode(), value.encode()) for key, value in header.items()]
                message = {**message, "headers": [*message["headers"], *pairs]}
            await send(message)

        self.running += 1
        sizes: list[int] = []
        try:
            try:
                self._require(request)
                body = await self._body(request, receive, sizes)
            except Refusal as refusal:
                await self._discard(receive, refusal)
                await _send_error(refusal, scope, receive, sending)
                return
            large = len(body) > _EXAMINED
            async with self._large if large else contextlib.nullcontext():
                refusal = await self._examined(body)
                if scope["path"] not in _ALWAYS:
                    await self.service.turns.wait()
                for _ in range(_TURNS if large else 0):
                    await asyncio.sleep(0)
            if refusal:
                await _send_error(refusal, scope, receive, sending)
                return
            await self.app(scope, replaying(body, receive), sending)
        finally:
            self.running -= 1
            self.bytes -= sum(sizes)
            seconds = time.monotonic() - began
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests.labels(route, status).inc()
            self._write(request, request_id, status, seconds, usage)

    def _require(self, request: Request) -> None:
        """Check the head of a request."""
        path = request.scope["path"]  # request.url also depends on the Host header
        reads = request.method in ("GET", "HEAD")
        key = self.service.settings.key
        if key is not None and not (reads and path in _OPEN) and not _has_key(request, key):
            raise Refusal(401, "the key is missing or wrong: Authorization: Bearer KEY", "no_key")
        if not self.service.ready and path not in _ALWAYS:
            raise Refusal(503, "the models are being loaded", "not_ready", retry_after=1)
        if self.running > self.service.settings.connections and path not in _ALWAYS:
            message = f"{self.running - 1:,} requests are being processed; try again later"
            raise Refusal(429, message, "too_many_requests", retry_after=1)
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length[:18]) > self.service.settings.body_bytes:
            raise too_large(f"at most {self.service.settings.body_bytes:,} bytes in a request")

    async def _examined(self, body: bytes) -> Refusal | None:
        """The reason not to parse a body: it would block other requests, or has a lone
        surrogate."""
        most = self.service.settings.values
        if _JSON.match(body) is None:
            return None
        if sum(weight * body.count(sign) for sign, weight in _SEPARATOR_WEIGHTS.items()) > most:
            return too_large(f"at most {most:,} values in a request")
        if len(body) <= _EXAMINED:
            half = lone_surrogate(body)
        else:
            half = await asyncio.to_thread(lone_surrogate, body)
        return bad_field(f"a text has {half}, which is half of a surrogate pair") if half else None

    def _account_for(self, count: int, sizes: list[int]) -> None:
        """Account for bytes of a body that are held until the response."""
        most = self.service.settings.bodies_bytes
        if self.bytes + count > most and self.bytes > sum(sizes):
            message = f"bodies of {self.bytes:,} bytes are being read; try again later"
            raise Refusal(429, message, "too_many_bytes", retry_after=1)
        self.bytes += count
        sizes.append(count)

    async def _body(self, request: Request, receive: Receive, sizes: list[int]) -> bytes:
        """Read the whole body within limits of size and time; ``sizes`` collects chunk sizes."""
        most, parts, size = self.service.settings.body_bytes, [], 0

        async def read() -> None:
            nonlocal size
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(499, "the client has disconnected", "client_left")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > most:
                    raise too_large(f"at most {most:,} bytes in a request")
                self._account_for(len(parts[-1]), sizes)
                if not message.get("more_body"):
                    return

        try:
            await asyncio.wait_for(read(), self.service.settings.idle_seconds)
        except (TimeoutError, asyncio.TimeoutError):
            raise Refusal(408, "the body did not arrive in time", "slow_body") from None
        return b"".join(parts)

    async def _discard(self, receive: Receive, refusal: Refusal) -> None:
        """Read the rest of a body, within limits: a client that is still sending when the
        connection is closed never sees the response."""
        if refusal.status in (408, 499):
            return
        most, size = _DISCARDED * self.service.settings.body_bytes, 0
        deadline = time.monotonic() + self.service.settings.idle_seconds
        while size < most and time.monotonic() < deadline:
            try:
                message = await asyncio.wait_for(receive(), deadline - time.monotonic())
            except (TimeoutError, asyncio.TimeoutError):
                return
            size += len(message.get("body", b""))
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                return

    def _write(
        self, request: Request, request_id: str, status: int, seconds: float, usage: Usage
    ) -> None:
        if self.log is None:
            return
        row = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "id": request_id,
            "client": request.client.host if request.client else None,
            "method": request.method,
            "path": request.scope["path"][:200],
            "status": status,
            "milliseconds": round(1000 * seconds, 2),
            "tokens": usage.tokens,
        }
        print(json.dumps(row), file=self.log, flush=True)


def lone_surrogate(body: bytes) -> str | None:
    """A lone surrogate escape in JSON, which tokenizers reject; None if there is none."""
    if _SURROGATE.search(body) is None or _LONE_SURROGATE.search(body) is None:
        return None
    try:
        # Excludes an escaped backslash before the u.
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return ascii(error.object[error.start])
    except (ValueError, RecursionError):
        return None  # Not JSON; the parser will report it.
    return None


def _has_key(request: Request, key: str) -> bool:
    """Whether the request has the key, compared in constant time."""
    given = request.headers.get("authorization", "")
    given = re.sub("^bearer +", "", given, flags=re.I) or request.headers.get("x-api-key", "")
    return hmac.compare_digest(given.encode(), key.encode())


def replaying(body: bytes, receive: Receive) -> Receive:
    """``receive`` for an application whose body has already been read."""
    rest = [body]

    async def again() -> MutableMapping[str, Any]:
        if rest:
            return {"type": "http.request", "body": rest.pop(), "more_body": False}
        return await receive()

    return again


async def _send_error(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    response = error_response(refusal, scope["path"])
    if refusal.status in (408, 413):  # the rest of the body is not read
        response.headers["connection"] = "close"
    await response(scope, receive, send)
