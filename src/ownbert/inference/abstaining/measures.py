"""Metrics of rejection and label sets. N rows, M out-of-scope texts, C labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ownbert.inference.abstaining.doubts import Doubts
from ownbert.inference.opened import Opened
from ownbert.tasks.metrics import auroc
from ownbert.tasks.rows import Row


def measure(
    opened: Opened,
    doubts: Doubts,
    rows: Sequence[Row],
    raws: Sequence[np.ndarray],
    outside: Sequence[Row] = (),
) -> dict[str, float]:
    """Compute metrics by name."""
    from ownbert.inference.opened_blend import all_raws

    task: Any = opened.task
    probabilities = np.stack(raws)
    targets = np.asarray([task.target(row) for row in rows])
    right = probabilities.argmax(1) == targets
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
