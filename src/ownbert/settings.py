"""Declaration of settings in recipes, and their overriding by a recipe file, dotted overrides and
options, in this order.

A recipe is a frozen dataclass of sections, each a frozen dataclass of settings; the settings of
commands are such dataclasses as well. Help, panel and valid values of a setting are declared with
its default; the command line is generated from them.
"""

import difflib
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ownbert.checks import Check, OneOf
from ownbert.exceptions import InputError, in_short
from ownbert.files.json_files import parse_yaml, read_yaml
from ownbert.language.messages import Message, Option, is_on_command_line

# Options with a second name of one letter.
# Options in help texts, which are arguments in the documentation of Python.
_OPTION = re.compile("--[a-z][a-z0-9-]*[a-z0-9]")
_SHORT = {"output": ["-o"], "quiet": ["-q"]}
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The metadata of a setting, beside its type and default.

    Args:
        help: text in ``--help``.
        panel: panel of ``--help`` that shows the setting.
        shown: default in ``--help``, if it depends on the data or the model; False: none.
        option: name on the command line, if it differs from the field's; several names separated by
            spaces, ``--on/--off`` for both values of a switch.
        metavar: placeholder of the value in ``--help``.
        hidden: whether ``--help`` omits the setting.
        rare: whether only ``--help-all`` shows the setting.
        argument: whether it is an argument of a command, not an option.
        path: whether the value is a file or folder.
        check: function that rejects invalid values; None is always valid.
        resumable: whether a resumed run may change the value.
        commands: fields that differ in a command, by command.
        needs: settings of the same command without which this one has no effect; one is enough.
        without: settings of the same command with which this one has no effect.
        required: message if the setting is missing, except for a dry run.
    """

    help: str = ""
    panel: str | None = None
    shown: str | bool | None = None
    option: str | None = None
    metavar: str | None = None
    hidden: bool = False
    rare: bool = False
    argument: bool = False
    path: bool = False
    check: Check | None = None
    resumable: bool = False
    commands: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    required: str | None = None
    # Filled in by ``settings_of`` and ``fields_of``.
    default: Any = None
    type: Any = None

    def flags(self, name: str) -> list[str]:
        """The setting's names on the command line, for a field called ``name``."""
        last = name.rpartition(".")[2]
        usual = [f"--{last.replace('_', '-')}", *_SHORT.get(last, ())]
        return self.option.split() if self.option else usual

    def in_command(self, command: str) -> "Setting":
        return replace(self, **self.commands.get(command, {}))


def setting(default: Any, help: str = "", panel: str | None = None, **about: Any) -> Any:
    """Declare a field as a setting."""
    metadata = {"setting": Setting(help=help, panel=panel, **about)}
    return field(default=default, metadata=metadata)


def changed(declared: Any, **changes: Any) -> Any:
    """Declare a field as another one, with changes of its setting."""
    default = changes.pop("default", declared.default)
    return field(
        default=default, metadata={"setting": replace(declared.metadata["setting"], **changes)}
    )


def same_setting(kind: type, name: str, **changes: Any) -> Any:
    """Declare a field as the setting of this name in a recipe or its section, with changes."""
    return changed(kind.__dataclass_fields__[name], **changes)


def section(default: Any, **changes: Mapping[str, Any]) -> Any:
    """Declare a field as a section.

    Args:
        changes: fields that differ in this recipe, by setting.
    """
    return field(default=default, metadata={"changes": changes})


@cache
def settings_of(recipe: type) -> Mapping[str, Setting]:
    """All settings of a recipe class by their dotted names, in order."""
    return dict(_each(recipe(), "", {}))


def _each(
    section: Any, prefix: str, changes: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, Setting]]:
    hints = get_type_hints(type(section))
    for f in fields(section):
        default = getattr(section, f.name)
        if is_dataclass(default):
            yield from _each(default, f"{prefix}{f.name}.", f.metadata.get("changes", {}))
        else:
            declared = f.metadata.get("setting", Setting())
            setting_fields = {"default": default, "type": hints[f.name], **changes.get(f.name, {})}
            yield prefix + f.name, replace(declared, **setting_fields)


class CheckedSettings:
    """Base class of recipes and their sections, whose values are checked when they are made.

    Args:
        name: name of the section in messages; empty for a whole recipe.

    Raises:
        InputError: a value is invalid.
    """

    _prefix = ""

    def __init_subclass__(cls, name: str = "") -> None:
        cls._prefix = f"{name}." if name else cls._prefix

    def __post_init__(self) -> None:
        for f in fields(self):  # pyright: ignore
            declared, value = f.metadata.get("setting"), getattr(self, f.name)
            if declared is not None and declared.check is not None and value is not None:
                declared.check(self._prefix + f.name, value)


def resolve(
    kind: type[T],
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    base: T | None = None,
) -> T:
    """Build a recipe from defaults, a file, overrides and options; later ones take precedence.

    Args:
        config: YAML file with sections.
        overrides: ``section.name=value``.
        options: values by dotted name or its last part (``learning_rate``); None: not given.
        base: recipe to start from instead of the defaults.

    Raises:
        InputError: a setting does not exist, or a value has the wrong type.
    """
    values: dict[str, Any] = {}
    if config is not None:
        values = read_yaml(Path(config))
        if not isinstance(values, dict):
            raise InputError("{config} must contain sections such as optim: and run:", config)
    for override in overrides:
        name, sign, text = override.partition("=")
        if not sign:
            raise InputError(
                "{override!r} is not an override; write section.name=value, and files with "
                "their options, such as {--train} FILE",
                override,
            )
        _put(values, dotted_name(kind, name.strip()), _value(name.strip(), text))
    for name, value in (options or {}).items():
        if value is not None:
            _put(values, dotted_name(kind, name), value)
    return apply_values(base or kind(), values)


