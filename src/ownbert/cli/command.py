"""Commands: classes whose fields are the arguments and options, and whose ``run`` does the work.

    class MergeCommand(Command):
        \"\"\"Merge the parts of a file (the text of --help).\"\"\"

        output: Path = argument(..., "The output file.", metavar="OUT")
        parts: Path | None = setting(None, "Folder of the parts.", shown="the folder of OUT")

        def run(self) -> None: ...

A class has the fields of its base classes too, after its own. Names, help, defaults and bounds are
those of ``Setting``, which recipes have as well; typer makes options of them.
"""

import contextlib
import inspect
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from ownbert.checks import Interval
from ownbert.exceptions import InputError, explaining_memory
from ownbert.files.encodings import reading_as
from ownbert.files.input_files import protected, refuse_same
from ownbert.language import paragraphs, translated_help
from ownbert.language.messages import Message, Option
from ownbert.settings import Setting, dotted_name, setting, settings_of
from ownbert.terminal import echo

# Options that name outputs. Paths given to other options are inputs, and are never overwritten.
OUTPUTS = ("output", "html", "curves", "png", "groups", "check")
# Inputs that are read completely at the start, so that they may be replaced.
_REPLACED = ("config",)
# Options that determine how much memory a command needs.
_LOWER = ("batch_tokens", "batch_size", "max_length", "beams")
# Longer defaults are shown by --help-all only.
_LONG = 100


def argument(default: Any, help: str, metavar: str | None = None, **about: Any) -> Any:
    """Declare an argument of a command; ``...``: it has no default."""
    return setting(default, help, argument=True, metavar=metavar, **about)


@dataclass(frozen=True)
class RecipeOptions:
    """A field of a command: one option for each of some settings of a recipe.

    Its value has the settings that are given, by their dotted names; None: not given.

    Args:
        recipe: class of the recipe.
        names: names of the settings, in the order of ``--help``.
        command: name of the command, which may change help texts.
        changes: fields of ``Setting`` that differ in this command, by setting.
        common: names that ``--help`` shows, the others being left to ``--help-all``; None: all.
    """

    recipe: type
    names: Sequence[str]
    command: str
    changes: Mapping[str, Mapping[str, Any]] | None = None
    common: Collection[str] | None = None

    def options(self) -> Iterator[tuple[str, Setting]]:
        """The dotted names and the declarations of the settings."""
        for name in self.names:
            full = dotted_name(self.recipe, name)
            declared = settings_of(self.recipe)[full].in_command(self.command)
            declared = replace(declared, **(self.changes or {}).get(name, {}))
            yield full, replace(declared, rare=self.common is not None and name not in self.common)


class Command:
    """A command with the values of its settings; those that are not given have their defaults."""

    # Whether freed memory is kept for the next operation (``ownbert.train.device``).
    keeps_memory = False
    # Prefix of environment variables that set the options declared in the class itself.
    environment: str | None = None

    def __init__(self, **values: Any) -> None:
        for name, declared in fields_of(type(self)).items():
            setattr(self, name, values.get(name, getattr(declared, "default", None)))

    def given(self, *without: str) -> dict[str, Any]:
        """The values by name, as arguments of a Python function, ``without`` some of them."""
        return {name: value for name, value in vars(self).items() if name not in without}

    def values(self, *names: str) -> dict[str, Any]:
        """The values of these settings by name."""
        return {name: getattr(self, name) for name in names}

    def run(self) -> None:
        """Do what the command is for."""
        raise NotImplementedError


@cache
def fields_of(kind: type[Command]) -> Mapping[str, Setting | RecipeOptions]:
    """The settings of a command, those declared in its class before inherited ones."""
    hints, found = get_type_hints(kind), {}
    for name in (name for base in kind.__mro__ for name in inspect.get_annotations(base)):
        value = getattr(kind, name, None)
        if isinstance(value, Field):
            value = replace(value.metadata["setting"], default=value.default, type=hints[name])
        if isinstance(value, Setting | RecipeOptions):
            found.setdefault(name, value)
    return found


def command_function(kind: type[Command]) -> Callable[..., None]:
    """The function from whose signature and docstring typer makes a command."""
    dotted: dict[str, dict[str, str]] = {}
    parameters: dict[str, inspect.Parameter] = {}
    rest: dict[str, str | None] = {}  # what only --help-all shows
    for name, declared in fields_of(kind).items():
        if isinstance(declared, RecipeOptions):
            options = {_parameter_name(s.flags(n)[0]): (n, s) for n, s in declared.options()}
            dotted[name] = {option: full for option, (full, _) in options.items()}
            for option, (full, about) in options.items():
                parameters[option] = _recipe_option(option, full, about, kind.environment, rest)
        else:
            own = name in inspect.get_annotations(kind)
            parameters[name] = _option(name, declared, kind.environment if own else None)
            if declared.rare:
                rest[name] = None
    if rest:
        parameters["help_all"] = _parameter("help_all", bool, _help_all(rest), False)

    def run(**values: Any) -> None:
        values.pop("help_all", None)
        with _guarded(values):
            for name, options in dotted.items():
                values[name] = {full: values.pop(option) for option, full in options.items()}
            _check_together(kind, values)
            if kind.keeps_memory:
                from ownbert.train.device import keep_memory

                keep_memory()
            kind(**values).run()

    # typer keeps line breaks, so that a narrow terminal would break every line twice.
    run.__name__, run.__doc__ = kind.__name__, "\n\n".join(paragraphs(kind.__doc__ or ""))
    run.__signature__ = inspect.Signature(list(parameters.values()))  # pyright: ignore
    run.__annotations__ = {name: p.annotation for name, p in parameters.items()}
    return run


