"""Wrong command lines and files, hundreds of them: 0 or 2, one line, nothing left, nothing changed,
within bounds of memory and time."""

from collections.abc import Iterable, Iterator

import pytest

from hostile.cases import FOLDERS, Case, broken_folders, option_cases
from hostile.checks import failures
from hostile.commands import BASE, TRAINED, every_command
from hostile.place import Place

# One case of so many is tried; their choice depends on their names alone. All are some twenty-five
# thousand, and take hours.
PART_OF_OPTIONS = 8
PART_OF_FOLDERS = 60


def held(cases: Iterable[Case], place: Place) -> int:
    """Assert that all hold; how many they are."""
    tried = list(cases)
    found = list(failures(tried, place))
    assert not found, f"{len(found)} of {len(tried)} cases:\n" + "\n".join(found)
    return len(tried)


def sample() -> Iterator[Case]:
    """One of each command, which is refused before anything is learnt or read."""
    for path in every_command():
        cases = (case for case in option_cases(path) if case.refused and _cheap(case))
        yield min(cases, key=lambda case: case.order)


def _cheap(case: Case) -> bool:
    names = [f"in/{name}" for name in TRAINED]
    return not any(str(a).endswith(n) or f"{n}/" in str(a) for a in case.arguments for n in names)


def test_a_sample_is_refused_in_a_line(place: Place):
    cases = list(sample())
    assert held(cases, place) == len(every_command())


@pytest.mark.slow
@pytest.mark.parametrize("path", BASE, ids=" ".join)
def test_wrong_options_and_files(path: tuple[str, ...], place: Place):
    cases = [c for c in option_cases(path) if c.order % PART_OF_OPTIONS == 0]
    assert held(cases, place) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_folders(name: str, place: Place):
    place.made(name)
    cases = [c for c in broken_folders(place.inputs, name) if c.order % PART_OF_FOLDERS == 0]
    assert held(cases, place) >= 5
