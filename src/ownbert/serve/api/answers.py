"""JSON responses, including large ones, which must not block other clients."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi.responses import Response
from pydantic_core import to_json

# Responses with more numbers are serialised in a thread.
_IN_THREAD = 20_000


async def json_answer(body: Any, numbers: int = 0) -> Response:
    """A response with status 200.

    Args:
        body: lists and dictionaries, with arrays for many numbers.
        numbers: approximate number of values in the body.
    """
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
        yield from _joined(b"[", [(b"", each) for each in body], b"]")
    else:
        plain = body.tolist() if isinstance(body, np.ndarray) else body
        yield to_json(plain, inf_nan_mode="null")


def _joined(start: bytes, entries: list[tuple[bytes, Any]], end: bytes) -> Iterator[bytes]:
    yield start
    for number, (key, value) in enumerate(entries):
        yield b"," + key if number else key
        yield from _pieces(value)
    yield end
