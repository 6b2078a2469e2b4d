"""Commands that are interrupted, ended or killed at any moment."""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from hostile.checks import one_line
from hostile.forks import Outcome, finish, resident, run, start
from hostile.place import Place, state
from hostile.writing import FILES, WRITING, Writing, undisturbed

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
OLD = "from before\n"
# Of each signal and command.
MOMENTS = 2


def stopped(writing: Writing, folder: Path, number: int, seconds: float) -> Outcome:
    """A run that gets a signal after so many seconds."""
    ready, tell = os.pipe()
    plots = writing.path == ("relevance",)
    memory, began = resident(), time.monotonic()
    child = start(writing.line(), folder, prepare=lambda: os.write(tell, b"x"), plots=plots)
    os.read(ready, 1)  # from here on the command decides what a signal does
    for descriptor in (ready, tell):
        os.close(descriptor)
    time.sleep(0.005 + seconds)
    os.kill(child, number)  # a child that has ended waits for us
    return finish(child, folder, began=began, memory=memory)


def check_stopped(name: str, place: Place, number: int, rng: random.Random) -> list[str]:
    """Stop a command once, and run it to its end afterwards."""
    writing = WRITING[name]
    whole, wall = _whole(name, place)
    folder = place.folder(f"stopped-{name}")
    output = folder / writing.output
    before = rng.random() < 0.5 and name in FILES
    if before:
        output.write_text(OLD)
    there, inputs = state(folder), state(place.inputs)
    seconds = rng.uniform(0, wall)
    ended = stopped(writing, folder, number, seconds)
    found = []
    allowed = (0, -signal.SIGKILL) if number == signal.SIGKILL else (0, 2)
    if ended.code not in allowed:
        found.append(f"exit code {ended.code}")
    if ended.code == 2:
        found += one_line(ended, start="")
    # It may have been stopped when it had written everything.
    partly = state(folder) != there and writing.outcome(folder) != whole
    if ended.code == 2 and not writing.kept and partly:
        found.append(f"left {sorted(state(folder).keys() ^ there.keys())}")
    kept = before and output.exists() and output.read_bytes() == OLD.encode()
    if name in FILES and output.exists() and not kept and writing.outcome(folder) != whole:
        found.append("half of the output")
    if before and not output.exists():
        found.append("the output from before is gone")
    # To its end.
    done = run(writing.line(again=True), folder, plots=writing.path == ("relevance",))
    finished = ended.code == 0 and done.code == 2 and "already contains" in done.err
    if done.code != 0 and not finished:
        found.append(f"not continued: {done.code} {done.err[-600:]}")
    elif writing.outcome(folder) != whole and name != "fit":
        found.append("another result than that of a run that was not stopped")
    if state(place.inputs) != inputs:
        found.append("inputs are changed")
    when = f"{name}, {signal.Signals(number).name} after {seconds:.3f} of {wall:.3f} s"
    return [f"{when}: {what}\n    {ended.err!r}" for what in found]


_KNOWN: dict[tuple[Path, str], tuple[dict[str, str], float]] = {}


def _whole(name: str, place: Place) -> tuple[dict[str, str], float]:
    key = (place.root, name)
    if key not in _KNOWN:
        _KNOWN[key] = undisturbed(place, name)
    return _KNOWN[key]


def test_an_interrupted_file_is_whole_or_as_before(place: Place):
    rng = random.Random(1)
    for number in SIGNALS:
        assert not check_stopped("embed", place, number, rng)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITING)
def test_a_stopped_command_leaves_nothing_half_made(name: str, place: Place):
    rng = random.Random(f"3 {name}")
    found = []
    for number in SIGNALS:
        for _ in range(MOMENTS):
            found += check_stopped(name, place, number, rng)
    assert not found, "\n".join(found)
