"""Limits the time of evaluations to a fifth of a run's time.

The size of evaluations is derived from the tokens trained between two of them, not from the clock,
so that a run limited by steps is reproducible. A run limited by time may also skip evaluations.
"""

import contextlib
import time
from collections.abc import Iterator

_SHARE = 0.2
# Time of a forward pass relative to training on the same tokens.
_FORWARD = 1 / 3


def affordable_tokens(trained: float) -> float:
    """Maximum tokens of an evaluation, given the tokens trained between evaluations."""
    return trained * _SHARE / (1 - _SHARE) / _FORWARD


class EvaluationClock:
    """Total time of evaluations since the loop was at ``start`` seconds."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.total = self.last = self.longest = 0.0

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """A context whose duration is added."""
        begin = time.perf_counter()
        yield
        self.last = time.perf_counter() - begin
        self.total += self.last
        self.longest = max(self.longest, self.last)

    def has_time(self, seconds: float) -> bool:
        """Whether there is time for an evaluation now, besides the final one.

        Args:
            seconds: time of the loop so far. The first evaluation, of unknown duration, may always
                start.
        """
        return self.total + 2 * self.last <= _SHARE * (seconds - self.start)
