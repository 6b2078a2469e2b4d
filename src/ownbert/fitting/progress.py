"""The course of a run of ``fit``: its time budget, steps that may fail, and what the user sees."""

import contextlib
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ownbert.fitting.comparison import Comparison
from ownbert.fitting.report.conclusions import headline, metric_name, other_metrics
from ownbert.fitting.report.contents import Report
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.tasks.rows import shortened
from ownbert.terminal import as_plain_text, console, notebook_output
from ownbert.time_limit import (
    DivergedError,
    OutOfTime,
    clock_seconds,
    processor_seconds,
    time_limit,
)

T = TypeVar("T")
# Maximum characters of the reason shown for a failure.
_LONGEST = 300


class Attempts:
    """Runs steps; a step that fails or times out is reported in one line and skipped. ``left_out``:
    the reasons for skipped steps by name."""

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
        self._say(Message("{what}: skipped, {reason}", what, reason))


# Seconds reserved for the report, and the maximum share of short runs.
_REPORT, _REPORT_SHARE = 15.0, 0.15
# Shares of the total time: all linear models together, and a single one.
_LINEAR, _LINEAR_EACH = 0.3, 0.1
# Optional parts of the report are skipped once the run exceeds its time by this share.
_GRACE = 0.04
# Seconds after which the speed is known.
_MEASURABLE = 1.0


class Budget:
    """Divides the available time between steps. Linear models get a limited share, so that there is
    always time for a network.

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


class Progress:
    """A live table on a terminal, one line per step otherwise, nothing if ``quiet``; in a notebook
    one output that is updated in place."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.console = console(soft_wrap=True)
        self.cell = None if quiet else notebook_output()
        self.live: Live | None = None
        self.lines = 0  # number of printed lines
        self.doing = ""
        self.left: Callable[[], float] = lambda: 0.0
        self.table: Table | None = None

    @contextlib.contextmanager
    def showing(self, left: Callable[[], float]) -> Iterator[None]:
        """Show the table inside the context; ``left`` returns the seconds until the time is up."""
        self.left = left
        if self.quiet or not self.console.is_terminal:
            yield
            return
        with Live(
            get_renderable=self._render, console=self.console, refresh_per_second=2
        ) as self.live:
            yield
            self.doing = ""  # show only the table at the end
        self.live = None

    def _render(self) -> Table | Text:
        if not self.doing:
            return self.table or Text()
        left = max(0.0, self.left()) / 60
        line = Text(translated("{doing}; {left:.1f} minutes left", self.doing, left))
        if self.table is None:
            return line
        grid = Table.grid()
        grid.add_row(self.table)
        grid.add_row(line)
        return grid

    def say(self, text: str, /, *values: Any) -> None:
        """Print a permanent line, a text or a template with its values."""
        self.lines += 1
        if self.cell is not None:
            self.cell.say(translated(text, *values))
        elif not self.quiet:
            self.console.print(Text(translated(text, *values)))

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show the title of the current step."""
        self.doing = title
        start, lines = time.monotonic(), self.lines
        if self.cell is not None:
            self.cell.status(
                translated("{title}; {left:.1f} minutes left", title, max(0.0, self.left()) / 60)
            )
        yield
        if self.live is None and self.lines == lines:  # otherwise a message was printed
            self.say("{title!t}: {seconds:.0f} s", title, time.monotonic() - start)

    def show(self, compared: Comparison) -> None:
        """Show the table of candidates."""
        table = Table(box=None, pad_edge=False)
        table.add_column(translated("model"))
        positive = getattr(compared.rows.task, "positive_label", None)
        table.add_column(translated(metric_name(compared.metric, positive)), justify="right")
        table.add_column(translated("seconds"), justify="right")
        lines = [
            (candidate.title, compared.adjusted(candidate), f"{candidate.seconds:.0f}")
            for candidate in compared.candidates
        ]
        if len(compared.measured) > 1:
            lines.append(("blend of all", compared.blended, ""))
        # Networks of the first fold only have fewer rows than the other models.
        counted = len({len(scores) for _, scores, _ in lines}) > 1
        if counted:
            table.add_column(translated("held-out rows"), justify="right")
        for title, scores, seconds in lines:
            cells = [f"{scores.value():.4f}", seconds, f"{len(scores):,}"]
            table.add_row(translated(title), *cells[: 3 if counted else 2])
        self.table = table

    def finish(self, report: Report, folder: Path) -> None:
        """Show the report's headline and leaderboard."""
        if self.quiet:
            return
        if self.table is not None and self.cell is not None:
            self.cell.say(as_plain_text(self.table))
        elif self.table is not None and not self.console.is_terminal:
            self.console.print(self.table)
        for line in headline(report):
            self.say(line)
        if others := other_metrics(report):
            self.say("   ".join(f"{translated(name)} {value}" for name, value, _ in others))
        if threshold := report.data.get("threshold"):
            self.say(f"{translated('threshold')}: {threshold}")
        self.say("saved {folder}; see {folder2}", folder, folder / "report.html")
