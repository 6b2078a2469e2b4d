"""Other decisions than the task's own: thresholds of labels, given or chosen on held-out rows;
rejected texts and label sets, and their metrics. N rows, C labels."""

import contextlib
import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import weights_checksums
from ownbert.exceptions import InputError
from ownbert.files.input_files import changed_in_place
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import together
from ownbert.inference.blend import blend_of
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Say, say_each
from ownbert.inference.opened import Networks, Opened
from ownbert.inference.row_summary import RowSummary
from ownbert.language.messages import Message
from ownbert.run.file_names import HELD_OUT
from ownbert.tasks.metrics import auroc
from ownbert.tasks.rows import OutputOptions, Row
from ownbert.tasks.task import KEY, Task
from ownbert.tasks.thresholds import Aim, before_tuning, read_thresholds

# What a task decides by: keys of ``ownbert_task``.
DECIDES = ("threshold", "decision")


def with_thresholds(opened: Opened, thresholds: Any, say: Say | None = None) -> Opened:
    """The same opened folder, with other thresholds of labels, given or chosen on the rows of
    ``held_out_of``.

    Args:
        thresholds: see ``read_thresholds``; for several labels per row also one number for all.

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
        thresholds = dict.fromkeys(task.labels, number)
    if number is not None and not task.label_sets:
        raise InputError(
            "{--threshold} is {thresholds}, but of which label? Write {labels}={thresholds}",
            number,
            task.labels[-1],
        )
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
                Message(
                    "note: {label!r} is predicted from {numbers:.3f}, chosen for {aim} on {source}",
                    *(label, numbers[label], aim, held_out.source),
                )
                for label, aim in aims.items()
            ),
            say,
        )
    found = copy.copy(opened)
    found.task = changed
    return found


def save_thresholds(opened: Opened) -> None:
    """Store the thresholds of an opened folder in its files, so that every command uses them."""
    from ownbert.inference.calibrate import models_of
    from ownbert.inference.held_out import HeldOut

    folder, task = opened.folder, opened.task
    blend = None if opened.compute.network else blend_of(folder)
    held_out = None
    if blend is not None:
        held_out = HeldOut.load(folder / HELD_OUT, task.labels, models_of(opened))
    with changed_in_place([folder, *opened.members]):
        with together():
            for network in opened.described if isinstance(opened, Networks) else ():
                path = Path(network.folder or folder) / CONFIG
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
            row, labels = Row(0, ()), Counter()
            for probabilities in held_out.probabilities:
                predicted: Any = task.plain(task.decide(probabilities, row, False), row)
                labels.update([predicted] if isinstance(predicted, str) else predicted)
            replace(summary, labels=dict(labels)).write(folder)


def decides(task: Task) -> dict[str, Any]:
    """What a task decides by, for config.json."""
    saved = task.values().get(KEY, {})
    return {name: saved[name] for name in DECIDES if name in saved}


_ROUNDING = 1e-6  # rounding difference of probabilities between batches


class Doubts:
    """Out-of-scope scores and label sets for a model folder, as requested by options.

    Attributes:
        identity: identity of the held-out rows.

    Raises:
        InputError: there are no held-out rows, or too few.
    """

    def __init__(self, opened: Opened, options: OutputOptions, say: Say | None = None) -> None:
        from ownbert.inference.calibrate import held_out_of

        opened.task.refuse_output_options(options)
        self.task, self.labels = opened.task, opened.task.labels
        self._opened, self._embedder = opened, None
        held_out = held_out_of(opened, say=say, options=options)
        # Thresholds of the user change what a label is predicted from.
        self._held_out = held_out.deciding(getattr(self.task, "decision", None))
        self.identity = self._held_out.identity
        self._choose(options)

    def with_options(self, options: OutputOptions) -> "Doubts":
        """The same calibration, with its network in memory, for other options."""
        others = copy.copy(self)
        others._choose(options)
        return others

    def _choose(self, options: OutputOptions) -> None:
        held_out = self._held_out
        self.threshold = self.least = self.margins = None
        if options.coverage is not None and not self.task.counts_labels:
            self.margins = held_out.margins(options.coverage)
        elif options.coverage is not None:
            self.least = held_out.least_probability(options.coverage) - _ROUNDING
        if options.unknown is None:
            return
        self.threshold = held_out.threshold(options.unknown)
        if self._embedder is None and held_out.encoder is not None:
            from ownbert.inference.embedder import Embedder

            folder = self._opened.folder / held_out.encoder
            if not folder.is_dir() or weights_checksums(folder) != held_out.encoder_weights:
                raise InputError(
                    "{folder}, whose vectors detect texts that fit no label, is missing or has "
                    "other weights; calibrate again: {--calibrate} FILE",
                    folder,
                )
            self._embedder = Embedder(folder, device=self._opened.compute.device)

    def scores(self, probabilities: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
        """Out-of-scope scores (N), from probabilities (N, C): higher means less likely in scope."""
        scope = self._held_out.scope
        if scope is None or self._embedder is None:
            return self._held_out.doubt(probabilities)
        from ownbert.inference.opened_blend import embed_rows

        texts = [row.texts for row in rows]
        return scope.scores(of_length_one(embed_rows(self._embedder, texts)))

    def sets(self, probabilities: np.ndarray) -> list[list[str]]:
        """The label set of each row, most probable first, possibly empty, from probabilities (N,
        C)."""
        order = np.argsort(-probabilities, axis=1, kind="stable")
        counts = (probabilities >= self.least).sum(1)
        return [
            [self.labels[i] for i in ranked[:count]]
            for ranked, count in zip(order, counts, strict=True)
        ]

    def added_to(
        self, outputs: Sequence[dict[str, Any]], raws: Sequence[np.ndarray], rows: Sequence[Row]
    ) -> list[dict[str, Any]]:
        """Output rows with ``labels`` (``possible``, for several labels), ``low`` and ``high``
        (numbers), ``unknown`` and ``unknown_score`` as requested; an out-of-scope text has no
        label."""
        found, probabilities = [dict(output) for output in outputs], np.stack(raws)
        if self.margins is not None:
            for name, ends in (
                ("low", probabilities - self.margins),
                ("high", probabilities + self.margins),
            ):
                for output, values in zip(found, ends.tolist(), strict=True):
                    shown = [float(f"{x:.7g}") for x in values]
                    # By column if there are several.
                    by_column = dict(zip(self.labels, shown, strict=True))
                    output[name] = by_column if len(shown) > 1 else shown[0]
        if self.least is not None:
            name = "possible" if self.task.label_sets else "labels"
            for output, labels in zip(found, self.sets(probabilities), strict=True):
                # A label that is predicted although it is not the most probable is possible, too.
                missing = {output.get("label")}.difference({None, *labels})
                output[name] = [*labels, *missing]
        if self.threshold is not None:
            scores = self.scores(probabilities, rows)
            for output, score in zip(found, scores.tolist(), strict=True):
                output["unknown"] = score > self.threshold
                output["unknown_score"] = round(score, 4)
                if output["unknown"]:
                    labels = [k for k in output if k == "label" or k.startswith("label_")]
                    output |= dict.fromkeys(labels)
        return found


def output_rows(
    opened: Opened, rows: Sequence[Row], options: OutputOptions, doubts: Doubts | None
) -> list[dict[str, Any]]:
    """Predictions for rows as rows of an output file, without their texts or ids."""
    raws, decided = opened.answered(rows)
    outputs = [
        opened.task.output_row(each, row, options) for each, row in zip(decided, rows, strict=True)
    ]
    return outputs if doubts is None else doubts.added_to(outputs, raws, rows)


def measure(
    opened: Opened,
    doubts: Doubts,
    rows: Sequence[Row],
    decided: Sequence[Any],
    outside: Sequence[Row] = (),
) -> dict[str, float]:
    """Metrics by name; ``outside`` are rows that have none of the labels."""
    from ownbert.inference.calibrate import errors_of
    from ownbert.inference.opened_blend import all_raws

    task: Any = opened.task
    probabilities = np.stack(decided)  # pyright: ignore
    if doubts.margins is not None:
        inside = errors_of(task, probabilities, rows) <= doubts.margins
        width = float(2 * doubts.margins.mean())
        return {"interval_coverage": float(inside.mean()), "interval_width": width}
    if task.label_sets:
        inside = 1 - errors_of(task, probabilities, rows) >= doubts.least
        size = float((probabilities >= doubts.least).sum(1).mean())
        return {"set_coverage": float(inside.mean()), "set_size": size}
    targets = np.asarray([task.target(row) for row in rows])
    right = np.asarray([decision.label for decision in decided]) == targets
    metrics: dict[str, float] = {}
    if doubts.least is not None:
        inside = probabilities >= doubts.least
        metrics["set_coverage"] = float(inside[np.arange(len(rows)), targets].mean())
        metrics["set_size"] = float(inside.sum(1).mean())
    if doubts.threshold is not None:
        scores = doubts.scores(probabilities, rows)
        answered = scores <= doubts.threshold
        metrics["refused"] = float(1 - answered.mean())
        metrics["answered_accuracy"] = float(right[answered].mean()) if answered.any() else 0.0
        if outside:
            others = all_raws(opened, outside)
            strange = doubts.scores(others, outside)
            metrics["unknown_refused"] = float((strange > doubts.threshold).mean())
            metrics["unknown_auroc"] = auroc(scores, strange)
            metrics["unknown_auroc_of_probability"] = auroc(
                1 - probabilities.max(1), 1 - others.max(1)
            )
    return metrics
