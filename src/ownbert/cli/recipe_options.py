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


def recipe_command(
    recipe: type,
    names: Sequence[str],
    *,
    command: str,
    instead: Mapping[str, Any] | None = None,
    common: Collection[str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replaces the parameter ``settings`` of a command by an option for each of some settings.

    The function gets their values, None if not given, by their dotted names.

    Args:
        recipe: the class of the recipe.
        names: of the settings, in the order of ``--help``.
        command: its name, on which help texts may depend.
        instead: options that are declared elsewhere, by name.
        common: names of those that ``--help`` shows; the others are for ``--help-all``. None: all.
    """
    options: dict[str, Any] = {}
    dotted: dict[str, str] = {}
    rest: set[str] = set()
    for name in names:
        full = dotted_name(recipe, name)
        about = settings_of(recipe)[full].in_command(command)
        flag = about.option or f"--{full.rpartition('.')[2].replace('_', '-')}"
        parameter = flag.partition("/")[0].lstrip("-").replace("-", "_")
        options[parameter] = (instead or {}).get(name) or _option(flag, about)
        dotted[parameter] = full
        if common is not None and name not in common:
            rest.add(parameter)
            options[parameter] = _hidden(options[parameter])

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
                inspect.Parameter("help_all", keyword, annotation=_help_all(rest), default=False)
            )
        run.__signature__ = inspect.Signature(parameters)  # pyright: ignore
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return decorate


def _option(flag: str, about: Setting) -> Any:
    option = typer.Option(
        flag,
        help=about.help,
        show_default=about.shown or shown_default(about.default, flag) or False,
        rich_help_panel=about.panel,
    )
    return Annotated[Path | None if about.path else _plain(about.type) | None, option]


def _hidden(annotation: Any) -> Any:
    """An option that ``--help`` does not show."""
    kind, option = get_args(annotation)
    option = copy.copy(option)
    option.hidden = True
    return Annotated[kind, option]


def _help_all(rest: Collection[str]) -> Any:
    """The option that shows the help with these options, too."""

    def show(ctx: typer.Context, value: bool) -> None:
        if value:
            for parameter in ctx.command.params:
                if parameter.name in rest:
                    parameter.hidden = False  # pyright: ignore
            if text := ctx.get_help():  # rich prints it by itself
                echo(text)
            raise typer.Exit

    option = typer.Option(
        "--help-all", help=f"Show all options: {len(rest)} more.", is_eager=True, callback=show
    )
    return Annotated[bool, option]


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
