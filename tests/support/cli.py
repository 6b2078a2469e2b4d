"""The command line without a process of its own, which takes seconds to start."""

import contextlib
import io
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import torch
import typer

from ownbert import cli
from ownbert.exceptions import InputWarning
from ownbert.language import current_language

# Those that Python hides from users; pytest shows them.
HIDDEN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)

# Commands by their names and languages. A process makes its command once, which takes up to half of
# the time of a short run here. Help changes the command that it shows, which is therefore not kept.
_MADE: dict[tuple[str, str], Any] = {}
_make: Callable[..., Any] = cli._Commands.get_command


def _get_command(group: Any, ctx: Any, name: str) -> Any:
    if name not in cli.COMMANDS or any(each.startswith(("-h", "--help")) for each in sys.argv):
        return _make(group, ctx, name)
    key = name, current_language()
    if key not in _MADE:
        _MADE[key] = _make(group, ctx, name)
    return _MADE[key]


cli._Commands.get_command = _get_command


def run_cli(
    *arguments: object,
    stdin: str | bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> CompletedProcess[str]:
    """Run ``ownbert`` with the arguments in this process; nothing of it stays behind.

    What is about the process itself (signals, memory, pipes between programs) needs a real one.

    Args:
        arguments: as on the command line; anything but a string is made one.
        stdin: what stands on standard input.
        env: environment variables besides those that are there; the width is 80 columns.
        cwd: the working directory.

    Returns:
        Exit code, standard output and standard error, as of ``subprocess.run``.
    """
    command = ["ownbert", *map(str, arguments)]
    given = stdin.encode() if isinstance(stdin, str) else stdin
    streams = [io.TextIOWrapper(io.BytesIO(data), "utf-8") for data in (given, b"", b"")]
    with _as_it_was(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for category in HIDDEN:
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("error", category=UserWarning, module="ownbert")
        warnings.filterwarnings("default", category=InputWarning)
        sys.argv, (sys.stdin, sys.stdout, sys.stderr) = command, streams
        os.environ.update({"COLUMNS": "80", **(env or {})})
        if cwd is not None:
            os.chdir(cwd)
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    said = [_text(stream) for stream in streams[1:]]
    said[1] += "".join(
        warnings.formatwarning(w.message, w.category, w.filename, w.lineno) for w in warned
    )
    return CompletedProcess(command, code, *said)


@cache
def every_command() -> dict[tuple[str, ...], Any]:
    """All commands that run something, by their names."""
    group: Any = typer.main.get_command(cli.app)
    return {
        (name, *path): command
        for name in cli.COMMANDS
        for path, command in _leaves(group.get_command(None, name))
    }


def _leaves(command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None) or {}
    if not below:
        yield (), command
    for name, inner in below.items():
        for path, leaf in _leaves(inner):
            yield (name, *path), leaf


def printed_rows(*arguments: object, stdin: str = "") -> list[dict]:
    """The JSON lines that a command prints, with nothing on standard error."""
    done = run_cli(*arguments, stdin=stdin)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def refusal(*arguments: object, stdin: str = "") -> str:
    """The one line of a command that ends with exit code 2 and prints nothing else."""
    done = run_cli(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr
    return done.stderr


def _text(stream: io.TextIOWrapper) -> str:
    if stream.closed:  # as main closes it where nobody reads
        return ""
    stream.flush()
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    names = ("argv", "stdin", "stdout", "stderr")
    values = {name: getattr(sys, name) for name in names}
    environment, folder = dict(os.environ), Path.cwd()
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    draws, threads = torch.get_rng_state(), torch.get_num_threads()
    try:
        yield
    finally:
        for name, value in values.items():
            setattr(sys, name, value)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        torch.set_rng_state(draws)
        torch.set_num_threads(threads)
