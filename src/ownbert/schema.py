"""What JSON and YAML files of others must hold: a check for each key, which names file and key.

    CONFIG = record({"num_labels": whole(1, 10_000), "architectures": list_of(text)})
    values = read_json(path, check=CONFIG)

A check takes where a value stands (``config.json: num_labels``) and the value. It raises
``InputError`` if the value is of another type, or outside of the range. Keys without a check, and
keys that are missing, are left to the reader.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ownbert.errors import InputError, in_short

Check = Callable[[str, Any], None]

_NAMES = 100  # characters of a key in a message
_ANY = 1e18  # bounds beyond it are not worth mentioning


def _must_be(valid: Callable[[Any], bool], wanted: str) -> Check:
    def check(where: str, value: Any) -> None:
        if not valid(value):
            raise InputError(f"{where} is {in_short(value)}; it must be {wanted}")

    return check


def whole(low: int, high: int) -> Check:
    """A whole number from ``low`` to ``high``."""
    wanted = "a whole number" if low < -_ANY else f"a whole number from {low:,} to {high:,}"
    return _must_be(lambda value: type(value) is int and low <= value <= high, wanted)


def number(low: float, high: float) -> Check:
    """A finite number from ``low`` to ``high``."""
    wanted = "a finite number" if low < -_ANY else f"a number from {low:g} to {high:g}"
    return _must_be(lambda value: type(value) in (int, float) and low <= value <= high, wanted)


text = _must_be(lambda value: isinstance(value, str), "text")
truth = _must_be(lambda value: isinstance(value, bool), "true or false")
object_ = _must_be(lambda value: isinstance(value, dict), "an object")


def one_of(*allowed: Any) -> Check:
    """One of these values."""
    return _must_be(
        lambda value: any(type(value) is type(one) and value == one for one in allowed),
        f"one of {', '.join(map(str, allowed))}",
    )


def maybe(check: Check) -> Check:
    """The same, or null."""

    def check_it(where: str, value: Any) -> None:
        if value is not None:
            check(where, value)

    return check_it


def either(*checks: Check, wanted: str) -> Check:
    """What any of the checks takes; ``wanted`` says what that is."""

    def check_it(where: str, value: Any) -> None:
        for check in checks:
            try:
                check(where, value)
            except InputError:
                continue
            return
        raise InputError(f"{where} is {in_short(value)}; it must be {wanted}")

    return check_it


def list_of(check: Check, *, least: int = 0, most: int = 10_000_000) -> Check:
    """A list of what ``check`` takes, of ``least`` to ``most`` entries."""

    def check_it(where: str, value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            several = f" of {least:,} or more" if least else ""
            raise InputError(f"{where} is {in_short(value)}; it must be a list{several}")
        for index, entry in enumerate(value):
            check(f"{where}[{index}]", entry)

    return check_it


def anything(where: str, value: Any) -> None:
    """Any value."""


def dict_of(check: Check, *, most: int = 10_000_000) -> Check:
    """An object of at most ``most`` values, which ``check`` takes, whatever its keys."""

    def check_it(where: str, value: Any) -> None:
        object_(where, value)
        if len(value) > most:
            raise InputError(f"{where} has {len(value):,} entries; it must have at most {most:,}")
        for key, entry in value.items():
            check(_inner(where) + key[:_NAMES], entry)

    return check_it


def record(
    checks: Mapping[str, Check], *, required: tuple[str, ...] = (), closed: bool = False
) -> Check:
    """An object with a check for each key that is known; others may have any value.

    Args:
        checks: by key.
        required: keys that must be there.
        closed: whether there may be no others.
    """

    def check_it(where: str, value: Any) -> None:
        object_(where, value)
        inner = _inner(where)
        for key in required:
            if key not in value:
                raise InputError(f"{inner}{key} is missing")
        if closed and (others := [key for key in value if key not in checks]):
            raise InputError(
                f"{inner}{in_short(others[0])} is not known; one of {', '.join(checks)}"
            )
        for key, check in checks.items():
            if key in value:
                check(inner + key, value[key])

    return check_it


def _inner(where: str) -> str:
    """What stands before the name of a key; the first name is that of the file."""
    return f"{where}." if ": " in where else f"{where}: "
