"""Reads and writes JSON, and reads YAML."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ownbert.checks import Check
from ownbert.exceptions import InputError
from ownbert.files.text_files import read_text
from ownbert.files.writing import write_text

# Most bytes of a JSON file (the largest published tokenizer.json has 35 MB) and of a recipe.
_MOST_JSON = 1 << 28
_MOST_YAML = 1 << 20
# Maximum nesting of objects and lists: far below Python's recursion limit, so that values can be
# copied, compared and written.
MOST_NESTED = 100
# Whole numbers with more bits have no float: 400 digits would overflow in any computation.
_MOST_BITS = 1023
# Most objects and lists in a recipe. YAML aliases can expand exponentially.
_MOST_PARTS = 100_000


def require_json_name(path: str | os.PathLike[str]) -> None:
    """Raise ``InputError`` unless the name ends with .json or has no extension."""
    if Path(path).suffix.lower() not in ("", ".json"):
        raise InputError("{path}: the output is JSON; its name must end with .json", path)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def read_json(
    path: str | os.PathLike[str],
    kind: type = dict,
    *,
    missing: Any = None,
    check: Check | None = None,
    pipe: bool = False,
) -> Any:
    """Read a JSON file.

    Args:
        missing: value for a missing file; by default that is an error.
        check: schema of the value, see ``ownbert.checks``.
        pipe: whether the path may be a pipe.

    Raises:
        InputError: the file cannot be read, or does not contain JSON of that type.
    """
    if missing is not None and not Path(path).exists():
        return missing
    value = _parsed(path, read_text(path, most=_MOST_JSON, pipe=pipe), json.loads, "valid JSON")
    if not isinstance(value, kind):
        raise InputError(
            "{path} must contain a JSON {kind}", path, "object" if kind is dict else kind.__name__
        )
    if check is not None:
        check(str(path), value)
    return value


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file. Raises ``InputError`` if it cannot be read."""
    return parse_yaml(read_text(path, most=_MOST_YAML), path)


def parse_yaml(text: str, source: str | os.PathLike[str]) -> Any:
    """Parse YAML; the ``InputError`` for malformed text names ``source``."""
    import yaml

    return _parsed(source, text, yaml.safe_load, "YAML")


def is_nested(value: Any) -> bool:
    """Whether objects and lists are nested too deeply."""
    try:
        for _ in _inner_levels(value):
            pass
    except RecursionError:
        return True
    return False


def _inner_levels(value: Any) -> Iterator[list[Any]]:
    """Yield the objects and lists inside a value, level by level; ``RecursionError`` if they are
    nested too deeply."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MOST_NESTED):
        inner = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for some in inner for each in some if isinstance(each, dict | list)]
        if not level:
            return
        yield level
    raise RecursionError


def _refuse_long_number(values: Iterable[Any]) -> None:
    """Raise ``OverflowError`` for a whole number that no float can hold."""
    if any(type(value) is int and value.bit_length() > _MOST_BITS for value in values):
        raise OverflowError


def _parsed(
    source: str | os.PathLike[str], text: str, parse: Callable[[str], Any], language: str
) -> Any:
    try:
        value, parts = parse(text), 0
        _refuse_long_number([value])
        for level in _inner_levels(value):
            parts += len(level)
            for each in level:
                _refuse_long_number(each.values() if isinstance(each, dict) else each)
            if language == "YAML" and parts > _MOST_PARTS:
                raise InputError("{source} contains too many objects and lists", source)
        return value
    except InputError:
        raise
    except Exception as error:  # errors of yaml, and of the constructors that it calls
        reason = " ".join(str(error).split())
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, OverflowError) or "integer string conversion" in reason:
            reason = "a whole number has too many digits"
        raise InputError("{source} is not {language}: {reason}", source, language, reason) from None
