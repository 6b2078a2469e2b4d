"""Checks of values: settings, options, and keys of JSON and YAML files from elsewhere.

    CONFIG = record({"num_labels": whole(1, 10_000), "architectures": list_of(text)})
    values = read_json(path, check=CONFIG)

A check takes the name of a value (``optim.learning_rate``, ``config.json: num_labels``) and the
value. It raises ``InputError`` if the value has the wrong type or is out of range. Unchecked and
missing keys are left to the code that reads the file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ownbert.exceptions import InputError, in_short
from ownbert.language.messages import Message

Check = Callable[[str, Any], None]

_NAMES = 100  # longest key in a message, in characters
_ANY = 1e18  # larger bounds are omitted from messages


def checked(default: Any, check: Check) -> Any:
    """A field of a dataclass with its check, so that a damaged or hostile file cannot exhaust the
    memory."""
    return field(default=default, metadata={"check": check})


def check_fields(config: Any) -> None:
    """Raise ``InputError`` for the first field whose value fails its check."""
    for one in fields(config):
        if "check" in one.metadata:
            one.metadata["check"](one.name, getattr(config, one.name))


def whole_in_environment(name: str, default: int) -> int:
    """The whole number in an environment variable; ``default`` if it is empty or not set.

    Raises:
        InputError: the variable is something else.
    """
    value = os.environ.get(name, "").strip() or str(default)
    if not (value.isascii() and value.isdecimal() and len(value) < 10):
        raise InputError(
            "the environment variable {name} is {value}; it must be a whole number",
            name,
            in_short(value),
        )
    return int(value)


def _must_be(valid: Callable[[Any], bool], wanted: str) -> Check:
    def check(where: str, value: Any) -> None:
        if not valid(value):
            raise InputError(
                "{where} is {value}; it must be {wanted}", where, in_short(value), wanted
            )

    return check


def whole(low: int, high: int) -> Check:
    """Check for an integer from ``low`` to ``high``."""
    wanted = (
        "a whole number"
        if low < -_ANY
        else Message("a whole number from {low:,} to {high:,}", low, high)
    )
    return _must_be(lambda value: type(value) is int and low <= value <= high, wanted)


def number(low: float, high: float) -> Check:
    """Check for a finite number from ``low`` to ``high``."""
    wanted = (
        "a finite number"
        if low < -_ANY
        else Message("a number from {low:g} to {high:g}", low, high)
    )
    return _must_be(lambda value: type(value) in (int, float) and low <= value <= high, wanted)


@dataclass(frozen=True)
class Interval:
    """A check that a number lies in an interval.

    Args:
        ends: for each end a bracket if it is included, a parenthesis if not.
        wanted: description of the interval for messages.
    """

    low: float
    high: float
    ends: str
    wanted: str

    def __call__(self, name: str, value: Any) -> None:
        try:
            above = value >= self.low if self.ends[0] == "[" else value > self.low
            valid = above and (value <= self.high if self.ends[1] == "]" else value < self.high)
        except TypeError:  # the Python API accepts any type
            valid = False
        if not valid:
            raise InputError(
                "{name} is {value}; it must be {wanted}", name, in_short(value), self.wanted
            )


def between(low: float, high: float, ends: str = "()") -> Interval:
    """Check for a value between two numbers; ``ends`` is explained in ``Interval``."""
    wanted = Message("between {low} and {high}", low, high)
    if ends != "()":
        wanted = Message("in {interval}", f"{ends[0]}{_grouped(low)}, {_grouped(high)}{ends[1]}")
    return Interval(low, high, ends, wanted)


def up_to(most: float) -> Interval:
    """Check for a positive value of at most ``most`` (see ``ownbert.limits``)."""
    return Interval(0, most, "(]", Message("more than 0 and at most {grouped}", _grouped(most)))


positive = Interval(0, float("inf"), "(]", "more than 0")


def _grouped(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else f"{number:,}"


def each(check: Check) -> Check:
    """Check every value of a sequence."""

    def check_all(name: str, values: Sequence[Any]) -> None:
        for value in values:
            check(name, value)

    return check_all


def count(least: int, most: int) -> Check:
    """Check for an integer from ``least`` to ``most``; the message names the bound exceeded."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            wanted = Message("a whole number, at least {least}", least)
            raise InputError(
                "{name} is {value}; it must be {wanted}", name, in_short(value), wanted
            )
        if value > most:
            raise InputError(
                "{name} is {value}; it must be at most {most:,}", name, in_short(value), most
            )

    return check


