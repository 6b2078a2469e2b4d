"""Progress of a command, shown on terminals only."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ownbert.terminal import console


@contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A running count, on a terminal; the callback takes the number so far."""
    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda count: None
        return
    with output.status(what) as status:
        yield lambda count: status.update(f"{count:,} {what}")


@contextmanager
def counting_of(total: int | None, what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """As ``counting``, with a progress bar if the ``total`` is known."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    output = console(stderr=True)
    if quiet or not output.is_terminal:
        yield lambda count: None
        return
    shown = TextColumn(what), BarColumn(), MofNCompleteColumn(), Remaining()
    with Progress(*shown, console=output) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, completed=count)


@contextmanager
def advancing(*, quiet: bool) -> Iterator[Callable[[int, int, int | None], None]]:
    """Documents, megabytes, rate and time left, on a terminal; and one line, on any output, if a
    stopped run is resumed."""
    from rich.progress import (
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import TextColumn as Text

    output = console(stderr=True)
    started = False

    def announce(documents: int, done: int) -> None:
        nonlocal started
        if not started and documents and not done and not quiet:
            output.print(f"resuming after {documents:,} documents that a stopped run finished")
        started = True

    if quiet or not output.is_terminal:
        yield lambda documents, done, total: announce(documents, done)
        return
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    with Progress(Text("{task.description}"), *columns, console=output, transient=True) as progress:
        task = progress.add_task("documents", total=None)

        def update(documents: int, done: int, total: int | None) -> None:
            announce(documents, done)
            progress.update(
                task, description=f"{documents:,} documents", completed=done, total=total
            )

        yield update
