"""Commands in forks of this process, which has imported everything: a case takes only as long as
its command, and its memory, its time and its end are measured from outside."""

import importlib
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import ownbert
from support.cli import run_cli
from support.plots import matplotlib_installed

# Bytes of address space beyond those of the process, so that allocations fail instead of swapping.
ADDRESSES = 6 << 30
CPU_SECONDS = 30
WALL_SECONDS = 90.0
# Characters that no case may print: they move a terminal's cursor or change its colours.
CONTROLS = frozenset(map(chr, [*range(32), *range(127, 160)])) - {"\n", "\t"}
# No network, no threads (a fork has none), one language, and a fixed width.
_ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "OWNBERT_LANGUAGE": "en",
    "COLUMNS": "80",
}


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Args:
        code: exit code; negative for the signal that ended it.
        out, err: standard output and standard error.
        seconds: processor time.
        wall: wall-clock time, in seconds.
        memory: peak memory, in bytes, in addition to that of the forked process.
    """

    code: int
    out: str
    err: str
    seconds: float
    wall: float
    memory: int


@cache
def import_everything() -> None:
    """Import all modules that commands import when they run, once for all forks."""
    for module in pkgutil.walk_packages(ownbert.__path__, "ownbert."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("pyarrow.csv", "pyarrow.parquet", "rich.console", "rich.table", "sklearn", "PIL"):
        importlib.import_module(name)
    with matplotlib_installed():  # reading the font cache takes long, too
        importlib.import_module("matplotlib.backends.backend_agg")
    torch.set_num_threads(1)
    run_cli("describe", "nope")  # typer itself imports more when it runs


def start(
    arguments: Sequence[str | bytes],
    folder: Path,
    *,
    prepare: Callable[[], object] | None = None,
    plots: bool = False,
) -> int:
    """Start a fork that runs ``ownbert`` in a folder, and return its process id.

    Standard output, standard error and standard input are the files .out, .err and .in beside the
    folder.

    Args:
        arguments: arguments of the command line.
        folder: working folder.
        prepare: called in the fork before the command, for example to set limits.
        plots: whether matplotlib is installed.
    """
    import_everything()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child:
        return child
    code = 70
    try:
        code = _run(arguments, folder, prepare, plots)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _run(
    arguments: Sequence[str | bytes],
    folder: Path,
    prepare: Callable[[], object] | None,
    plots: bool,
) -> int:
    os.chdir(folder)
    os.environ.update(_ENVIRONMENT)
    for number, name in ((1, f"{folder}.out"), (2, f"{folder}.err")):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, number)
        os.close(file)
    source = Path(f"{folder}.in")
    os.dup2(os.open(source if source.exists() else os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    warnings.resetwarnings()
    for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", hidden)
    warnings.showwarning = _WARN
    # A shell makes background processes ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ADDRESSES, size + ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # As in a real process: bytes that are not UTF-8 become lone surrogates.
    sys.argv = ["ownbert", *map(os.fsdecode, arguments)]
    if prepare is not None:
        prepare()
    from ownbert.cli import main

    try:
        if plots:
            with matplotlib_installed():
                main()
        else:
            main()
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:
                stream.flush()


_WARN = warnings.showwarning


def finish(
    child: int, folder: Path, *, began: float, memory: int, wall: float = WALL_SECONDS
) -> Outcome:
    """Wait for a fork to end, and kill it after a time limit.

    Args:
        child: process id of the fork.
        folder: its working folder.
        began: time at which it was started, as of ``time.monotonic``.
        memory: bytes of memory of this process at that time.
        wall: time limit, in seconds.
    """
    pause = 0.001
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - began > wall:
            os.kill(child, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    out, err = (
        Path(f"{folder}.{name}").read_text("utf-8", errors="replace") for name in ("out", "err")
    )
    return Outcome(
        os.waitstatus_to_exitcode(status),
        out,
        err,
        usage.ru_utime + usage.ru_stime,
        time.monotonic() - began,
        max(0, usage.ru_maxrss * 1024 - memory),
    )


def run(
    arguments: Sequence[str | bytes],
    folder: Path,
    *,
    prepare: Callable[[], object] | None = None,
    plots: bool = False,
    wall: float = WALL_SECONDS,
) -> Outcome:
    """``start`` and ``finish``."""
    import_everything()
    memory, began = resident(), time.monotonic()
    child = start(arguments, folder, prepare=prepare, plots=plots)
    return finish(child, folder, began=began, memory=memory, wall=wall)


def resident() -> int:
    """Bytes of memory that a fork of this process starts with: without mapped files, which are read
    when needed."""
    pages = Path("/proc/self/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize()
