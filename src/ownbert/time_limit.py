"""A limit of the wall clock for a step, at which its loops stop.

The limit is a context, so that it reaches loops far below without passing through every function.
It is looked at between parts of a computation (``check_time``), where stopping is safe.
"""

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("end", default=math.inf)


class OutOfTime(Exception):
    """A step has reached its time limit."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of a block; a limit that is set already holds too."""
    token = _end.set(min(_end.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """Seconds until the limit; infinite where there is none."""
    return _end.get() - time.monotonic()


def check_time() -> None:
    """Raise ``OutOfTime`` if the limit has passed."""
    if seconds_left() <= 0:
        raise OutOfTime
