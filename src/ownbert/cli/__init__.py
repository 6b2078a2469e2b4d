"""The command line: each command is a settings class that calls the Python function of its name.

User errors are one line on standard error with exit code 2. torch is not imported before a command
runs, so that ``--help`` is fast.
"""

import atexit
import contextlib
import gc
import os
import re
import shlex
import signal
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from ownbert import __version__
from ownbert.checks import whole_in_environment
from ownbert.cli.command import command_function
from ownbert.cli.other_names import meant, respelled
from ownbert.exceptions import InputError, in_short
from ownbert.language import translate_command, translate_frames, translated
from ownbert.language.messages import Message, Option, on_command_line, typed_options
from ownbert.terminal import accept_any_encoding, echo, escape_warnings, printable
from ownbert.threads import share_the_machine

# Commands by the panels of --help and by the modules that have their classes (``FitCommand``), or
# their groups of subcommands (``search_app``).
_PANELS = {
    "Prepare for pretraining": {"text_commands": ("vocab", "prepare")},
    "Train": {
        "train_commands": ("fit", "pretrain", "finetune", "probe"),
        "translate_commands": ("translate",),
    },
    "Use": {
        "use_commands": ("predict", "evaluate", "embed", "fill", "merge", "score"),
        "collection_commands": ("duplicates", "label", "search", "topics"),
    },
    "Deploy": {"deploy_commands": ("convert", "export", "push", "quantize", "serve")},
    "Inspect": {
        "inspect_commands": (
            *("audit", "compare", "describe", "drift", "errors", "heads", "runs", "trace"),
        ),
        "explain_commands": ("explain", "faithfulness", "relevance"),
    },
}
# The module and the panel of each command.
COMMANDS = {
    name: (module, panel)
    for panel, modules in _PANELS.items()
    for module, names in modules.items()
    for name in names
}
# Hidden options whose values are treated as arguments, by the names of the arguments.
_FILE_OPTIONS = ("--data", "--input")
_AS_ARGUMENT = {
    **dict.fromkeys(("file", "data", "inputs"), _FILE_OPTIONS),
    "train": ("--train", *_FILE_OPTIONS),
    "text": ("--text",),
    "texts": (*_FILE_OPTIONS, "--text"),
    "queries": (*_FILE_OPTIONS, "--text", "--query"),
}
# Hidden options whose values are treated as the first argument: the folder, or the token store.
_AS_FIRST = {
    **dict.fromkeys(("folder", "model"), ("--model", "--folder")),
    "tokens": ("--tokens", *_FILE_OPTIONS),
}

# Messages of typer, which may quote users' values.
_OF_TYPER = (
    "no such option: {option} Did you mean {other}?",
    "no such command '{command}'. Did you mean {other}?",
    *("missing option '{option}'", "missing argument '{argument}'", "missing command"),
    *("no such option: {option} (Possible options: {others})", "no such option: {option}"),
    *("no such command '{command}'", "option '{option}' requires an argument"),
    *("option '{option}' does not take a value", "got unexpected extra argument ({arguments})"),
    "got unexpected extra arguments ({arguments})",
)
_INTERRUPTED = "interrupted; no incomplete output was left"
# Longer words are truncated in messages.
_LONGEST_WORD = 400


# Error messages of the system about paths, with a remedy.
_REASONS = {
    FileExistsError: "something with that name already exists; remove it, or choose another name",
    IsADirectoryError: "it is a folder, a file is needed",
    NotADirectoryError: "a part of this path is a file, but a folder is needed",
    FileNotFoundError: "no such file or folder; check its name",
    PermissionError: "permission denied; check who owns it, or choose another path",
}


class _Stopped(Exception):
    """An interrupt; typer would handle KeyboardInterrupt itself and exit with code 130."""


