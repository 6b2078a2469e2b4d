"""Settings from a recipe file, dotted overrides and options, in this order; and back to YAML."""

import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from ownbert.errors import InputError

T = TypeVar("T")


def resolve(
    kind: type[T],
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    base: T | None = None,
) -> T:
    """A recipe: ``base`` (by default the defaults of ``kind``), then a YAML file, then overrides
    ``section.name=value``, then options.

    options: by the last part of their name (``learning_rate``) or dotted; None is "not given".
    Raises ``InputError`` for a name that does not exist and for a value of the wrong type.
    """
    values: dict[str, Any] = {}
    if config is not None:
        values = _read(Path(config))
    for override in overrides:
        name, sign, text = override.partition("=")
        if not sign:
            raise InputError(f"{override!r} is not an override; write section.name=value")
        _put(values, _dotted(kind, name.strip()), _value(name.strip(), text))
    for name, value in (options or {}).items():
        if value is not None:
            _put(values, _dotted(kind, name), value)
    return _apply(base or kind(), values)


def dump(recipe: Any) -> str:
    """YAML that ``resolve`` reads back to an equal recipe."""
    return yaml.safe_dump(_plain(asdict(recipe)), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold sections such as optim: and run:")
    return values


def _value(name: str, text: str) -> Any:
    """What is written on the command line."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(f"{name} is {text!r}, which is not YAML") from None


def _names(kind: Any, prefix: str = "") -> dict[str, str]:
    """Short and dotted names of all settings -> dotted name; a short name is that of the first."""
    names = {}
    hints = get_type_hints(kind)
    for f in fields(kind):
        if is_dataclass(hints[f.name]):
            names = _names(hints[f.name], f"{prefix}{f.name}.") | names
        else:
            names[prefix + f.name] = prefix + f.name
            names.setdefault(f.name, prefix + f.name)
    return names


def _dotted(kind: Any, name: str) -> str:
    names = _names(kind)
    if name not in names:
        dotted = sorted(set(names.values()))
        near = difflib.get_close_matches(name, dotted, n=3, cutoff=0.5) or dotted
        raise InputError(f"there is no setting {name!r}; did you mean {', '.join(near)}?")
    return names[name]


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f"{section} must be a section, not {values!r}")
    values[last] = value


def _apply(settings: Any, values: Any, prefix: str = "") -> Any:
    """``settings`` with ``values`` in place of the defaults, section by section."""
    if not isinstance(values, Mapping):
        raise InputError(f"{prefix.rstrip('.')} must be a section, not {values!r}")
    hints = get_type_hints(type(settings))
    changes = {}
    for name, value in values.items():
        if name not in hints:
            there = f"{prefix.rstrip('.')} has" if prefix else "a recipe has"
            raise InputError(f"there is no setting {prefix}{name}; {there} {', '.join(hints)}")
        current = getattr(settings, name)
        if is_dataclass(current):
            changes[name] = _apply(current, value or {}, f"{prefix}{name}.")
        else:
            changes[name] = _checked(value, hints[name], prefix + name)
    return replace(settings, **changes)


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
                return float(value)  # YAML reads 1e-4 as text
            except ValueError:
                continue
        if kind is str and isinstance(value, str | Path):
            return str(value)
        if is_dataclass(kind) and isinstance(value, Mapping):
            return _apply(kind(), value, f"{name}.")
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(
                _checked(v, get_args(kind)[0], f"{name}[{place}]") for place, v in enumerate(value)
            )
        if origin is tuple and isinstance(value, str) and get_args(kind)[0] is str:
            return tuple(v.strip() for v in value.split(","))
        if origin is tuple and isinstance(value, str | int | float):
            parts = (_value(name, part) for part in str(value).split(","))
            return tuple(_checked(part, get_args(kind)[0], name) for part in parts)
    names = ("none" if k is type(None) else getattr(k, "__name__", str(k)) for k in kinds)
    wanted = " or ".join(names)
    raise InputError(f"{name} must be {wanted}, not {value!r}")
