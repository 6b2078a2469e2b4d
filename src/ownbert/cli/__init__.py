"""The command line: thin commands over the Python functions of the same names.

A user's mistake is one line on standard error and exit code 2. Nothing here imports torch before
a command runs, so that ``--help`` is fast.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ownbert import __version__
from ownbert.errors import InputError
from ownbert.terminal import accept_any_encoding, echo, printable

# In the order of --help. Each is a file of its name, with a function of its name or, if it has
# subcommands, an ``app``.
COMMANDS = (
    *("fit", "vocab", "prepare", "pretrain", "finetune", "evaluate", "predict", "embed", "fill"),
    *("probe", "translate", "runs", "describe", "trace", "relevance"),
)


class _Stopped(Exception):
    """An interrupt; typer itself would handle KeyboardInterrupt and exit with code 130."""


class _Commands(TyperGroup):
    """Loads only the file of the command that is run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # suggestions for a wrong name

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
    "From labelled texts to the best model, in one step: fit. Step by step: vocab, prepare, "
    "pretrain, finetune, evaluate, predict.",
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
    """Run a command; after mistakes, full disks and interrupts, print one line and exit with 2."""
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
    accept_any_encoding()
    # How long threads of torch spin while they wait for each other; read when torch is loaded. The
    # default is so long that a second program on the machine slows a run down tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        _refuse_undecodable(sys.argv[1:])
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


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Python gives bytes that are not UTF-8 as halves of characters, which no file can hold."""
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InputError(
                f"argument {number} is not UTF-8: {printable(argument[:60])}; rename the file, or "
                "set the terminal to UTF-8"
            ) from None


def _as_interrupt(number: int, frame: object) -> None:
    # So that whatever is being written cleans up after itself.
    raise KeyboardInterrupt


def _exit(message: str) -> None:
    if _with_others():
        from ownbert.train.distributed import first_to_report

        if not first_to_report():
            sys.exit(2)
    echo(" ".join(message.split("\n")), err=True)
    sys.exit(2)