class _Commands(TyperGroup):
    """A group that imports only the module of the command that is run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = dict.fromkeys(COMMANDS)  # for suggestions after a typing error
        translate_command(self)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, panel = COMMANDS[cmd_name]
        commands = import_module(f"{__name__}.{module}")
        command = getattr(commands, f"{cmd_name}_app", None)
        if command is None:
            command = typer.Typer(add_completion=False)
            kind = getattr(commands, f"{cmd_name.capitalize()}Command")
            command.command(cmd_name)(command_function(kind))
        click_command = _with_spellings(typer.main.get_command(command))
        click_command.rich_help_panel = panel
        translate_command(click_command)
        return click_command

    def make_context(self, *about: Any, **options: Any) -> Any:
        with _interrupts():
            return super().make_context(*about, **options)

    def invoke(self, ctx: Any) -> Any:
        with _interrupts():
            return super().invoke(ctx)


@contextlib.contextmanager
def _interrupts() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as stop:
        raise _Stopped(str(stop) or _INTERRUPTED) from None


def _with_spellings(command: Any) -> Any:
    """Make commands accept the option names of other programs, and arguments given as options."""
    for each in getattr(command, "commands", {}).values():
        _with_spellings(each)
    if hasattr(command, "commands"):
        return command
    parse = command.parse_args
    own = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help-all"}
    arguments = [p.name for p in command.params if p.param_type_name == "argument"]
    at_start = {o for name in arguments[:1] for o in _AS_FIRST.get(name, ())} - own
    at_end = {o for name in arguments for o in _AS_ARGUMENT.get(name, ())} - own
    known = own | at_start | at_end

    def parse_args(ctx: Any, args: list[str]) -> Any:
        hidden = at_start | at_end
        renamed = respelled(args, known, with_values=hidden)
        for typed, name in zip(args, renamed, strict=True):
            if typed != name:
                typed_options[name.partition("=")[0]] = typed.partition("=")[0]
        args = _as_arguments(renamed, at_end)
        return parse(ctx, _as_arguments(args, at_start, first=True))

    command.parse_args = parse_args
    return command


def _as_arguments(
    args: Sequence[str], options: Collection[str], *, first: bool = False
) -> list[str]:
    """Move the values of ``options`` to the end or the start of ``args``, as arguments.

    If values begin with a minus sign, those at the end follow ``--``; those at the start are paths.
    """
    rest, moved, given = [], [], iter(args)
    for each in given:
        option, equals, value = each.partition("=")
        if each == "--":
            if first or not _look_like_options(moved):
                return [*moved, *rest, each, *given] if first else [*rest, *moved, each, *given]
            return [*rest, each, *moved, *given]
        if option not in options:
            rest.append(each)
        elif (argument := value if equals else next(given, None)) is not None:
            is_option = first and _look_like_options([argument])
            moved.append(f"./{argument}" if is_option else argument)
    if first:
        return [*moved, *rest]
    return [*rest, *(["--"] if _look_like_options(moved) else []), *moved]


def _look_like_options(values: Sequence[str]) -> bool:
    return any(value.startswith("-") and value != "-" for value in values)


app = typer.Typer(
    cls=_Commands,
    name="ownbert",
    help="Train your own BERT on your own text, on your own machine.\n\nUse fit to get the best "
    "model from labelled texts in one step, or work step by step: vocab, prepare, pretrain, "
    "finetune, evaluate, predict.",
    no_args_is_help=True,
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
        False,
        "--version",
        "-V",
        callback=_version,
        is_eager=True,
        help="Show the version and exit.",
    ),
) -> None: ...


def main() -> None:
    """Run a command; after mistakes, full disks and interrupts, print one line and exit with 2."""
    # Otherwise the garbage collection at exit examines torch's objects for a quarter of a second.
    atexit.register(gc.freeze)
    try:
        with on_command_line():
            _main()
    except SystemExit as end:
        if not _is_distributed():
            raise
        # Threads that connect the processes may outlive the interpreter, and would then abort it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)


def _is_distributed() -> bool:
    """Whether torchrun or a similar launcher has started this process and others."""
    try:
        return whole_in_environment("WORLD_SIZE", 1) > 1
    except InputError:  # a command that trains reports it
        return False


def _main() -> None:
    typed_options.clear()
    signal.signal(signal.SIGTERM, _as_interrupt)
    accept_any_encoding()
    escape_warnings()
    share_the_machine()
    # Number of compiled matrix products in oneDNN's cache (bfloat16): those of a step or two,
    # because batches differ in length. The default, 1,024, takes 0.3 GB more; on processors with
    # matrix units, where compiling is slow, it makes steps a seventh faster than 64.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
    # PyTorch's own cache of them, by default also 1,024, grows with each new length.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "128")
    try:
        _refuse_undecodable(sys.argv[1:])
        translate_frames()
        sys.exit(app(prog_name="ownbert", standalone_mode=False) or 0)
    except InputError as error:
        _exit(error.message, start="error: ")
    except _Stopped as stop:
        _exit(stop.args[0], command=_resuming(sys.argv[1:]) if "--resume" in str(stop) else "")
    except KeyboardInterrupt:
        _exit(_INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        reason = next((r for kind, r in _REASONS.items() if isinstance(error, kind)), None)
        _exit(
            Message("{where}{reason!t}", where, reason or error.strerror or error), start="error: "
        )
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer's, which come from several modules
            raise
        if type(error).__name__ != "NoArgsIsHelpError":  # its help has been shown
            _exit(usage_message(error), start="error: ")
        sys.exit(2)


def usage_message(error: Any) -> str:
    """The message for an invalid option or argument, with a hint at valid ones."""
    details = getattr(error.__cause__, "errors", list)()  # of pydantic, where typer has it
    if details and (wanted := _wanted(details[0]["type"], details[0].get("ctx", {}))):
        given = in_short(details[0]["input"])
        option = Option(error.param.opts[0])
        return Message("{opts} is {value}; it must be {wanted}", option, given, wanted)
    message = error.format_message().rstrip(".").removeprefix("Invalid value for ")
    ctx = getattr(error, "ctx", None)
    if wrong := re.match(r"No such command '(.+?)'", message):
        from ownbert.tasks.kinds import KINDS

        if instead := meant(ctx.command_path if ctx else "", wrong[1], KINDS):
            return Message("no such command {command!r}: {instead}", wrong[1], instead)
    message = message[:1].lower() + message[1:]
    unknown = re.match(r"No such option: (-\d\S*)", message, re.I)
    if unknown and ctx is not None:
        arguments = [p for p in ctx.command.params if p.param_type_name == "argument"]
        if len(arguments) > 1:  # a folder, then texts
            return Message(
                "no such option: {unknown}; write -- before texts that begin with a minus "
                "sign, as in {command_path} ... -- {unknown}",
                unknown[1],
                ctx.command_path,
            )
    if "Did you mean" in message:
        return _of_typer(message)
    if ctx is not None and (below := getattr(ctx.command, "commands", {})) and ctx.parent:
        known = ", ".join(name for name, each in below.items() if not each.hidden)
        advice = "; a command comes first, as in {command} {other}"
        advice = Message(advice, ctx.command_path, next(iter(below)))
        if wrong:
            advice = Message("; {command} has {commands}", ctx.command_path, known)
    else:
        advice = "" if ctx is None else Message("; see {command} --help", ctx.command_path)
    return _of_typer(message) + advice


def _of_typer(text: str) -> Message:
    """A message of typer as a template with its values, or as it is."""
    for template in _OF_TYPER:
        pattern = re.sub(r"\\{\w+\\}", "(.*)", re.escape(template))
        if match := re.fullmatch(pattern, text, re.DOTALL):
            return Message(template, *match.groups())
    return Message("{text}", text)


def _wanted(kind: str, limits: Mapping[str, Any]) -> str | None:
    if kind.startswith("int_"):
        return "a whole number" if kind != "int_parsing_size" else "a number with fewer digits"
    if kind.startswith("float_"):
        return "a number"
    if "ge" in limits:
        return Message("{limits:,} or more", limits["ge"])
    return Message("at most {limits:,}", limits["le"]) if "le" in limits else None


def _refuse_undecodable(arguments: Sequence[str]) -> None:
    """Raise ``InputError`` for arguments that are not UTF-8: Python decodes their bytes to lone
    surrogates, which cannot be written to files."""
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise InputError(
                "argument {number} is not UTF-8: {argument}; rename the file, or set the "
                "terminal to UTF-8",
                number,
                printable(argument[:60]),
            ) from None


def _as_interrupt(number: int, frame: object) -> None:
    # So that unfinished output is removed.
    raise KeyboardInterrupt


def _resuming(arguments: Sequence[str]) -> str:
    """The complete command that resumes the stopped one."""
    same = [each for each in arguments if each not in ("--resume", "--overwrite")]
    return shlex.join(["ownbert", *same, "--resume"])


def _exit(message: str, *, start: str = "", command: str = "") -> None:
    if _is_distributed():
        from ownbert.train.distributed import first_to_report

        if not first_to_report():
            sys.exit(2)
    message = translated(start) + translated(message)
    line = re.sub(rf"\S{{{_LONGEST_WORD},}}", lambda word: in_short(word[0]), message)
    line = f"{line}: {command}" if command else line
    echo(" ".join(line.split("\n")), err=True)
    sys.exit(2)
