"""Answers as JSON, also those with millions of numbers, which must not hold up other clients."""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
from fastapi.responses import Response
from pydantic_core import to_json

# An answer with more numbers is written in a thread.
_IN_THREAD = 20_000


async def json_answer(body: Any, numbers: int = 0) -> Response:
    """An answer with status 200.

    Args:
        body: lists and dictionaries, with arrays where there are many numbers.
        numbers: in it, about.
    """
    work = asyncio.to_thread(_written, body) if numbers > _IN_THREAD else None
    content = _written(body) if work is None else await work
    return Response(content, media_type="application/json")


def _written(body: Any) -> bytes:
    return b"".join(_pieces(body))


def _pieces(body: Any) -> Iterator[bytes]:
    """JSON row by row of its numbers: Python lets other threads run between two calls, not in one,
    and no list of all numbers exists."""
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
