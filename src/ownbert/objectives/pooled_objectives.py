"""Objectives of the pooled vector: next sentence and sentence order prediction, which share a head,
and the words of the text."""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ownbert.exceptions import InputError
from ownbert.objectives.objective import (
    Loss,
    PretrainingObjective,
    columns_of,
    cross_entropy_loss,
    unmasked,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ownbert.batches.batch import Batch
    from ownbert.nn.model import Model, Outputs


@dataclass(frozen=True)
class SentencePair(PretrainingObjective):
    """Cross entropy of whether the second of two texts follows the first (Devlin et al. 2019,
    section 3.1, task 2)."""

    # BERT uses 1, which slows down learning words in runs of minutes (docs/lab/pretraining.md).
    weight: float = 0.1
    name = pairs = "nsp"
    head = "nsp"
    title, short, colour = "next sentence", "NSP", 1
    explained = "next sentence"
    classes = ("next", "not next")
    chance = math.log(2)
    reads_features = True

    def count(self, batch: Batch) -> int:
        return 0 if batch.next_sentence is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.next_sentence is not None
        loss = cross_entropy_loss(logits, batch.next_sentence)  # (B, 2), (B)
        return loss._replace(zeros=(batch.next_sentence == 0).sum())


@dataclass(frozen=True)
class SentenceOrder(SentencePair):
    """Cross entropy of whether two neighbouring texts were exchanged (Lan et al. 2020, section
    3.1)."""

    name = pairs = "sop"
    title, short, colour = "sentence order", "SOP", 5
    explained = "sentence order, instead of nsp"
    classes = ("in order", "exchanged")

    @classmethod
    def require(cls, names: Set[str]) -> None:
        if "nsp" in names:
            raise InputError("task.objectives has nsp and sop, which share a head; use one of them")


@dataclass(frozen=True)
class BagOfWords(PretrainingObjective):
    """Cross entropy of all words of a sequence, predicted by one distribution from its pooler (Ma
    et al. 2024, "Drop your Decoder", section 3.2, without its compression of words).

    Masked words alone teach nothing to the first token and the pooler, from which a classifier
    starts. A word that occurs twice counts twice, and all sequences have the same weight.
    """

    name = head = "bow"
    title, short, colour = "words of the text", "BOW", 7
    explained = "all words of a text from its pooled vector, with mlm"
    decodes = pools = reads_features = True
    counts_correct = False  # the most likely word is one that nearly all texts have

    @classmethod
    def require(cls, names: Set[str]) -> None:
        if "mlm" not in names:
            raise InputError("task.objectives has bow, which requires mlm")

    def count(self, batch: Batch) -> int:
        return batch.sequences

    def logits_of(self, model: Model, outputs: Outputs, batch: Batch) -> Tensor:
        """The logits of the MLM head for the pooled vectors."""
        assert outputs.pooled is not None
        return model.words_of(outputs.pooled, batch.candidates)

    def parts(self, model: Model) -> list[nn.Module]:
        pooler = [] if model.pooler is None else [model.pooler]
        return [*model.parts([]), *pooler, model.heads["mlm"]]

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        logits, ids = logits.float(), unmasked(batch)  # (B, V), (T)
        sequence_of = batch.layout.sequences  # (T)
        share = logits.new_ones(len(ids))  # (T) share of a token in the words of its sequence
        if self.ordinary is not None:
            share = self.ordinary.to(ids.device, logits.dtype)[ids]
        words = logits.new_zeros(len(logits)).index_add_(0, sequence_of, share)  # (B)
        share = share / words.clamp(min=1)[sequence_of]
        normalizers = logits.logsumexp(-1)  # (B), ignored for sequences without words
        if logits.device.type == "cpu":
            normalizers = normalizers[words > 0]
        else:  # selecting rows would synchronise with the device
            normalizers = normalizers.where(words > 0, 0.0)
        chosen = logits[sequence_of, columns_of(batch, ids)]
        # The negative sum over words of share x log softmax; the shares of a sequence sum to 1.
        total = normalizers.sum() - (share * chosen).sum()
        return Loss(total, total.new_zeros(()), len(logits))
