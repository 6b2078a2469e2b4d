"""The interface of objectives: logits and targets -> ``Loss``, a sum and a count. Objectives of
pretraining also declare their data, network and names.

The training loop divides the sums of a step by its counts over all micro-batches and processes, so
that no mean of means is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from ownbert.batches.batch import Batch
    from ownbert.batches.example import Example
    from ownbert.batches.masking import Masker
    from ownbert.config.encoder import EncoderConfig
    from ownbert.corpus.pretraining_examples import PretrainingData
    from ownbert.nn.model import Model, Outputs
    from ownbert.text.tokenizer import Tokenizer

_COUNTED_EXAMPLES = 200  # number of examples for estimating the frequencies of special tokens


class Loss(NamedTuple):
    """The loss of an objective on a batch."""

    total: Tensor  # summed loss, a scalar with gradient
    correct: Tensor  # number of correct answers
    # Number of answers.
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    # With two classes, the number of targets of the first one, from which the accuracy of always
    # choosing the more frequent class follows.
    zeros: Tensor | None = None


class Objective:
    """An objective: called on logits and the batch in its input view, it returns their ``Loss``."""

    name: str  # name in the log
    head: str  # name of the head whose logits it reads
    weight: float = 1.0  # weight of its loss in the sum over all objectives
    input_view: str = "masked"  # form of a batch; objectives with the same one share a pass
    counts_correct: bool = True  # whether correct answers are counted
    decodes: bool = False  # whether its targets go through the decoder of the MLM head

    def count(self, batch: Batch) -> int:
        """The number of targets in a batch."""
        raise NotImplementedError

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        raise NotImplementedError

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        """The loader's batch, with masked tokens, in the input view of this objective; ``logits``
        are those of the heads in the previous view."""
        return batch

    def logits_of(self, model: Model, outputs: Outputs, batch: Batch) -> Tensor:
        """The logits of a forward pass that this objective reads."""
        return outputs.logits[self.head]

    def parts(self, model: Model) -> list[nn.Module]:
        """The modules of a model that this objective trains."""
        return model.parts([self.head] if self.head in model.heads else [])


def cross_entropy_loss(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
    """The cross entropy of targets (N) under logits (N, C)."""
    from ownbert.nn.cross_entropy import cross_entropy

    return Loss(*cross_entropy(logits, targets, smoothing=smoothing), targets.numel())


def columns_of(batch: Batch, ids: Tensor) -> Tensor:
    """The column of the logits of each token id."""
    return ids if batch.candidates is None else batch.candidates.index_of(ids)


def unmasked(batch: Batch) -> Tensor:
    """Token ids (T), with masked tokens restored."""
    if batch.masked_positions is None:
        return batch.token_ids
    assert batch.masked_ids is not None
    return batch.token_ids.index_copy(0, batch.masked_positions, batch.masked_ids)


@dataclass(frozen=True)
class PretrainingObjective(Objective):
    """An objective of pretraining."""

    weight: float = 1.0  # weight of the loss; the default of a class is also that of the recipe
    ordinary: Tensor | None = field(default=None, compare=False)  # (V) false for special tokens
    head = "mlm"
    title: ClassVar[str]  # name in charts and model cards
    short: ClassVar[str]  # name on the progress line
    explained: ClassVar[str]  # description in the help of ``--objectives``
    colour: ClassVar[int]  # index of its colour in charts
    network: ClassVar[str | None] = None  # created instead of a BERT, for all phases
    alone: ClassVar[bool] = False  # whether it cannot be combined with other objectives
    predicts: ClassVar[bool] = False  # predicts single tokens; every run has one that does
    pools: ClassVar[bool] = False  # whether it needs a pooler
    rate: ClassVar[float] = 0.3  # default share of the tokens that are predicted
    uses: ClassVar[frozenset[str]] = frozenset()  # settings of ``PretrainTask`` for its targets
    pairs: ClassVar[str | None] = None  # kind of text pairs (``pretraining_examples``)
    classes: ClassVar[tuple[str, str]] = ("", "")  # names of the two classes of such pairs
    chance: ClassVar[float | None] = None  # loss of guessing, if it is the same for any text
    reads_features: ClassVar[bool] = False  # whether the corpus may have word features
    samples: ClassVar[bool] = True  # whether its softmax can be over some of the words
    auto_class: ClassVar[str | None] = None  # Transformers' class for a network that has learnt it

    @classmethod
    def require(cls, names: Set[str]) -> None:
        """Raise ``InputError`` if it cannot be combined with the others in ``names``."""

    @classmethod
    def extend(cls, tokenizer: Tokenizer) -> tuple[Tokenizer, np.ndarray | None]:
        """The tokenizer with the special tokens that the objective needs, and their ids."""
        return tokenizer, None

    @classmethod
    def masker(cls, tokenizer: Tokenizer, ordinary: np.ndarray, task: Any) -> Masker | None:
        """The function that chooses the targets of a sequence, by the settings of a
        ``PretrainTask``; None: another objective chooses them. ``ordinary`` (V) is true for tokens
        that are not special."""
        return None

    @classmethod
    def structure(cls, config: EncoderConfig, dropout: float) -> EncoderConfig:
        """The structure of its network, derived from that of a BERT."""
        return config

    @classmethod
    def make_network(
        cls, config: EncoderConfig, settings: Any
    ) -> tuple[Model, Model | None] | None:
        """Create the network and, if there is one, its generator with random weights, by the
        settings of a ``PretrainModel``; None: a BERT is used."""
        return None

    @classmethod
    def unigram(cls, unigram: Tensor, data: PretrainingData, ordinary: np.ndarray) -> Tensor:
        """Log-probabilities (V) of the predicted tokens, by their frequency in the examples;
        ``unigram`` (V) contains those of the corpus."""
        return unigram

    # Defaults for objectives that predict single tokens.

    def targets(self, batch: Batch) -> Tensor:
        """The ids of the tokens to predict, of a batch in the input view."""
        assert batch.masked_ids is not None
        return batch.masked_ids

    def count(self, batch: Batch) -> int:
        return 0 if batch.masked_ids is None else batch.masked_ids.numel()

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        return cross_entropy_loss(logits, columns_of(batch, self.targets(batch)))  # (M, V), (M)


def with_special_tokens(
    unigram: Tensor, data: PretrainingData, targets: Callable[[Example], Any], ordinary: np.ndarray
) -> Tensor:
    """Log-probabilities (V) of words as in the corpus, and of special tokens with their frequencies
    among the targets of the first examples."""
    import numpy as np
    import torch

    ids = [targets(data.example(0, i)) for i in range(min(len(data), _COUNTED_EXAMPLES))]
    counts = np.bincount(np.concatenate(ids), minlength=len(ordinary))
    special = np.where(ordinary, 0, counts + 1.0)
    share = special.sum() / (special.sum() + counts[ordinary].sum())
    words = np.where(ordinary, unigram.exp().numpy(), 0)
    mixed = (1 - share) * words / words.sum() + share * special / special.sum()
    return torch.from_numpy(np.log(mixed).astype(np.float32))
