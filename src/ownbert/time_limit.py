"""Time limits for steps, and cancellation of work whose result is no longer needed.

Both are context variables, so that they reach inner loops without extra arguments. They are checked
between parts of a computation (``check_time``, ``check_wanted``), where stopping is safe.
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
    """A step has exceeded its time limit."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of a block; enclosing limits still apply."""
    token = _end.set(min(_end.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """Seconds until the limit; infinite without one."""
    return _end.get() - time.monotonic()


def check_time() -> None:
    """Raise ``OutOfTime`` if the limit has passed."""
    if seconds_left() <= 0:
        raise OutOfTime


class Abandoned(Exception):
    """The result is no longer needed."""


@contextlib.contextmanager
def wanted_until(given_up: threading.Event) -> Iterator[None]:
    """Cancel the work of a block once another thread sets an event."""
    token = _given_up.set(given_up)
    try:
        yield
    finally:
        _given_up.reset(token)


def check_wanted() -> None:
    """Raise ``Abandoned`` if the result is no longer needed."""
    event = _given_up.get()
    if event is not None and event.is_set():
        raise Abandoned
