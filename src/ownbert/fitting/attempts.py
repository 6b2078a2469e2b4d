"""Steps whose failure must not end a run."""

import sys
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from ownbert.tasks.rows import shortened
from ownbert.time_limit import OutOfTime, time_limit

T = TypeVar("T")
# Characters of a reason.
_LONGEST = 300


class Attempts:
    """Runs steps; one that fails, or that does not end in time, is named in a line and left out.

    Args:
        say: called with the line.
        debug: whether the traceback of a failure is shown.

    Attributes:
        left_out: why a step was left out, by its name.
    """

    def __init__(self, say: Callable[[str], Any], *, debug: bool = False) -> None:
        self._say, self._debug = say, debug
        self.left_out: dict[str, str] = {}

    def __call__(
        self, what: str, make: Callable[[], T], *, seconds: float = float("inf")
    ) -> T | None:
        """What ``make`` returns; None if it fails or takes more seconds."""
        try:
            with time_limit(seconds):
                return make()
        except OutOfTime:
            reason = "it takes too long"
        except Exception as error:  # of any kind: whatever it is, the rest of the run is worth more
            reason = shortened(" ".join(str(error).split()) or type(error).__name__, _LONGEST)
            if self._debug:
                traceback.print_exc(file=sys.stderr)
        self.left_out[what] = reason
        self._say(f"{what}: left out, {reason}")
        return None
