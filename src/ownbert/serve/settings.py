"""The settings of a server."""

from dataclasses import dataclass

from ownbert import limits
from ownbert.errors import InputError
from ownbert.settings import between


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """How a server behaves.

    Args:
        batch_tokens: tokens that are computed together.
        queue_tokens: tokens that may wait; what comes beyond gets 429.
        request_tokens: tokens of one request; more gets 413.
        body_bytes: of one request.
        items: texts of one request.
        timeout: seconds until a request is given up.
        connections: at the same time.
        idle_seconds: after which a connection without a request is closed.
        key: what clients must send, if anything.
    """

    batch_tokens: int = 8192
    queue_tokens: int = 262_144
    request_tokens: int = 131_072
    body_bytes: int = 8_000_000
    items: int = 2048
    timeout: float = 30.0
    connections: int = 1000
    idle_seconds: float = 30.0
    key: str | None = None

    def __post_init__(self) -> None:
        for name, most in (
            ("batch_tokens", limits.BATCH_TOKENS),
            ("queue_tokens", limits.BATCH_TOKENS),
            ("request_tokens", limits.BATCH_TOKENS),
            ("body_bytes", 1 << 30),
            ("items", 1_000_000),
            ("timeout", 86_400),
            ("connections", 100_000),
            ("idle_seconds", 86_400),
        ):
            between(0, most, "(]")(name, getattr(self, name))
        if self.key is not None and not self.key.strip():
            raise InputError("the key is empty; give one of 16 characters or more, or none")
