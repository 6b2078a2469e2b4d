"""The clock that work is planned by: recordings of it, time limits for steps, and cancellation of
work whose result is no longer needed.

How many steps, texts and candidates a run has time for, its learning rate at each step and its
number of threads depend on the clock, and so on what else the machine computes. A recording keeps
every value of the clock in the order of its use. A replay gets the same values, whatever the time,
and so makes the same decisions: the result is equal to the bit on one machine.

Recordings, limits and cancellation are context variables, so that they reach inner loops without
extra arguments. Limits are checked between parts of a computation (``check_time``,
``check_wanted``), where stopping is safe.
"""

import contextlib
import math
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from ownbert.exceptions import InputError
from ownbert.language.messages import Message

# What a value is; a replay that asks for another kind of value has diverged.
_NOW, _CPU, _COUNT = range(3)


class DivergedError(InputError):
    """A replay has made other decisions than the recorded run; its result would differ."""


class Recording:
    """Values of the clock, in the order of their use.

    Args:
        kinds: kind of each value, for a replay; None: record a new run.
        values: the values.
    """

    def __init__(self, kinds: bytes | None = None, values: array | None = None) -> None:
        self.replays = kinds is not None
        self.kinds, self.values = bytearray(kinds or b""), array("d") if values is None else values
        self._place = 0
        self._thread: int | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Record, or replay, the values that this thread uses in the block."""
        self._thread = threading.get_ident()
        token = _recording.set(self)
        try:
            yield
        finally:
            _recording.reset(token)

    @property
    def rest(self) -> int:
        """Number of values that a replay has not used."""
        return len(self.kinds) - self._place if self.replays else 0

    def value(self, kind: int, measure: Callable[[], float]) -> float:
        """The next value, measured or replayed.

        Raises:
            DivergedError: the recorded run has used another kind of value here.
        """
        if self._thread != threading.get_ident():
            return measure()
        if not self.replays:
            value = measure()
            self.kinds.append(kind)
            self.values.append(value)
            return value
        if not self.rest or self.kinds[self._place] != kind:
            raise DivergedError(
                Message(
                    "the replay differs from the recorded run after {place:,} of {count:,} "
                    "readings of the clock: files, versions, or the processor are not the same",
                    self._place,
                    len(self.kinds),
                )
            )
        self._place += 1
        return self.values[self._place - 1]


_recording: ContextVar[Recording | None] = ContextVar("recording", default=None)


def clock_seconds() -> float:
    """Seconds of a clock that never goes back (``time.monotonic``), as recorded in a replay."""
    return _value(_NOW, time.monotonic)


def started_at(time_of_start: float) -> float:
    """A time taken earlier by ``time.monotonic``, as recorded in a replay."""
    return _value(_NOW, lambda: time_of_start)


def processor_seconds() -> float:
    """CPU time of this process in seconds (``time.process_time``), as recorded in a replay."""
    return _value(_CPU, time.process_time)


def counted_now(count: Callable[[], int]) -> int:
    """A number that depends on the load of the machine, as recorded in a replay."""
    return int(_value(_COUNT, count))


def _value(kind: int, measure: Callable[[], float]) -> float:
    recording = _recording.get()
    return measure() if recording is None else recording.value(kind, measure)


_end: ContextVar[float] = ContextVar("end", default=math.inf)


_given_up: ContextVar[threading.Event | None] = ContextVar("given_up", default=None)


class OutOfTime(Exception):
    """A step has exceeded its time limit."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Limit the time of a block; enclosing limits still apply."""
    end = _end.get() if seconds == math.inf else min(_end.get(), clock_seconds() + seconds)
    token = _end.set(end)
    try:
        yield
    finally:
        _end.reset(token)


def seconds_left() -> float:
    """Seconds until the limit; infinite without one."""
    end = _end.get()
    return end if end == math.inf else end - clock_seconds()


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
