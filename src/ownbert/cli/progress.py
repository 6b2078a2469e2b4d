"""How far a command is, shown on a terminal and nowhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A count that runs on a terminal; the callback takes the number so far."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda count: None
        return
    with console.status(what) as status:
        yield lambda count: status.update(f"{count:,} {what}")


@contextmanager
def counting_of(total: int | None, what: str, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """As ``counting``, with a bar where the ``total`` is known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda count: None
        return
    shown = TextColumn(what), BarColumn(), MofNCompleteColumn(), Remaining()
    with Progress(*shown, console=console) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, completed=count)


@contextmanager
def advancing(*, quiet: bool) -> Iterator[Callable[[int, int, int | None], None]]:
    """Documents, megabytes, rate and time left, on a terminal; a line where a stopped run is gone
    on with, anywhere."""
    from rich.console import Console
    from rich.progress import (
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import TextColumn as Text

    console = Console(stderr=True)
    started = False

    def announce(documents: int, done: int) -> None:
        nonlocal started
        if not started and documents and not done and not quiet:
            console.print(f"going on after {documents:,} documents that a stopped run finished")
        started = True

    if quiet or not console.is_terminal:
        yield lambda documents, done, total: announce(documents, done)
        return
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    with Progress(
        Text("{task.description}"), *columns, console=console, transient=True
    ) as progress:
        task = progress.add_task("documents", total=None)

        def update(documents: int, done: int, total: int | None) -> None:
            announce(documents, done)
            progress.update(
                task, description=f"{documents:,} documents", completed=done, total=total
            )

        yield update
