"""The command line: thin commands over the Python functions of the same names.

A user's mistake is one line on standard error and exit code 2. Nothing here imports torch before
a command runs, so that ``--help`` answers at once.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable

import typer

from ownbert import __version__
from ownbert.cli import (
    describe,
    embed,
    evaluate,
    fill,
    finetune,
    prepare,
    pretrain,
    relevance,
    runs,
    trace,
    translate,
)
from ownbert.errors import InputError

app = typer.Typer(
    name="ownbert",
    help="Make a BERT of your own from your own text, on your own machine.\n\n"
    "The way from text to answers: vocab, prepare, pretrain, finetune, evaluate, predict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Stopped(Exception):
    """An interrupt; typer would answer KeyboardInterrupt by itself, with a word and code 130."""


def _stoppable(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*arguments: object, **options: object) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as stop:
            raise _Stopped(str(stop) or "interrupted; nothing half-written is left") from None

    return run


for _name, _command in finetune.commands().items():
    finetune.app.command(_name)(_stoppable(_command))
for _name, _command in translate.COMMANDS.items():
    translate.app.command(_name, hidden=_name == "use")(_stoppable(_command))
app.command("vocab")(_stoppable(prepare.vocab))
app.command("prepare")(_stoppable(prepare.prepare))
app.command("pretrain")(_stoppable(pretrain.pretrain))
app.add_typer(finetune.app, name="finetune")
app.command("runs")(_stoppable(runs.runs))
app.command("evaluate")(_stoppable(evaluate.evaluate))
app.command("predict")(_stoppable(evaluate.predict))
app.command("describe")(_stoppable(describe.describe))
app.command("trace")(_stoppable(trace.trace))
app.command("relevance")(_stoppable(relevance.relevance))
app.command("fill")(_stoppable(fill.fill))
app.command("embed")(_stoppable(embed.embed))
app.add_typer(translate.app, name="translate")


def _version(value: bool) -> None:
    if value:
        print(f"ownbert {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and leave."
    ),
) -> None: ...


def main() -> None:
    """Run a command; mistakes, full disks and interrupts end in one line and exit code 2."""
    try:
        _main()
    except SystemExit as end:
        if not _with_others():
            raise
        # Threads that connect the processes may outlive the interpreter, and would then abort it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


def _with_others() -> bool:
    """Whether torchrun or the like has started this process, and others with it."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _main() -> None:
    signal.signal(signal.SIGTERM, _as_interrupt)
    # How long threads of torch spin while they wait for each other; read when torch is loaded. By
    # default so long that a second program on the machine slows a run down tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        app()
    except InputError as error:
        _leave(f"error: {error}")
    except _Stopped as stop:
        _leave(str(stop))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _leave(f"error: {where}{error.strerror or error}")
    except MemoryError:
        _leave("error: out of memory; take smaller batches (--batch-tokens) or a smaller model")


def _as_interrupt(number: int, frame: object) -> None:
    # So that whatever is being written cleans up after itself.
    raise KeyboardInterrupt


def _leave(message: str) -> None:
    if _with_others():
        from ownbert.train.distributed import first_to_say

        if not first_to_say():
            sys.exit(2)
    print(" ".join(message.split("\n")), file=sys.stderr)
    sys.exit(2)
