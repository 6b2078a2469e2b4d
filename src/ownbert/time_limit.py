"""A limit of the wall clock for a step, at which its loops stop, and work that nobody waits for.

Both are contexts, so that they reach loops far below without passing through every function. They
are looked at between parts of a computation (``check_time``, ``check_wanted``), where stopping is
safe.
"""

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("end", default=math.inf)


_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)


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


class Abandoned(Exception):
    """Nobody waits for the result any longer."""


@contextlib.contextmanager
def wanted_until(given_up: threading.Event) -> Iterator[None]:
    """Stop the work of a block once an event of another thread is set."""
    token = _given_up.set(given_up)
    try:
        yield
    finally:
        _given_up.reset(token)


def check_wanted() -> None:
    """Raise ``Abandoned`` if nobody waits for the result."""
    event = _given_up.get()
    if event is not None and event.is_set():
        raise Abandoned
