"""What must hold of every case, however it ends."""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

from hostile.cases import Case
from hostile.commands import PLOTS
from hostile.forks import CONTROLS, WALL_SECONDS, Outcome, run
from hostile.place import Place, state

# Of processor time; a valid command takes at most three on a slow machine.
SECONDS = 15.0
# Of the clock, for commands that may wait for a pipe.
PIPE_SECONDS = 20.0
MEMORY = 1 << 30
LONGEST_LINE = 1500
# How lines begin that may stand before that of an error.
_BESIDES = ("warning: ", "left out: ", "no plot ")


def failures(cases: Iterable[Case], place: Place, *, number: str = "") -> Iterator[str]:
    """A line for everything that does not hold; the cases run one after another.

    Args:
        cases: to be tried.
        place: with the inputs.
        number: in the name of the working folder.
    """
    for case in cases:
        place.need((*case.arguments, *(f"../in/{name}" for name in case.inputs)))
        folder = place.folder(f"work{number}")
        Path(f"{folder}.in").unlink(missing_ok=True)
        writer = case.make(folder, place.inputs) if case.make is not None else None
        before, inputs = state(folder), state(place.inputs)
        wall = PIPE_SECONDS if writer else WALL_SECONDS
        ended = run(case.arguments, folder, plots=case.path in PLOTS, wall=wall)
        if writer:
            with contextlib.suppress(ProcessLookupError):
                os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        found = list(_wrong(case, ended))
        after = state(folder)
        new = sorted(after.keys() - before.keys())
        if ended.code != 0 and new:
            found.append(f"left {new[:5]}")
        kept = (n for n in before if not (ended.code == 0 and n.startswith(case.output)))
        if changed := [n for n in kept if before[n] != after.get(n)]:
            found.append(f"changed {changed[:5]}")
        now = state(place.inputs)
        if inputs != now:
            found.append(
                f"changed inputs {[n for n in inputs | now if inputs.get(n) != now.get(n)]}"
            )
        for what in found:
            yield f"{case.name}: {what}\n    {_shell(case)}\n    {ended.err[-700:]!r}"
        shutil.rmtree(folder, ignore_errors=True)


def _wrong(case: Case, ended: Outcome) -> Iterator[str]:
    allowed = (2,) if case.refused else (0, 2)
    if ended.code not in allowed:
        yield f"exit code {ended.code}, not {' or '.join(map(str, allowed))}"
    if ended.code == 2:
        yield from one_line(ended)
    if controls := CONTROLS & set(ended.out + ended.err):
        yield f"control characters {sorted(controls)}"
    if ended.seconds > SECONDS:
        yield f"{ended.seconds:.0f} seconds"
    if ended.memory > MEMORY:
        yield f"{ended.memory >> 20} MB"


def one_line(ended: Outcome, *, start: str = "error: ") -> Iterator[str]:
    """What is wrong with the message of a command that was refused or stopped: it is the last line,
    and beside it there are at most warnings."""
    lines = ended.err.splitlines()
    if not lines or not lines[-1].startswith(start):
        yield "the last line is no message"
    if others := [line for line in lines[:-1] if not line.startswith(_BESIDES)]:
        yield f"{len(others)} lines besides"
    if lines and len(lines[-1]) > LONGEST_LINE:
        yield f"a line of {len(lines[-1])} characters"


def _shell(case: Case) -> str:
    shown = [a if isinstance(a, str) else repr(a) for a in case.arguments]
    return " ".join(["ownbert", *(a if len(a) < 60 else f"{a[:20]}…" for a in shown)])
