"""Command line options generated from settings: of a recipe, or of a command."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from ownbert.checks import Interval
from ownbert.settings import Setting, dotted_name, refuse_unused, settings_of
from ownbert.terminal import echo

# Longer defaults are shown by --help-all only.
_LONG = 100


def settings_command(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter that is a settings dataclass by one option per setting.

    The function receives the dataclass built from the options, after options without effect are
    refused. ``Annotated[Compute, chosen("device")]`` has options for some of the settings; the
    others keep their defaults.
    """
    parameters: list[inspect.Parameter] = []
    classes: dict[str, tuple[type, dict[str, str]]] = {}
    for parameter in inspect.signature(function).parameters.values():
        kind, *annotations = get_args(parameter.annotation) or (parameter.annotation,)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        options = dict(_value_options(kind, annotations[0] if annotations else None))
        parameters += options.values()
        classes[parameter.name] = kind, {option.name: name for name, option in options.items()}

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for parameter, (kind, names) in classes.items():
            given[parameter] = kind(**{names[option]: given.pop(option) for option in names})
            refuse_unused(given[parameter])
        function(**given)

    return _with_parameters(run, parameters)


def chosen(*names: str, **changes: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Choose the settings of a dataclass that a command has as options, in order.

    Args:
        names: names of settings used as declared.
        changes: fields of ``Setting`` to change, by the names of further settings.
    """
    return {name: {} for name in names} | changes


def _value_options(
    kind: type, only: Mapping[str, Mapping[str, Any]] | None
) -> Iterator[tuple[str, inspect.Parameter]]:
    """The chosen settings of a dataclass, and the parameters from which typer makes options."""
    declared = settings_of(kind)
    if only is None:
        only = {name: {} for name, declaration in declared.items() if declaration.help}
    for name, changes in only.items():
        declaration = replace(declared[name], **changes)
        flags = declaration.flags(name)
        bounds = declaration.check if isinstance(declaration.check, Interval) else None
        option = typer.Option(
            *flags,
            help=declaration.help,
            min=bounds and bounds.low,
            max=bounds and bounds.high,
            metavar=declaration.metavar,
            hidden=declaration.hidden,
            show_default=True if declaration.shown is None else declaration.shown,
            rich_help_panel=declaration.panel,
        )
        yield (
            name,
            inspect.Parameter(
                _parameter_name(flags[0]),
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[declaration.type, option],
                default=declaration.default,
            ),
        )


def _parameter_name(flag: str) -> str:
    return flag.partition("/")[0].lstrip("-").replace("-", "_")


def _with_parameters(
    run: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Give ``run``, which accepts any keywords, the signature that typer inspects."""
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def recipe_command(
    recipe: type,
    names: Sequence[str],
    *,
    command: str,
    instead: Mapping[str, Any] | None = None,
    common: Collection[str] | None = None,
    environment: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter ``settings`` of a command by one option per chosen setting.

    The function receives the values by their dotted names, None for options that are not given.

    Args:
        recipe: class of the recipe.
        names: names of the settings, in the order of ``--help``.
        command: name of the command, which may change help texts.
        instead: options declared elsewhere, by name.
        common: names that ``--help`` shows, the others being left to ``--help-all``; None: all.
        environment: prefix of environment variables that set the options; None: no such variables.
    """
    options: dict[str, Any] = {}
    dotted: dict[str, str] = {}
    rest: dict[str, str | None] = {}
    for name in names:
        full = dotted_name(recipe, name)
        declaration = settings_of(recipe)[full].in_command(command)
        flag = declaration.flags(full)[0]
        parameter = _parameter_name(flag)
        options[parameter] = (instead or {}).get(name) or _option(
            flag, declaration, None if environment is None else environment + parameter.upper()
        )
        dotted[parameter] = full
        if common is not None:
            hidden = name not in common
            options[parameter], default = _brief(options[parameter], hidden=hidden)
            if hidden or default:
                rest[parameter] = default

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            given.pop("help_all", None)
            function(settings={dotted[p]: given.pop(p) for p in dotted}, **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if name == "settings":
                parameters += [
                    inspect.Parameter(option, keyword, annotation=annotation, default=None)
                    for option, annotation in options.items()
                ]
            else:
                parameters.append(parameter.replace(kind=keyword))
        if rest:
            kind = Annotated[bool, help_all(rest)]
            shown = inspect.Parameter("help_all", keyword, annotation=kind, default=False)
            parameters.append(shown)
        return _with_parameters(run, parameters)

    return decorate


def _option(flag: str, declaration: Setting, variable: str | None = None) -> Any:
    option = typer.Option(
        flag,
        help=declaration.help,
        envvar=variable,
        show_default=declaration.shown or shown_default(declaration.default, flag) or False,
        rich_help_panel=declaration.panel,
    )
    return Annotated[Path | None if declaration.path else _plain(declaration.type) | None, option]


def _brief(annotation: Any, *, hidden: bool) -> tuple[Any, str | None]:
    """An option as ``--help`` shows it, and its default if that is too long to show."""
    kind, option = get_args(annotation)
    option, default = copy.copy(option), None
    option.hidden = hidden
    if isinstance(option.show_default, str) and len(option.show_default) > _LONG:
        default, option.show_default = option.show_default, "see --help-all"
    return Annotated[kind, option], default


def help_all(rest: Mapping[str, str | None]) -> Any:
    """The option that shows the help with all options and their defaults.

    Args:
        rest: defaults of the options that ``--help`` hides, or whose defaults are long.
    """

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
