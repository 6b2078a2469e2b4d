"""Progress of ``fit`` for the user: candidates, their scores, the remaining time."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.live import Live
from rich.table import Table
from rich.text import Text

from ownbert.fitting.comparison import Comparison
from ownbert.fitting.report.contents import Report
from ownbert.fitting.report.headline import headline, metric_name, other_metrics
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.language import translated
from ownbert.terminal import as_plain_text, console, notebook_output


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
        """Show the table inside the context.

        Args:
            left: returns the seconds until the time is up.
        """
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
        line = Text(translated(f"{self.doing}; {left:.1f} minutes left"))
        if self.table is None:
            return line
        grid = Table.grid()
        grid.add_row(self.table)
        grid.add_row(line)
        return grid

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self.lines += 1
        if self.cell is not None:
            self.cell.say(translated(text))
        elif not self.quiet:
            self.console.print(Text(translated(text)))

    @contextlib.contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show the title of the current step."""
        self.doing = title
        start, lines = time.monotonic(), self.lines
        if self.cell is not None:
            self.cell.status(translated(f"{title}; {max(0.0, self.left()) / 60:.1f} minutes left"))
        yield
        if self.live is None and self.lines == lines:  # otherwise a message was printed
            self.say(f"{title}: {time.monotonic() - start:.0f} s")

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
        self.say(f"saved {folder}; see {folder / 'report.html'}")


def describe_data(rows: LabelledRows, kind: str, unlabelled: int, minutes: float) -> str:
    """Describe the training data in one line."""
    labels = f", {len(rows.task.labels)} labels" if rows.task.name != "regress" else ""
    words = {"ids": "ids", "chinese": "a script without spaces"}.get(kind, "words")
    return (
        f"{rows.task.name}: {len(rows.learnt):,} labelled texts of {words}{labels}; "
        f"{unlabelled:,} unlabelled texts; compared on {rows.source}; {minutes:g} min"
    )
