"""Whether a trained model answers in bfloat16 what it answers in float32, and what its card says.

Only on processors that multiply bfloat16 natively is it known, and needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ownbert.checkpoint.agreement import ANSWERS, VECTORS, record_agreement
from ownbert.inference.embedding.embedder import Embedder
from ownbert.tasks.forward.batched_forward import forward_rows
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.train.watch.metric_names import shown_name

if TYPE_CHECKING:
    from ownbert.nn.model import Model

# Rows to compare, of which a metric says something, and at most.
_LEAST_ROWS, MOST_ROWS = 50, 1000
# Answers agree if so many are the same and the metric differs by no more, vectors if none has a
# lower cosine with its own.
_SAME, _METRIC, _COSINE = 0.99, 0.003, 0.999
# Texts to compare the vectors of; these and their tokens at most.
_LEAST_TEXTS, MOST_TEXTS, _MOST_TOKENS = 10, 256, 16_384
_COMMANDS = "The commands `ownbert predict` and `evaluate`"
_TAKE = "it where the processor has it."
# In the card of an ensemble.
EACH_AGREES = f"Each of these models agrees with float32 in bfloat16. {_COMMANDS} take {_TAKE}"


@dataclass(frozen=True)
class PrecisionCheck:
    """What a comparison of bfloat16 with float32 has found.

    Args:
        what: was compared, ``ANSWERS`` or ``VECTORS``.
        agree: whether bfloat16 may be used.
        finding: for the model card, as are the ``commands`` that it is about.
    """

    what: str
    agree: bool
    finding: str
    commands: str = _COMMANDS

    def record(self, folder: Path) -> None:
        """Say in config.json of a finished folder that they agree, if they do."""
        if self.agree:
            record_agreement(folder, self.what)

    def sentences(self) -> str:
        """What the model card says."""
        ending = "s" if self.commands.startswith("The command ") else ""
        does = f"take{ending} {_TAKE}" if self.agree else f"stay{ending} with float32."
        return f"{self.finding} {self.commands} {does}"


def check_answers(
    model: "Model",
    task: Task,
    rows: Sequence[Row],
    data: EncodedRows,
    raws: Sequence[np.ndarray],
    metric: str,
) -> PrecisionCheck | None:
    """Compare a model's answers as ``predict`` computes them in bfloat16 with those in float32.

    Args:
        model: with the head of the task, on a CPU.
        task: with its thresholds.
        rows: labelled ones that were not learnt.
        data: the same, encoded.
        raws: their scores in float32.
        metric: of the task.

    Returns:
        None if there are too few rows.
    """
    if len(rows) < _LEAST_ROWS:
        return None
    from ownbert.nn.packed.prepack import prepack_for_heads
    from ownbert.tasks.forward.packed_network import PackedNetwork

    network = PackedNetwork(prepack_for_heads(model, "bfloat16"))
    rough = forward_rows(network, task, data.examples)
    if task.head == "embedding":
        return _of_cosines(
            np.concatenate(raws),
            np.concatenate(rough),
            "The commands `ownbert embed`, `predict` and `evaluate`",
        )
    decided = [task.decide_each(scores, rows, data.notes) for scores in (raws, rough)]
    before, after = (task.score(rows, own).values[metric] for own in decided)
    measured = f"{shown_name(metric)} {after:.4f} instead of {before:.4f}"
    agree = abs(after - before) <= _METRIC
    if not task.discrete:
        finding = f"In bfloat16 {len(rows):,} dev rows have {measured}."
        return PrecisionCheck(ANSWERS, agree, finding)
    pairs = zip(*decided, rows, strict=True)
    same = sum(task.plain(one, row) == task.plain(other, row) for one, other, row in pairs)
    finding = f"In bfloat16 {same:,} of {len(rows):,} dev rows get the same answer, {measured}."
    return PrecisionCheck(ANSWERS, agree and same >= _SAME * len(rows), finding)


def check_vectors(folder: Path, texts: Sequence[np.ndarray]) -> PrecisionCheck | None:
    """Compare the vectors that ``embed`` computes in bfloat16 with those in float32.

    Args:
        folder: of a finished model.
        texts: the ids of each, without special tokens.

    Returns:
        None if there are too few texts.
    """
    embedder, ids, tokens = Embedder(folder, device="cpu"), [], 0
    for text in texts[:MOST_TEXTS]:
        ids.append(embedder.builder.one(text.tolist()))
        tokens += len(ids[-1])
        if tokens >= _MOST_TOKENS:
            break
    if len(ids) < _LEAST_TEXTS:
        return None
    fine, rough = (
        embedder.encode_ids(ids, normalize=True, precision=precision)
        for precision in ("float32", "bfloat16")
    )
    return _of_cosines(fine, rough, "The command `ownbert embed`")


def _of_cosines(fine: np.ndarray, rough: np.ndarray, commands: str) -> PrecisionCheck:
    """What vectors of length one (N, D) show."""
    least = float((fine * rough).sum(-1).min())
    finding = (
        f"In bfloat16 the vectors of {len(fine):,} texts have cosines of at least {least:.5f} with "
        "those in float32."
    )
    return PrecisionCheck(VECTORS, least >= _COSINE, finding, commands)
