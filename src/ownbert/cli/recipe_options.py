"""Command line options, generated from the settings of a recipe."""

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from ownbert.settings import Setting, dotted_name, settings_of
from ownbert.terminal import echo

# Longer defaults are for --help-all.
_LONG = 100


def recipe_command(
    recipe: type,
    names: Sequence[str],
    *,
    command: str,
    instead: Mapping[str, Any] | None = None,
    common: Collection[str] | None = None,
    environment: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces the parameter ``settings`` of a command by an option for each of some settings.

    The function gets their values, None if not given, by their dotted names.

    Args:
        recipe: the class of the recipe.
        names: of the settings, in the order of ``--help``.
        command: its name, on which help texts may depend.
        instead: options that are declared elsewhere, by name.
        common: names of those that ``--help`` shows; the others are for ``--help-all``. None: all.
        environment: how the names of variables begin that set the options too; None: none do.
    """
    options: dict[str, Any] = {}
    dotted: dict[str, str] = {}
    rest: dict[str, str | None] = {}
    for name in names:
        full = dotted_name(recipe, name)
        about = settings_of(recipe)[full].in_command(command)
        flag = about.option or f"--{full.rpartition('.')[2].replace('_', '-')}"
        parameter = flag.partition("/")[0].lstrip("-").replace("-", "_")
        options[parameter] = (instead or {}).get(name) or _option(
            flag, about, None if environment is None else environment + parameter.upper()
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
            parameters.append(
                inspect.Parameter(
                    "help_all", keyword, annotation=Annotated[bool, help_all(rest)], default=False
                )
            )
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _option(flag: str, about: Setting, variable: str | None = None) -> Any:
    option = typer.Option(
        flag,
        help=about.help,
        envvar=variable,
        show_default=about.shown or shown_default(about.default, flag) or False,
        rich_help_panel=about.panel,
    )
    return Annotated[Path | None if about.path else _plain(about.type) | None, option]


def _brief(annotation: Any, *, hidden: bool) -> tuple[Any, str | None]:
    """An option as ``--help`` shows it or does not, and its default if that is too long to show."""
    kind, option = get_args(annotation)
    option, default = copy.copy(option), None
    option.hidden = hidden
    if isinstance(option.show_default, str) and len(option.show_default) > _LONG:
        default, option.show_default = option.show_default, "see --help-all"
    return Annotated[kind, option], default


def help_all(rest: Mapping[str, str | None]) -> Any:
    """The option that shows the help with all options and their defaults.

    Args:
        rest: the defaults of those that are hidden, or whose defaults are long.
    """

    def show(ctx: typer.Context, value: bool) -> None:
        if value:
            for parameter in ctx.command.params:
                if parameter.name in rest:
                    parameter.hidden = False  # pyright: ignore
                    default = rest[parameter.name]
                    parameter.show_default = default or parameter.show_default  # pyright: ignore
            if text := ctx.get_help():  # rich prints it by itself
                echo(text)
            raise typer.Exit

    return typer.Option(
        "--help-all",
        help="Show all options, and their defaults in full.",
        is_eager=True,
        callback=show,
    )


def _plain(kind: Any) -> type:
    """The type of the option of a setting; text for settings that are lists."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((k for k in kinds if k in (bool, int, float)), str)


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
