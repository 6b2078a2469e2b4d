"""The time of ``fit``, by the wall clock."""

import time

# Seconds that the report needs, and their share of short runs.
_REPORT, _REPORT_SHARE = 15.0, 0.15
# Shares of all time for linear models: all of them, and one.
_LINEAR, _LINEAR_EACH = 0.3, 0.1
# The rest of a report is left out when so much more than all time has passed.
_GRACE = 0.04


class Budget:
    """How much time there is, and for what.

    Linear models have a share at most, so that there is always time for a network.

    Args:
        minutes: of all runs in the folder together.
        started: ``time.monotonic()`` at the start of this one.

    Attributes:
        used: seconds of earlier runs.
        reported: seconds that the report needs for the networks so far.
    """

    def __init__(self, minutes: float, started: float) -> None:
        self.total, self.started = 60 * minutes, started
        self.used = self.reported = 0.0

    @property
    def spent(self) -> float:
        """Seconds of all runs."""
        return self.used + time.monotonic() - self.started

    @property
    def left(self) -> float:
        """Seconds until the report has to be written."""
        rest = min(_REPORT, _REPORT_SHARE * self.total)
        return self.total - rest - self.reported - self.spent

    @property
    def left_for_report(self) -> float:
        """Seconds until the end of the run."""
        return (1 + _GRACE) * self.total - self.spent

    @property
    def linear(self) -> float:
        """Seconds that the next linear model may take; all of them together have a share."""
        return max(0.0, min(_LINEAR_EACH * self.total, _LINEAR * self.total - self.spent))

    def share(self, of_all: float) -> float:
        """Seconds for a step that may take a share of all time, but not more than is left."""
        return max(0.0, min(of_all * self.total, self.left))
