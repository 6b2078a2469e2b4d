"""Errors returned to clients, with HTTP status."""

from dataclasses import dataclass

from ownbert.exceptions import with_arguments


@dataclass
class Refusal(Exception):
    """A request that is rejected.

    Args:
        status: HTTP status.
        message: one line for the sender.
        code: machine-readable reason.
        param: invalid field, if any.
        retry_after: seconds after which the request may be repeated.
    """

    status: int
    message: str
    code: str
    param: str | None = None
    retry_after: int | None = None

    @property
    def kind(self) -> str:
        """``error_type`` of text-embeddings-inference, and ``type`` of OpenAI's errors."""
        kinds = {401: "authentication_error", 413: "too_large", 429: "overloaded"}
        if self.status in kinds:
            return kinds[self.status]
        return "invalid_request_error" if self.status < 500 else "server_error"


def bad_field(message: str, param: str | None = None) -> Refusal:
    """The error for an invalid field of a request; options in its message become fields."""
    return Refusal(422, with_arguments(message), "invalid_value", param)


def too_large(message: str) -> Refusal:
    """The error for a request that exceeds a limit of the server."""
    return Refusal(413, message, "too_large")
