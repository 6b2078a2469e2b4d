"""The command line: thin commands over the Python functions of the same names.

A user's mistake is one line on standard error and exit code 2. Nothing here imports torch before
a command runs, so that ``--help`` answers at once.
"""

import os
import signal
import sys
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ownbert import __version__
from ownbert.errors import InputError

# In the order of --help. Each is a file of its name, with a function of its name or, for commands
# of its own, an ``app``.
COMMANDS = (
    *("vocab", "prepare", "pretrain", "finetune", "evaluate", "predict", "embed", "fill"),
    *("translate", "runs", "describe", "trace", "relevance"),
)


class _Stopped(Exception):
    """An interrupt; typer would answer KeyboardInterrupt by itself, with a word and code 130."""


class _Commands(TyperGroup):
    """The file of a command is loaded when the command is asked for, and no other."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # what a wrong name may have meant

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"{__name__}.{cmd_name}")
        command = getattr(module, "app", None)
        if command is None:
            command = typer.Typer(add_completion=False)
            command.command(cmd_name)(getattr(module, cmd_name))
        return typer.main.get_command(command)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            raise _Stopped(str(stop) or "interrupted; nothing half-written is left") from None


app = typer.Typer(
    cls=_Commands,
    name="ownbert",
    help="Make a BERT of your own from your own text, on your own machine.\n\n"
    "From text to answers: vocab, prepare, pretrain, finetune, evaluate, predict.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        print(f"ownbert {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
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
        _exit(f"error: {error}")
    except _Stopped as stop:
        _exit(str(stop))
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _exit(f"error: {where}{error.strerror or error}")
    except MemoryError:
        _exit("error: out of memory; take smaller batches (--batch-tokens) or a smaller model")


def _as_interrupt(number: int, frame: object) -> None:
    # So that whatever is being written cleans up after itself.
    raise KeyboardInterrupt


def _exit(message: str) -> None:
    if _with_others():
        from ownbert.train.distributed import first_to_report

        if not first_to_report():
            sys.exit(2)
    print(" ".join(message.split("\n")), file=sys.stderr)
    sys.exit(2)
