"""What a server refuses, with the status that says why."""

from dataclasses import dataclass


@dataclass
class Refusal(Exception):
    """A request that gets no answer.

    Args:
        status: of HTTP.
        message: one line for whoever sent it.
        code: the same for programs.
        param: the field that is wrong, if it is one.
        retry_after: seconds after which it may be sent again.
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
    """A field of the request has a value that is not possible."""
    return Refusal(422, message, "invalid_value", param)


def too_large(message: str, param: str | None = None) -> Refusal:
    """A request is beyond a limit of the server."""
    return Refusal(413, message, "too_large", param)
