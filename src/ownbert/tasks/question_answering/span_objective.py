"""The objective of extractive question answering: predict the answer's first and last token."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.objectives.objective import Loss
from ownbert.tasks.question_answering.answer_spans import END, START
from ownbert.tasks.row_objectives import RowObjective


@dataclass(frozen=True)
class SpanObjective(RowObjective):
    """The mean cross entropy of the answer's first and last token over all tokens of a window.

    The tags of the batch mark the two tokens.

    Source: Devlin et al. 2019, section 4.2.
    """

    name: str = "answer"
    head: str = "span"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        scores = log_softmax(logits, batch)  # (T, 2)
        truth = torch.stack([batch.tags & START, batch.tags & END], -1) > 0
        total = -(scores * truth).sum() / 2
        layout = batch.layout
        highest = layout.spread(layout.largest(scores.detach()))
        hits = ((scores >= highest) & truth).sum(1)  # (T)
        right = layout.sums(hits) == 2
        return Loss(total, right.sum(), batch.sequences)

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        a, b = log_softmax(one, batch), log_softmax(two, batch)
        # The mean of two directions, and of start and end.
        return ((a.exp() - b.exp()) * (a - b)).sum() / 4


def log_softmax(logits: Tensor, batch: Batch) -> Tensor:
    """Log-softmax over the tokens of each sequence, in float32: (T, C) -> (T, C)."""
    logits, layout = logits.float(), batch.layout
    # Subtracting the maximum avoids overflow and does not change the softmax.
    shifted = logits - layout.spread(layout.largest(logits.detach()))
    return shifted - layout.spread(layout.sums(shifted.exp()).log())