def number_in(interval: Interval) -> Check:
    """Check for a number in an interval; rejects text that looks like a number."""

    def check(name: str, value: Any) -> None:
        any_number(name, value)
        interval(name, value)

    return check


def known(*allowed: str) -> Check:
    """Check for one of the supported names."""

    def check(name: str, value: Any) -> None:
        if value not in allowed:
            raise InputError(
                "{name} {value} is not known; use one of {allowed}",
                name,
                in_short(value),
                ", ".join(allowed),
            )

    return check


any_number = _must_be(
    lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"
)
text = _must_be(lambda value: isinstance(value, str), "text")
truth = _must_be(lambda value: isinstance(value, bool), "true or false")
object_ = _must_be(lambda value: isinstance(value, dict), "an object")


@dataclass(frozen=True)
class OneOf:
    """A check for one of the ``allowed`` values."""

    allowed: tuple[Any, ...]

    def __call__(self, name: str, value: Any) -> None:
        if not any(type(value) is type(one) and value == one for one in self.allowed):
            allowed = ", ".join(map(str, self.allowed))
            raise InputError(
                "{name} is {value}; it must be one of {allowed}", name, in_short(value), allowed
            )


def one_of(*allowed: Any) -> OneOf:
    """Check for one of these values."""
    return OneOf(allowed)


def maybe(check: Check) -> Check:
    """Accept null, or any value that passes ``check``."""

    def check_it(where: str, value: Any) -> None:
        if value is not None:
            check(where, value)

    return check_it


def either(*checks: Check, wanted: str) -> Check:
    """Accept values that pass any of the checks; ``wanted`` describes them in messages."""

    def check_it(where: str, value: Any) -> None:
        for check in checks:
            try:
                check(where, value)
            except InputError:
                continue
            return
        raise InputError("{where} is {value}; it must be {wanted}", where, in_short(value), wanted)

    return check_it


def list_of(check: Check, *, least: int = 0, most: int = 10_000_000) -> Check:
    """Check for a list of ``least`` to ``most`` entries that all pass ``check``."""

    def check_it(where: str, value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            several = Message(" of {least:,} or more", least) if least else ""
            raise InputError(
                "{where} is {value}; it must be a list{several}", where, in_short(value), several
            )
        for index, entry in enumerate(value):
            check(f"{where}[{index}]", entry)

    return check_it


def anything(where: str, value: Any) -> None:
    """Accept any value."""


def dict_of(check: Check, *, most: int = 10_000_000) -> Check:
    """Check for an object with arbitrary keys and at most ``most`` values that all pass
    ``check``."""

    def check_it(where: str, value: Any) -> None:
        object_(where, value)
        if len(value) > most:
            raise InputError(
                "{where} has {count:,} entries; it must have at most {most:,}",
                where,
                len(value),
                most,
            )
        for key, entry in value.items():
            check(_inner(where) + key[:_NAMES], entry)

    return check_it


def record(
    checks: Mapping[str, Check], *, required: tuple[str, ...] = (), closed: bool = False
) -> Check:
    """Check the known keys of an object; other keys may have any value.

    Args:
        required: keys that must be present.
        closed: whether other keys are rejected.
    """

    def check_it(where: str, value: Any) -> None:
        object_(where, value)
        inner = _inner(where)
        for key in required:
            if key not in value:
                raise InputError("{inner}{key} is missing", inner, key)
        if closed and (others := [key for key in value if key not in checks]):
            raise InputError(
                "{inner}{others} is not known; use one of {checks}",
                inner,
                in_short(others[0]),
                ", ".join(checks),
            )
        for key, check in checks.items():
            if key in value:
                check(inner + key, value[key])

    return check_it


def _inner(where: str) -> str:
    """The prefix of a nested key's name; the first component is the file name."""
    return f"{where}." if ": " in where else f"{where}: "
