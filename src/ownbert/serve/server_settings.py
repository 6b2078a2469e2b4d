"""The settings of a server, with their defaults."""

from dataclasses import dataclass

from ownbert import limits
from ownbert.checks import between
from ownbert.exceptions import InputError
from ownbert.settings import CheckedSettings, setting

LIMITS = "Limits"
# One day.
_SECONDS = 86_400


def _tokens(default: int, help: str) -> int:
    return setting(default, help, LIMITS, check=between(1, limits.BATCH_TOKENS, "[]"))


def _seconds(default: float, help: str, least: float) -> float:
    return setting(default, help, LIMITS, check=between(least, _SECONDS, "[]"))


@dataclass(frozen=True, kw_only=True)
class ServeSettings(CheckedSettings):
    """Settings of a server."""

    batch_tokens: int = _tokens(8192, "Maximum number of tokens per batch.")
    queue_tokens: int = _tokens(
        65_536, "Maximum number of queued tokens; further requests get status 429."
    )
    request_tokens: int = _tokens(
        131_072, "Maximum number of tokens per request; larger ones get status 413."
    )
    timeout: float = _seconds(30.0, "Request timeout, in seconds.", 0.001)
    # Maximum number of idle connections; beyond it the oldest ones are closed.
    connections: int = setting(
        1000,
        "Maximum number of concurrent requests; further ones get status 429.",
        LIMITS,
        check=between(1, 100_000, "[]"),
    )
    idle_seconds: float = _seconds(30.0, "Seconds before an idle connection is closed.", 0.1)
    # Maximum of one request.
    body_bytes: int = setting(8_000_000, check=between(1, 1 << 30, "[]"))
    # Maximum total of all requests in progress.
    bodies_bytes: int = setting(64_000_000, check=between(1, 1 << 40, "[]"))
    # Maximum characters of all texts in a request.
    characters: int = setting(1_000_000, check=between(1, 1 << 30, "[]"))
    items: int = setting(2048, check=between(1, 1_000_000, "[]"))
    # Maximum of one response: token vectors and attention weights may be much larger than the
    # input.
    answer_numbers: int = setting(1 << 22, check=between(1, 1 << 32, "[]"))
    # API key that clients must send.
    key: str | None = None

    @property
    def values(self) -> int:
        """Maximum number of JSON values in a body, because parsing blocks all other requests."""
        return self.request_tokens + 131_072

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key is not None and not self.key.strip():
            raise InputError("the key is empty; give one of 16 characters or more, or none")
        if self.key is not None and (len(self.key.split()) != 1 or not self.key.isascii()):
            raise InputError("the key must be one word of ASCII characters, as a header has them")
