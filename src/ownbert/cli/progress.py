"""Progress bars of commands, shown on terminals only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ownbert.language import translated
from ownbert.terminal import console, say


def saying(*, quiet: bool) -> Callable[[str], None]:
    """A function that prints notes and warnings to standard error; only warnings if ``quiet``."""

    def note(text: str) -> None:
        if not (quiet and text.startswith("note: ")):
            say(text, err=True)

    return note


def say_saved(done: str, path: Path, *, quiet: bool) -> None:
    """Print what was done, such as "3 texts embedded", and where it was saved."""
    if not quiet:
        say(f"{done}; saved {path}")


@contextmanager
def counting(
    what: str, *, quiet: bool, total: Callable[[], int | None] = lambda: None
) -> Iterator[Callable[[int], None]]:
    """Show a running count and its rate on a terminal; the callback receives the number so far.

    Args:
        total: function that returns the final number, for a bar and the remaining time, or None if
            it is unknown. Called only if the bar is shown.
    """
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s")

    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda count: None
        return
    known = total()
    bar = (SpinnerColumn(),) if known is None else (BarColumn(bar_width=None),)
    left = () if known is None else (Remaining(),)
    columns = (*bar, TextColumn("{task.description}"), Rate(), *left)
    # Standard output is reserved for answers; other output is printed above the bar. The bar is
    # transient, because the command prints a summary.
    with Progress(*columns, console=output, expand=True, transient=True) as progress:
        end = "" if known is None else f" of {known:,}"
        task = progress.add_task(translated(what), total=known)
        yield lambda count: progress.update(
            task, completed=count, description=translated(f"{count:,}{end} {what}")
        )


@contextmanager
def advancing(*, quiet: bool) -> Iterator[Callable[[int, int, int | None], None]]:
    """Show documents, megabytes, rate and remaining time on a terminal.

    If a stopped run is resumed, one line says so on any output.
    """
    from rich.progress import DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import TextColumn as Text

    output = console(stderr=True)
    started = False

    def announce(documents: int, done: int) -> None:
        nonlocal started
        if not started and documents and not done and not quiet:
            output.print(
                translated(f"resuming after {documents:,} documents finished by a stopped run")
            )
        started = True

    if quiet or not output.is_terminal:
        yield lambda documents, done, total: announce(documents, done)
        return
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    with Progress(Text("{task.description}"), *columns, console=output, transient=True) as progress:
        task = progress.add_task(translated("documents"), total=None)

        def update(documents: int, done: int, total: int | None) -> None:
            announce(documents, done)
            shown = translated(f"{documents:,} documents")
            progress.update(task, description=shown, completed=done, total=total)

        yield update
