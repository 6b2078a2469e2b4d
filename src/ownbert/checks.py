"""Checks of values: of settings, of options, and of the keys of JSON and YAML files of others.

    CONFIG = record({"num_labels": whole(1, 10_000), "architectures": list_of(text)})
    values = read_json(path, check=CONFIG)

A check takes the name of a value (``optim.learning_rate``, ``config.json: num_labels``) and the
value. It raises ``InputError`` if the value is of another type, or outside of the range. Keys of
files without a check, and keys that are missing, are left to the reader.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Interval:
    """A check that a number is between two others.

    Args:
        ends: for each end a bracket if it is included, a parenthesis if not.
        wanted: the same in words.
    """

    low: float
    high: float
    ends: str
    wanted: str

    def __call__(self, name: str, value: Any) -> None:
        try:
            above = value >= self.low if self.ends[0] == "[" else value > self.low
            valid = above and (value <= self.high if self.ends[1] == "]" else value < self.high)
        except TypeError:  # in Python anything may be given
            valid = False
        if not valid:
            raise InputError(f"{name} is {in_short(value)}; it must be {self.wanted}")


def between(low: float, high: float, ends: str = "()") -> Interval:
    """A check that a value is between two numbers; ``ends`` as of an ``Interval``."""
    interval = f"in {ends[0]}{_grouped(low)}, {_grouped(high)}{ends[1]}"
    return Interval(low, high, ends, f"between {low} and {high}" if ends == "()" else interval)


def up_to(most: float) -> Interval:
    """A check that a value is positive and not more than ``most`` (see ``ownbert.limits``)."""
    return Interval(0, most, "(]", f"more than 0 and at most {_grouped(most)}")


positive = Interval(0, float("inf"), "(]", "more than 0")


def _grouped(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else f"{number:,}"


def choice(*allowed: str) -> Check:
    """One of the names that a setting can have."""

    def check(name: str, value: str) -> None:
        if value not in allowed:
            raise InputError(f"{name} is {in_short(value)}; one of {', '.join(allowed)}")

    return check


def each(check: Check) -> Check:
    """A check of every value of a sequence."""

    def check_all(name: str, values: Sequence[Any]) -> None:
        for value in values:
            check(name, value)

    return check_all


def count(least: int, most: int) -> Check:
    """A whole number from ``least`` to ``most``; the message is about the end that it passes."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            wanted = f"a whole number, at least {least}"
            raise InputError(f"{name} is {in_short(value)}; it must be {wanted}")
        if value > most:
            raise InputError(f"{name} is {in_short(value)}; it must be at most {most:,}")

    return check


def number_in(interval: Interval) -> Check:
    """A number in an interval, and not text that has such a value."""

    def check(name: str, value: Any) -> None:
        any_number(name, value)
        interval(name, value)

    return check


def known(*allowed: str) -> Check:
    """One of the names that a program knows."""

    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise InputError(f"{name} {in_short(value)} is not known; one of {', '.join(allowed)}")

    return check


any_number = _must_be(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"
)
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
