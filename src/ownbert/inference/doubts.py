"""Predictions with a reject option and label sets, and their metrics. N rows, C labels."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from ownbert.checkpoint.model_files import weights_checksums
from ownbert.exceptions import InputError
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.engines import Say
from ownbert.inference.opened import Opened
from ownbert.tasks.metrics import auroc
from ownbert.tasks.rows import OutputOptions, Row

_ROUNDING = 1e-6  # rounding difference of probabilities between batches


class Doubts:
    """Out-of-scope scores and label sets for a model folder.

    Args:
        opened: the opened folder.
        options: rejection rate and coverage of label sets.
        say: see ``held_out_of``.

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
        self.threshold = self.least = self.margins = None
        if options.coverage is not None and not self.task.counts_labels:
            self.margins = self._held_out.margins(options.coverage)
        elif options.coverage is not None:
            self.least = self._held_out.least_probability(options.coverage) - _ROUNDING
        if options.unknown is not None:
            self.threshold = self._held_out.threshold(options.unknown)
            self._embedder = self._embedder or self._open_embedder()

    def _open_embedder(self) -> Any:
        """The network whose vectors the scope uses; None without one."""
        from ownbert.inference.embedder import Embedder

        if self._held_out.encoder is None:
            return None
        folder = self._opened.folder / self._held_out.encoder
        if not folder.is_dir() or weights_checksums(folder) != self._held_out.encoder_weights:
            raise InputError(
                "{folder}, whose vectors detect texts that fit no label, is missing or has "
                "other weights; calibrate again: {--calibrate} FILE",
                folder,
            )
        return Embedder(folder, device=self._opened.compute.device)

    def scores(self, probabilities: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
        """Out-of-scope scores (N), from probabilities (N, C): higher means less likely in scope."""
        scope = self._held_out.scope
        if scope is None or self._embedder is None:
            return self._held_out.doubt(probabilities)
        from ownbert.inference.frozen_probe import embed_rows

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

    def _interval(self, numbers: np.ndarray) -> dict[str, Any]:
        """``low`` and ``high`` around numbers (C), by column if there are several."""
        ends: dict[str, Any] = {}
        for name, values in (("low", numbers - self.margins), ("high", numbers + self.margins)):
            shown = [float(f"{x:.7g}") for x in values.tolist()]
            several = len(shown) > 1
            ends[name] = dict(zip(self.labels, shown, strict=True)) if several else shown[0]
        return ends

    def added_to(
        self, outputs: Sequence[dict[str, Any]], raws: Sequence[np.ndarray], rows: Sequence[Row]
    ) -> list[dict[str, Any]]:
        """Output rows with ``labels`` (``possible``, for several labels), ``low`` and ``high``
        (numbers), ``unknown`` and ``unknown_score`` as requested; an
        out-of-scope text has no label."""
        found, probabilities = [dict(output) for output in outputs], np.stack(raws)
        if self.margins is not None:
            for output, own in zip(found, probabilities, strict=True):
                output |= self._interval(own)
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
    """Compute metrics by name."""
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
    right = np.asarray([each.label for each in decided]) == targets
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
