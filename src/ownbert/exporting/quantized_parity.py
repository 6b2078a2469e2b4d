"""Compares a quantized model with its float model: vectors and predictions for the same texts.

B texts, T tokens, D hidden, C classes.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ownbert.batches.batch import Batch, pack
from ownbert.exporting.parity import Sequences, batches
from ownbert.nn.model import Model
from ownbert.nn.packed.int8 import EXACT
from ownbert.nn.pooling import POOLINGS

# Bounds of predictions that are as good as the same.
_MOST_ERROR, _LEAST_EQUAL = 0.1, 0.95


@dataclass
class PredictionParity:
    """The deviation of a head's predictions.

    Args:
        largest_change: maximum change of a probability; for regression, of a value.
        equal: number of equal predictions; None for regression.
        answers: total number of predictions.
        error: for regression, root mean square of the changes relative to the standard deviation of
            the values; None otherwise, and for fewer than two values.
    """

    largest_change: float = 0.0
    equal: int | None = 0
    answers: int = 0
    error: float | None = None

    @property
    def near(self) -> bool:
        """Whether the predictions are as good as the same."""
        if self.error is not None:
            return self.error <= _MOST_ERROR
        return self.equal is None or self.equal >= _LEAST_EQUAL * self.answers - 1

    def describe(self) -> str | None:
        """How much the predictions change, in words; None if unknown."""
        if self.error is not None:
            return f"values change by {self.error:.1%} of their standard deviation"
        if self.equal is None:
            return None
        return f"{self.equal:,} of {self.answers:,} predictions are the same"


@dataclass
class QuantizedParity:
    """The results of a comparison.

    Args:
        texts, tokens: numbers of compared texts and tokens.
        source: origin of the texts.
        least_cosine: minimum cosine between the two vectors of a text.
        mean_cosine: mean cosine.
        heads: deviations by name of the head.
        bytes_before, bytes_after: sizes of the weights.
        products: kind of 8-bit products on this processor (``products_here``).
    """

    texts: int = 0
    tokens: int = 0
    source: str = ""
    least_cosine: float = 1.0
    mean_cosine: float = 0.0
    heads: dict[str, PredictionParity] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0
    products: str = EXACT


@torch.inference_mode()
def compare_models(
    model: Model, quantized: Model, given: Sequences, *, pooling: str, problem: str | None
) -> QuantizedParity:
    """Run both models on the same packed batches.

    Args:
        model: the float model.
        quantized: the quantized model with the same heads.
        given: sequences to compare.
        pooling: pooling for text vectors.
        problem: Transformers' ``problem_type`` of a classification.
    """
    comparison, total, sequences = QuantizedParity(source=given.source), 0.0, 0
    pool = POOLINGS[pooling](model.config)
    values: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for examples in batches(given.examples, model.config):
        batch = pack(examples)
        both = [one(batch) for one in (model, quantized)]
        vectors = [pool(out.hidden.float(), batch.layout) for out in both]  # (B, D)
        cosines = torch.cosine_similarity(*vectors, dim=1)
        comparison.least_cosine = min(comparison.least_cosine, float(cosines.min()))
        total, sequences = total + float(cosines.sum()), sequences + len(cosines)
        for kind in model.heads:
            parity = comparison.heads.setdefault(kind, PredictionParity())
            answers = [_answers(kind, out.logits[kind], batch, problem) for out in both]
            _add(parity, *answers)
            if parity.equal is None:
                values.setdefault(kind, []).append((answers[0][0], answers[1][0]))
        comparison.texts += len(examples)
        comparison.tokens += sum(batch.layout.lengths)
    comparison.mean_cosine = total / sequences
    for kind, pairs in values.items():
        before, after = (torch.cat(each) for each in zip(*pairs, strict=True))
        spread = float(before.std(0, correction=0).mean())
        if spread > 0:
            comparison.heads[kind].error = float((after - before).square().mean().sqrt()) / spread
    return comparison


def _answers(
    kind: str, logits: Tensor, batch: Batch, problem: str | None
) -> tuple[Tensor, Tensor | None]:
    """Probabilities, and the predictions derived from them."""
    logits = logits.float()
    if kind == "span":  # start and end in each text
        parts = [part.softmax(0) for part in logits.split(batch.layout.lengths)]
        return torch.cat(parts), torch.stack([part.argmax(0) for part in parts])
    if kind == "choice":
        logits = logits.view(batch.answers, -1)
    elif kind == "classification" and (problem == "regression" or logits.shape[-1] == 1):
        return logits, None
    elif kind == "discriminator" or (kind, problem) == ("classification", _MANY):
        chances = logits.sigmoid()
        return chances, chances > 0.5
    chances = logits.softmax(-1)
    return chances, chances.argmax(-1)


_MANY = "multi_label_classification"


def _add(
    own: PredictionParity, one: tuple[Tensor, Tensor | None], other: tuple[Tensor, Tensor | None]
) -> None:
    change = float((one[0] - other[0]).abs().max()) if one[0].numel() else 0.0
    own.largest_change = max(own.largest_change, change)
    answers, others = one[1], other[1]
    if answers is None or others is None:
        own.equal = None
        own.answers += len(one[0])
        return
    same = (answers == others).flatten(1).all(1) if answers.ndim > 1 else answers == others
    own.equal = (own.equal or 0) + int(same.sum())
    own.answers += len(same)


def halves(given: Sequences) -> tuple[Sequences, Sequences]:
    """The sequences for calibration and for comparison: every other text each.

    A single text is used for both.
    """
    parts = (given.examples[::2], given.examples[1::2] or given.examples)
    first, second = (Sequences(part, given.source) for part in parts)
    return first, second
