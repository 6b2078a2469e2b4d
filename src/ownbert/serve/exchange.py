"""What all APIs share: bounded lists in requests, JSON responses (large ones must not block other
clients), and errors with their HTTP status.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi.responses import Response
from pydantic import FailFast
from pydantic_core import to_json

from ownbert.language.catalogue import ENGLISH
from ownbert.language.messages import Message

# Responses with more numbers are serialised in a thread.
_IN_THREAD = 20_000
T = TypeVar("T")


async def json_answer(body: Any, numbers: int = 0) -> Response:
    """A response with status 200, of lists and dictionaries, with arrays for many ``numbers``."""
    work = asyncio.to_thread(_written, body) if numbers > _IN_THREAD else None
    content = _written(body) if work is None else await work
    return Response(content, media_type="application/json")


def _written(body: Any) -> bytes:
    return b"".join(_pieces(body))


def _pieces(body: Any) -> Iterator[bytes]:
    """Serialise numbers row by row: other threads can run between calls, and there is never a list
    of all numbers."""
    if isinstance(body, dict):
        entries = [(to_json(key) + b":", value) for key, value in body.items()]
        yield from _joined(b"{", entries, b"}")
    elif isinstance(body, np.ndarray) and body.ndim > 1:
        yield from _joined(b"[", [(b"", row) for row in body], b"]")
    elif isinstance(body, list) and body and isinstance(body[0], dict | list | np.ndarray):
        yield from _joined(b"[", [(b"", entry) for entry in body], b"]")
    else:
        plain = body.tolist() if isinstance(body, np.ndarray) else body
        yield to_json(plain, inf_nan_mode="null")


def _joined(start: bytes, entries: list[tuple[bytes, Any]], end: bytes) -> Iterator[bytes]:
    yield start
    for number, (key, value) in enumerate(entries):
        yield b"," + key if number else key
        yield from _pieces(value)
    yield end


class _FailFast(FailFast):
    """pydantic's FailFast, hashable for lists in a union."""

    def __hash__(self) -> int:
        return hash(self.fail_fast)


# A list whose validation stops at the first error: describing a hundred thousand takes seconds.
Several = Annotated[list[T], _FailFast()]


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
        usual = "invalid_request_error" if self.status < 500 else "server_error"
        return kinds.get(self.status, usual)


def for_programs(message: str) -> str:
    """A message in English, whose options are fields of requests."""
    if isinstance(message, Message):
        return message.shown(ENGLISH, on_command_line=False)
    return message


def bad_field(message: str, param: str | None = None) -> Refusal:
    """The error for an invalid field of a request."""
    return Refusal(422, for_programs(message), "invalid_value", param)


def too_large(message: str) -> Refusal:
    """The error for a request that exceeds a limit of the server."""
    return Refusal(413, message, "too_large")


def texts_of(inputs: Any, param: str = "inputs") -> list[str]:
    """One or several texts as a list; a ``Refusal`` for other inputs."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise bad_field(f"{param} must be a text or a list of texts", param)
    return texts
