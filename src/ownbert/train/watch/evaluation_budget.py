"""How much of a run's time evaluation takes: at most a fifth.

What is evaluated is bounded by what is trained between two evaluations, in tokens and not by the
clock, so that a run limited by steps can be repeated exactly. A run limited by the clock may also
leave evaluations out.
"""

import contextlib
import time
from collections.abc import Iterator

_SHARE = 0.2
# The time of a forward pass, relative to that of training on the same tokens.
_FORWARD = 1 / 3


def affordable_tokens(trained: float) -> float:
    """How many tokens an evaluation may have, for ``trained`` tokens between two evaluations."""
    return trained * _SHARE / (1 - _SHARE) / _FORWARD


class EvaluationClock:
    """How long the evaluations of a run have taken since its loop was at ``start``, in seconds."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.total = self.last = self.longest = 0.0

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Add the time that is spent within the context."""
        begin = time.perf_counter()
        yield
        self.last = time.perf_counter() - begin
        self.total += self.last
        self.longest = max(self.longest, self.last)

    def has_time(self, seconds: float) -> bool:
        """Whether there is time for an evaluation now and one at the end, which always takes place.

        seconds: of the loop so far. The first evaluation, whose length is not known, may begin.
        """
        return self.total + 2 * self.last <= _SHARE * (seconds - self.start)