@contextlib.contextmanager
def _guarded(values: Mapping[str, Any]) -> Iterator[None]:
    """Run a command that cannot overwrite its inputs, with the encoding of its files."""
    inputs: list[Path] = []
    outputs: list[Path] = []
    for name, value in values.items():
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and name not in _REPLACED:
                (outputs if name in OUTPUTS else inputs).append(path)
            elif isinstance(path, str) and os.path.isfile(path):  # texts or file names
                inputs.append(Path(path))
    for output in outputs:
        refuse_same(inputs, output)
    sizes = {name: values[name] for name in _LOWER if name in values}
    encoded = reading_as(values["encoding"]) if "encoding" in values else contextlib.nullcontext()
    with explaining_memory(lambda: sizes), protected(inputs), encoded:
        yield


def _check_together(kind: type[Command], values: Mapping[str, Any]) -> None:
    """Refuse options that have no effect because of the others, and that are needed and missing."""
    known = {name: s for name, s in fields_of(kind).items() if isinstance(s, Setting)}
    given = {name for name, declared in known.items() if values[name] != declared.default}
    flags = {n: Option(declared.flags(n)[0].partition("/")[0]) for n, declared in known.items()}
    for name, declared in known.items():
        if name not in given:
            if declared.required is not None and not values.get("dry_run"):
                raise InputError(declared.required)
            continue
        if declared.needs and given.isdisjoint(declared.needs):
            needed = Message(" or ".join(f"{{{flags[other].name}}}" for other in declared.needs))
            raise InputError("the option {flag} requires {needed}", flags[name], needed)
        for other in filter(given.__contains__, declared.without):
            raise InputError(
                "the option {flags} has no effect with {flags2}; omit one of them",
                flags[name],
                flags[other],
            )


def _parameter(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    default = inspect.Parameter.empty if default is ... else default
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, annotation=Annotated[kind, option], default=default)


def _parameter_name(flag: str) -> str:
    return flag.partition("/")[0].lstrip("-").replace("-", "_")


def _option(name: str, declared: Setting, environment: str | None) -> inspect.Parameter:
    bounds = declared.check if isinstance(declared.check, Interval) else None
    about: dict[str, Any] = {
        "help": declared.help,
        "min": bounds and bounds.low,
        "max": bounds and bounds.high,
        "metavar": declared.metavar,
        "hidden": declared.hidden or declared.rare,
        "show_default": True if declared.shown is None else declared.shown,
        "rich_help_panel": declared.panel,
    }
    if declared.argument:
        return _parameter(name, declared.type, typer.Argument(**about), declared.default)
    variable = None if environment is None else environment + name.upper()
    about |= {"envvar": variable, "show_envvar": declared.shown is not False}
    option = typer.Option(*declared.flags(name), **about)
    return _parameter(name, declared.type, option, declared.default)


def _recipe_option(
    name: str, full: str, declared: Setting, environment: str | None, rest: dict[str, str | None]
) -> inspect.Parameter:
    """The option for a setting of a recipe, whose value is checked with the recipe; ``rest`` gets
    what --help omits: the option, or a long default."""
    flag = declared.flags(full)[0]
    shown = declared.shown or shown_default(declared.default, flag) or False
    # Now, because typer keeps the text of a message only.
    shown, default = translated_help(shown) if isinstance(shown, Message) else shown, None
    if isinstance(shown, str) and len(shown) > _LONG:
        shown, default = "see --help-all", shown
    if declared.rare or default:
        rest[name] = default
    option = typer.Option(
        flag,
        help=declared.help,
        envvar=None if environment is None else environment + name.upper(),
        hidden=declared.rare,
        show_default=shown,
        rich_help_panel=declared.panel,
    )
    kind = Path | None if declared.path else _plain(declared.type) | None
    return _parameter(name, kind, option)


def _help_all(rest: Mapping[str, str | None]) -> Any:
    """The option that shows the help with the options that ``--help`` hides, and the defaults
    that it abridges."""

    def show(ctx: typer.Context, value: bool) -> None:
        if value:
            for parameter in ctx.command.params:
                if parameter.name in rest:
                    parameter.hidden = False  # pyright: ignore
                    default = rest[parameter.name]
                    parameter.show_default = default or parameter.show_default  # pyright: ignore
            if text := ctx.get_help():  # rich prints it itself
                echo(text)
            raise typer.Exit

    return typer.Option(
        "--help-all",
        help="Show all options with their full defaults.",
        is_eager=True,
        callback=show,
    )


def _plain(kind: Any) -> type:
    """The type of a setting's option; str for settings that are lists."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return str if str in kinds else next((k for k in kinds if k in (bool, int, float)), str)


def shown_default(default: Any, flag: str) -> str:
    """A default as ``--help`` shows it; empty if there is none."""
    if isinstance(default, bool):
        on, _, off = flag.partition("/")
        return (on if default else off).lstrip("-") if off else ""
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "" if default is None else str(default)
