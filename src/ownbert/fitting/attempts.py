"""Runs steps whose failure must not end the whole run."""

import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ownbert.tasks.rows import shortened
from ownbert.time_limit import DivergedError, OutOfTime, time_limit

T = TypeVar("T")
# Maximum characters of the reason shown for a failure.
_LONGEST = 300


class Attempts:
    """Runs steps; a step that fails or times out is reported in one line and skipped.

    Attributes:
        left_out: reasons for skipped steps, keyed by the step's name.
    """

    def __init__(self, say: Callable[[str], Any], *, debug: bool = False) -> None:
        self._say, self._debug = say, debug
        self.left_out: dict[str, str] = {}

    def __call__(
        self, what: str, make: Callable[[], T], *, seconds: float = float("inf")
    ) -> T | None:
        """Return the result of ``make``, or None if it fails or exceeds the time limit."""
        try:
            with time_limit(seconds):
                return make()
        except DivergedError:
            raise
        except OutOfTime:
            reason = "not enough time"
        except Exception as error:  # whatever the error, the other candidates stay usable
            reason = shortened(" ".join(str(error).split()) or type(error).__name__, _LONGEST)
            if self._debug:
                traceback.print_exc(file=sys.stderr)
        self.skip(what, reason)
        return None

    def skip(self, what: str, reason: str) -> None:
        """Report that a step is skipped."""
        self.left_out[what] = reason
        self._say(f"{what}: skipped, {reason}")