def dump(recipe: Any) -> str:
    """Serialise a recipe to YAML that ``resolve`` reads back to an equal recipe."""
    import yaml  # here, because every command and worker imports this module

    return yaml.safe_dump(recipe_values(recipe), sort_keys=False, allow_unicode=True)


def recipe_values(recipe: Any) -> dict[str, Any]:
    """The values of a recipe as YAML has them: nested dictionaries, and lists for tuples."""
    return _plain(asdict(recipe))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _value(name: str, text: str) -> Any:
    """Parse the value of an override as YAML."""
    try:
        return parse_yaml(text, name)
    except InputError:
        raise InputError("{name} is {text}, which is not YAML", name, in_short(text)) from None


@cache
def _names(kind: type) -> Mapping[str, str]:
    """Map short and dotted names of all settings to dotted names; the first short name wins."""
    dotted = list(settings_of(kind))
    short = {name.rpartition(".")[2]: name for name in reversed(dotted)}
    return short | {name: name for name in dotted}


def accepts_settings(recipe: type) -> Callable[[F], F]:
    """Decorate a function that accepts the settings of ``recipe`` as ``**options``: its signature
    and its docstring, as ``help`` shows them, list the settings by name."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        parameters = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        lines = []
        for dotted, declared in settings_of(recipe).items():
            name = dotted.removesuffix(".folder").rpartition(".")[2]  # model.folder is model
            first = _names(recipe).get(name, dotted) == dotted
            if not first or name in own.parameters or not declared.help:
                continue
            about: Any = {"default": declared.default, "annotation": declared.type}
            parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, **about))
            shown = f" Default: {declared.shown}." if isinstance(declared.shown, str) else ""
            text = _OPTION.sub(lambda found: Option(found[0]).shown(False), declared.help)
            line = f"    {name}: {text}{shown}"
            lines.append(textwrap.fill(line, 100, subsequent_indent=" " * 8))
        function.__signature__ = own.replace(parameters=parameters)  # pyright: ignore
        doc = f"{inspect.cleandoc(function.__doc__ or '')}\n\nSettings:\n"
        function.__doc__ = doc + "\n".join(lines)
        return function

    return decorate


def dotted_name(kind: type, name: str) -> str:
    """The full name of the setting ``name`` of a recipe; ``InputError`` if it does not exist."""
    names = _names(kind)
    if name not in names:
        dotted = sorted(settings_of(kind))
        near = difflib.get_close_matches(name, dotted, n=3, cutoff=0.5)
        hint = "--dry-run shows them all"
        if not is_on_command_line():
            hint = Message("the settings are {dotted}", ", ".join(dotted))
        advice = Message("did you mean {near}?", ", ".join(near)) if near else hint
        raise InputError("there is no setting {name}; {advice}", in_short(name), advice)
    return names[name]


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError("{section} must be a section, not {values}", section, in_short(values))
    values[last] = value


def apply_values(settings: Any, values: Any, prefix: str = "") -> Any:
    """A copy of ``settings`` with other ``values``, applied section by section.

    Raises:
        InputError: a setting does not exist, or a value has the wrong type; the message names the
            setting with its ``prefix``.
    """
    if not isinstance(values, Mapping):
        raise InputError(
            "{prefix} must be a section, not {values}", prefix.rstrip("."), in_short(values)
        )
    hints = get_type_hints(type(settings))
    declared = {f.name: f.metadata.get("setting") for f in fields(settings)}
    changes = {}
    for name, value in values.items():
        if name not in hints:
            subject = Message("{source} has", prefix.rstrip(".")) if prefix else "a recipe has"
            known = difflib.get_close_matches(str(name), hints, n=3, cutoff=0.5) or hints
            name = in_short(name).strip("'")
            raise InputError(
                "there is no setting {prefix}{name}; {subject} {options}",
                prefix,
                name,
                subject,
                ", ".join(known),
            )
        current = getattr(settings, name)
        if is_dataclass(current):
            changes[name] = apply_values(current, value or {}, f"{prefix}{name}.")
        else:
            if value is not None and (choice := _choice_of(declared[name])) is not None:
                choice(prefix + name, value)
            changes[name] = _checked(value, hints[name], prefix + name)
    return replace(settings, **changes)


def _choice_of(declared: Setting | None) -> OneOf | None:
    """The check of a setting that is one of several names."""
    check = None if declared is None else declared.check
    names = isinstance(check, OneOf) and all(isinstance(one, str) for one in check.allowed)
    return check if names else None  # pyright: ignore


def _checked(value: Any, hint: Any, name: str) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        origin = get_origin(kind)
        if kind is type(None) and value is None:
            return None
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                return float(value)  # YAML parses 1e-4 as a string
            except (ValueError, OverflowError):
                continue
        if kind is str and isinstance(value, str | Path):
            return str(value)
        if origin is Mapping and isinstance(value, Mapping):
            return dict(value)
        if is_dataclass(kind) and isinstance(value, Mapping):
            return apply_values(kind(), value, f"{name}.")
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(
                _checked(v, get_args(kind)[0], f"{name}[{i}]") for i, v in enumerate(value)
            )
        if origin is tuple and isinstance(value, str) and get_args(kind)[0] is str:
            return tuple(v.strip() for v in value.split(","))
        if origin is tuple and isinstance(value, str | int | float):
            parts = (_value(name, part) for part in str(value).split(","))
            return tuple(_checked(part, get_args(kind)[0], name) for part in parts)
    names = ("none" if k is type(None) else getattr(k, "__name__", str(k)) for k in kinds)
    type_names = " or ".join(names)
    raise InputError("{name} must be {type_names}, not {value}", name, type_names, in_short(value))
