"""The time budget of ``fit``, in wall-clock seconds."""

import math
import time

from ownbert.time_limit import clock_seconds, processor_seconds

# Seconds reserved for the report, and the maximum share of short runs.
_REPORT, _REPORT_SHARE = 15.0, 0.15
# Shares of the total time: all linear models together, and a single one.
_LINEAR, _LINEAR_EACH = 0.3, 0.1
# Optional parts of the report are skipped once the run exceeds its time by this share.
_GRACE = 0.04
# Seconds after which the speed is known.
_MEASURABLE = 1.0


class Budget:
    """Divides the available time between steps.

    Linear models get a limited share, so that there is always time for a network.

    Args:
        minutes: time limit of all runs in the folder together.
        started: ``clock_seconds()`` at the start of this run.

    Attributes:
        used: seconds spent by earlier runs.
        reported: seconds that the report needs for the networks so far.
    """

    def __init__(self, minutes: float, started: float) -> None:
        self.total, self.started = 60 * minutes, started
        self.used = self.reported = 0.0
        self._displayed_from = time.monotonic()
        self._began = clock_seconds(), processor_seconds()

    @property
    def spent(self) -> float:
        """Seconds spent by all runs."""
        return self.used + clock_seconds() - self.started

    @property
    def speed(self) -> float:
        """The share of a core that this process has had so far, at most 1: on a busy machine it is
        smaller."""
        passed, computed = clock_seconds() - self._began[0], processor_seconds() - self._began[1]
        return 1.0 if passed < _MEASURABLE else min(1.0, computed / passed)

    @property
    def left(self) -> float:
        """Seconds until the report has to be started."""
        rest = min(_REPORT, _REPORT_SHARE * self.total)
        return self.total - rest - self.reported - self.spent

    def left_on_clock(self) -> float:
        """Seconds until the time is up, for display: a replay takes its own time."""
        return self.total - self.used - (time.monotonic() - self._displayed_from)

    def minutes_for(self, seconds: float) -> float:
        """The time limit with which ``left`` would be ``seconds`` now, in minutes, rounded up."""
        needed = self.spent + self.reported + seconds
        return math.ceil(min(needed + _REPORT, needed / (1 - _REPORT_SHARE)) / 6) / 10

    @property
    def left_for_report(self) -> float:
        """Seconds until the end of the run."""
        return (1 + _GRACE) * self.total - self.spent

    @property
    def linear(self) -> float:
        """Maximum seconds for the next linear model, within the share of all linear models."""
        return max(0.0, min(_LINEAR_EACH * self.total, _LINEAR * self.total - self.spent))

    def share(self, of_all: float) -> float:
        """Seconds for a step with a share of the total time, capped by the remaining time."""
        return max(0.0, min(of_all * self.total, self.left))
