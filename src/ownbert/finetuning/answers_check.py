"""Checks whether a fine-tuned model's bfloat16 predictions agree with its float32 predictions."""

from collections.abc import Sequence

import numpy as np

from ownbert.checkpoint.agreement import ANSWERS
from ownbert.nn.model import Model
from ownbert.nn.packed.prepack import prepack_for_heads
from ownbert.run.precision_check import PrecisionCheck, of_cosines
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.row_network import forward_rows
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.train.watch.metric_names import shown_name

# Minimum rows for a meaningful metric, and maximum rows to compare.
_LEAST_ROWS, MOST_ROWS = 50, 1000
# Required share of equal predictions, and maximum difference of the metric.
_EQUAL_SHARE, _METRIC_TOLERANCE = 0.99, 0.003


def check_answers(
    model: Model,
    task: Task,
    rows: Sequence[Row],
    data: EncodedRows,
    raws: Sequence[np.ndarray],
    metric: str,
) -> PrecisionCheck | None:
    """Compare a model's predictions in bfloat16, as computed by ``predict``, with those in float32.

    Args:
        model: model with the head of the task, on a CPU.
        task: task with its thresholds.
        rows: labelled rows that were not trained on.
        data: the same rows, encoded.
        raws: their float32 outputs.
        metric: metric of the task.

    Returns:
        The result, or None if there are too few rows.
    """
    if len(rows) < _LEAST_ROWS:
        return None
    network = PackedNetwork(prepack_for_heads(model, "bfloat16"))
    bfloat16_raws = forward_rows(network, task, data.examples)
    if task.head == "embedding":
        return of_cosines(
            np.concatenate(raws),
            np.concatenate(bfloat16_raws),
            "The commands `ownbert embed`, `predict` and `evaluate`",
        )
    decided = [task.decide_each(scores, rows, data.notes) for scores in (raws, bfloat16_raws)]
    before, after = (task.score(rows, answers).values[metric] for answers in decided)
    measured = f"{shown_name(metric)} {after:.4f} instead of {before:.4f}"
    agree = abs(after - before) <= _METRIC_TOLERANCE
    if not task.discrete:
        finding = f"In bfloat16, {len(rows):,} dev rows have {measured}."
        return PrecisionCheck(ANSWERS, agree, finding)
    pairs = zip(*decided, rows, strict=True)
    same = sum(task.plain(one, row) == task.plain(other, row) for one, other, row in pairs)
    finding = (
        f"In bfloat16, {same:,} of {len(rows):,} dev rows get the same prediction, with {measured}."
    )
    return PrecisionCheck(ANSWERS, agree and same >= _EQUAL_SHARE * len(rows), finding)
