"""Other thresholds of labels for an opened folder, given or chosen on its held-out rows."""

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.checkpoint import CONFIG
from ownbert.exceptions import InputError
from ownbert.files.input_files import changed_in_place
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import together
from ownbert.inference.blend import blend_of
from ownbert.inference.engines import Say, say_each
from ownbert.inference.opened import Opened
from ownbert.inference.row_summary import RowSummary
from ownbert.run.file_names import HELD_OUT
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY, Task
from ownbert.tasks.thresholds import Aim, before_tuning, read_thresholds

# What a task decides by: keys of ``ownbert_task``.
DECIDES = ("threshold", "decision")


def with_thresholds(opened: Opened, thresholds: Any, say: Say | None = None) -> Opened:
    """The same opened folder, with other thresholds of labels, given or chosen on the rows of
    ``held_out_of``.

    Args:
        opened: the opened folder.
        thresholds: see ``read_thresholds``; for several labels per row also one number for all.
        say: called with the chosen thresholds.

    Raises:
        InputError: the task has no thresholds, a label is unknown, or no threshold reaches what is
            asked for.
    """
    task = opened.task
    if not task.counts_labels or "threshold" not in task.uses():
        raise InputError("{--threshold} of a label does not apply to {name}", task.name)
    number = None
    with contextlib.suppress(TypeError, ValueError):
        number = float(thresholds)
    if number is not None and not task.label_sets:
        raise InputError(
            "{--threshold} is {thresholds}, but of which label? Write {labels}={thresholds}",
            thresholds,
            task.labels[-1],
        )
    if number is not None:
        thresholds = dict.fromkeys(task.labels, number)
    given = read_thresholds(thresholds, task.labels)
    numbers = before_tuning(given)
    changed = task.with_thresholds(numbers)  # refuses other labels before rows are read
    aims = {label: aim for label, aim in given.items() if isinstance(aim, Aim)}
    if aims:
        # Imports torch, which exported folders do not need.
        from ownbert.inference.calibrate import held_out_of

        held_out = held_out_of(opened, say=say)
        numbers |= held_out.thresholds(aims)
        changed = task.with_thresholds(numbers)
        say_each(
            (
                f"note: {label!r} is predicted from {numbers[label]:.3f}, chosen for {aim} on "
                f"{held_out.source}"
                for label, aim in aims.items()
            ),
            say,
        )
    found = copy.copy(opened)
    found.task = changed
    return found


def save_thresholds(opened: Opened) -> None:
    """Store the thresholds of an opened folder in its files, so that every command uses them.

    Raises:
        InputError: a file cannot be read or written.
    """
    from ownbert.inference.calibrate import models_of
    from ownbert.inference.held_out import HeldOut

    folder, task = opened.folder, opened.task
    blend = None if opened.compute.network else blend_of(folder)
    held_out = None
    if blend is not None:
        held_out = HeldOut.load(folder / HELD_OUT, task.labels, models_of(opened))
    with changed_in_place([folder, *opened.members]):
        with together():
            for path in _configs(opened) if blend is None or blend.is_root else ():
                values = read_json(path)
                values[KEY] = {**values.get(KEY, {}), **decides(task)}
                write_json(path, values)
            if blend is not None:
                replace(blend, task=task).write(folder)
        if held_out is None:
            return
        # Its key has the checksum of the blend.
        if "checksums" in vars(opened):
            del opened.checksums
        held_out = held_out.deciding(getattr(task, "decision", None))
        replace(held_out, models=models_of(opened)).save(folder / HELD_OUT)
        summary = RowSummary.read(folder)
        if summary is not None and held_out.probabilities is not None:
            replace(summary, labels=_predicted(task, held_out.probabilities)).write(folder)


def decides(task: Task) -> dict[str, Any]:
    """What a task decides by, for config.json."""
    saved = task.values().get(KEY, {})
    return {name: saved[name] for name in DECIDES if name in saved}


def _configs(opened: Opened) -> Iterator[Path]:
    """The config.json of each network."""
    for each in getattr(opened, "described", ()):
        if each.folder is not None:
            yield Path(each.folder) / CONFIG


def _predicted(task: Any, probabilities: Any) -> dict[str, int]:
    """The number of held-out rows that each label is predicted for."""
    row = Row(0, ())
    found = [task.plain(task.decide(each, row, False), row) for each in probabilities]
    return dict(
        Counter(label for each in found for label in ([each] if isinstance(each, str) else each))
    )
