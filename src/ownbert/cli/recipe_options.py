"""Options of the command line, made of the settings of a recipe."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from ownbert.settings import Setting, dotted_name, settings_of


def recipe_command(
    recipe: type,
    names: Sequence[str],
    *,
    command: str,
    instead: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Puts an option for each of the settings ``names`` of ``recipe``, in this order, in the place
    of the parameter ``settings`` of a command.

    The function gets those that were given, or are None, by their dotted names. command: its name,
    by which a setting may have another text. instead: options that are declared elsewhere, by name.
    """
    options: dict[str, Any] = {}
    dotted: dict[str, str] = {}
    for name in names:
        full = dotted_name(recipe, name)
        about = settings_of(recipe)[full].in_command(command)
        flag = about.option or f"--{full.rpartition('.')[2].replace('_', '-')}"
        parameter = flag.partition("/")[0].lstrip("-").replace("-", "_")
        options[parameter] = (instead or {}).get(name) or _option(flag, about)
        dotted[parameter] = full

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
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


def _plain(kind: Any) -> type:
    """What the option of a setting of type ``kind`` takes: text for what is written with commas."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return next((k for k in kinds if k in (bool, int, float)), str)


def shown_default(default: Any, flag: str) -> str:
    """The default of a recipe as ``--help`` shows it; nothing where there is none."""
    if isinstance(default, bool):
        on, _, off = flag.partition("/")
        return (on if default else off).lstrip("-") if off else ""
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, tuple):
        return ",".join(map(str, default))
    return "" if default is None else str(default)
