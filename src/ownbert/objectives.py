"""What is learnt: logits and targets -> Loss, everything as (sum, count).

T tokens, M masked tokens, B sequences, V vocabulary. The loop divides a step's sums by
its counts over all micro-batches and processes, so that a mean of means never happens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.batches.layout import to_device
from ownbert.batches.permutation import permuted_view
from ownbert.batches.sampled_softmax import CandidateSampler
from ownbert.nn.fast.cross_entropy import cross_entropy
from ownbert.nn.model import Model

# How the model sees a batch. masked: as it is; causal: masked tokens put back, and each token sees
# those before it; corrupted: a generator's draws instead of masked tokens (ELECTRA); permuted:
# masked tokens put back, and each seen by those alone that come later in a random order (XLNet).
INPUT_VIEWS = ("masked", "causal", "corrupted", "permuted")


class Loss(NamedTuple):
    """The loss of an objective on a batch.

    Args:
        total: summed loss, a scalar with gradient.
        correct: summed right answers.
        count: how many answers there were.
        zeros: of two classes, how many targets were of the first: who always says the commoner one
            is right that often.
    """

    total: Tensor
    correct: Tensor
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    zeros: Tensor | None = None


class Objective(Protocol):
    """What every objective has.

    Called on logits and the batch in its view, it gives their loss; ``count`` is how many targets a
    batch holds.

    Attributes:
        name: that in the log.
        head: name of the head whose logits it takes.
        weight: of its loss beside the others'.
        input_view: in which of ``INPUT_VIEWS`` the model sees a batch.
    """

    @property
    def name(self) -> str: ...
    @property
    def head(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def input_view(self) -> str: ...
    def count(self, batch: Batch) -> int: ...
    def __call__(self, logits: Tensor, batch: Batch) -> Loss: ...


def _targets(batch: Batch) -> Tensor:
    """(M), which of the logits is that of each masked token's word."""
    assert batch.masked_ids is not None
    return _columns(batch, batch.masked_ids)


def _columns(batch: Batch, ids: Tensor) -> Tensor:
    """Which of the logits are those of words."""
    return ids if batch.candidates is None else batch.candidates.index_of(ids)


def _cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Loss:
    return Loss(*cross_entropy(logits, targets, smoothing=smoothing), targets.numel())


@dataclass(frozen=True)
class MaskedLM:
    """Cross entropy of the masked tokens (Devlin et al. 2019, section 3.1, task 1)."""

    weight: float = 1.0
    name: str = "mlm"
    head: str = "mlm"
    input_view: str = "masked"

    def count(self, batch: Batch) -> int:
        return 0 if batch.masked_ids is None else batch.masked_ids.numel()

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        return _cross_entropy(logits, _targets(batch))  # (M, V), (M)


@dataclass(frozen=True)
class CausalLM:
    """Cross entropy of the next token, by a model that sees only those before it."""

    weight: float = 1.0
    name: str = "clm"
    head: str = "mlm"
    input_view: str = "causal"

    def count(self, batch: Batch) -> int:
        return batch.tokens - batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        return _cross_entropy(logits, _targets(batch))  # (T - B, V), (T - B)


@dataclass(frozen=True)
class PermutationLM(MaskedLM):
    """Cross entropy of tokens that are predicted one after the other, in a random order.

    Each is predicted by a query stream, from the tokens that are not predicted and those before it
    in the order.

    Source: Yang et al. 2019, sections 2.2 and 2.3.
    """

    name: str = "plm"
    input_view: str = "permuted"


@dataclass(frozen=True)
class Translation:
    """Cross entropy of each next token, by a decoder that sees those before it and the source.

    With label smoothing (Szegedy et al. 2016, section 7) a share of each target is spread evenly
    over the vocabulary.
    """

    smoothing: float = 0.1
    weight: float = 1.0
    name: str = "translation"
    head: str = "generator"
    input_view: str = "masked"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.tokens

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        return _cross_entropy(logits, batch.tags, self.smoothing)  # (T, V), (T)


@dataclass(frozen=True)
class SentencePair:
    """Cross entropy of how two parts stand to each other.

    The label is whether the second follows the first ("nsp", Devlin et al. 2019, section 3.1, task
    2) or they were exchanged ("sop", Lan et al. 2020, section 3.1).
    """

    weight: float = 1.0
    name: str = "nsp"
    head: str = "nsp"
    input_view: str = "masked"

    def count(self, batch: Batch) -> int:
        return 0 if batch.next_sentence is None else batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.next_sentence is not None
        loss = _cross_entropy(logits, batch.next_sentence)  # (B, 2), (B)
        return loss._replace(zeros=(batch.next_sentence == 0).sum())


@dataclass(frozen=True)
class BagOfWords:
    """Cross entropy of all words of a sequence, foretold by one distribution from its pooler.

    Masked words alone teach the first token and the pooler nothing, which a classifier starts from.
    A word that stands twice counts twice, and each sequence as much as another.

    Args:
        ordinary: (V), true for tokens that are words; by default all are.

    Source: Ma et al. 2024 ("Drop your Decoder"), section 3.2, without its compression of words.
    """

    weight: float = 1.0
    ordinary: Tensor | None = field(default=None, compare=False)
    # Not counted: the likeliest word is one that nearly all texts have.
    right: bool = False
    name: str = "bow"
    head: str = "bow"
    input_view: str = "masked"

    def count(self, batch: Batch) -> int:
        return batch.sequences

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        logits, ids = logits.float(), unmasked(batch)  # (B, V), (T)
        of = batch.layout.sequences  # (T)
        share = torch.ones_like(ids, dtype=logits.dtype)  # (T): of a token in its sequence's words
        if self.ordinary is not None:
            share = self.ordinary.to(ids.device, logits.dtype)[ids]
        words = logits.new_zeros(len(logits)).index_add_(0, of, share)  # (B)
        share = share / words.clamp(min=1)[of]
        normalizers = logits.logsumexp(-1)  # (B), those of a sequence without words do not count
        if logits.device.type == "cpu":
            normalizers = normalizers[words > 0]
        else:  # to choose rows, the host would wait until the device has counted them
            normalizers = normalizers.where(words > 0, 0.0)
        chosen = logits[of, _columns(batch, ids)]
        # -sum over words of share x log softmax, where the shares of a sequence add up to 1.
        total = normalizers.sum() - (share * chosen).sum()
        return Loss(total, total.new_zeros(()), len(logits))


@dataclass(frozen=True)
class ReplacedToken:
    """Whether each token was replaced by a generator (Clark et al. 2020, section 2)."""

    weight: float = 50.0
    name: str = "rtd"
    head: str = "discriminator"
    input_view: str = "corrupted"

    def count(self, batch: Batch) -> int:
        return 0 if batch.masked_ids is None else batch.tokens

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.replaced is not None
        logits = logits.float()  # (T)
        truth = batch.replaced
        total = F.binary_cross_entropy_with_logits(logits, truth.float(), reduction="sum")
        right = ((logits.detach() > 0) == truth).sum()
        return Loss(total, right, truth.numel(), (~truth).sum())


# Of pretraining, by the names of the recipe (``OBJECTIVES`` in pretraining/pretrain_recipe.py).
PRETRAINING: Mapping[str, Callable[[float], Objective]] = {
    "mlm": MaskedLM,
    "clm": CausalLM,
    "plm": PermutationLM,
    "span_corruption": lambda weight: Translation(0.0, weight, "span_corruption"),
    "rtd": ReplacedToken,
    "nsp": SentencePair,
    "sop": partial(SentencePair, name="sop"),
    "bow": BagOfWords,
}


class Learner(nn.Module):
    """A model and what it learns.

    Args:
        model: its heads are those that the objectives name.
        objectives: those that have an input view in common share one pass through the model.
        generator: predicts the masked tokens in place of the model, which then sees what it draws
            (ELECTRA, Clark et al. 2020, section 2).
        sampler: in training, of the words that predicted ones are compared with; by default they
            are compared with all. Not beside a generator, which draws from all.
    """

    def __init__(
        self,
        model: Model,
        objectives: Sequence[Objective],
        *,
        generator: Model | None = None,
        sampler: CandidateSampler | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.generator = generator
        self.sampler = sampler
        self.objectives = tuple(objectives)

    def forward(
        self, batch: Batch, objectives: Sequence[Objective] | None = None
    ) -> dict[str, Loss]:
        """The loss of each objective by its name; those of a dummy batch are zero.

        Args:
            objectives: those of the phase; all by default.
        """
        objectives = self.objectives if objectives is None else objectives
        losses: dict[str, Loss] = {}
        if self.sampler is not None and self.training:
            candidates = self.sampler(unmasked(batch), batch.token_ids)
            batch = replace(batch, candidates=candidates)
        seen, logits = batch, {}
        for view in INPUT_VIEWS:
            in_view = [o for o in objectives if o.input_view == view]
            if not in_view:
                continue
            if view == "causal":
                seen = causal_view(batch)
            elif view == "corrupted":
                seen = corrupted_view(batch, logits["mlm"])
            elif view == "permuted":
                seen = permuted_view(batch)
            logits = self._logits(self.model_of(view), seen, {o.head for o in in_view})
            losses |= {o.name: o(logits[o.head], seen) for o in in_view}
        if batch.dummy:
            return {n: Loss(0 * loss.total, 0 * loss.correct, 0) for n, loss in losses.items()}
        return losses

    def _logits(self, model: Model, batch: Batch, heads: set[str]) -> dict[str, Tensor]:
        """By the names of the heads; of the bag of words there is none of its own."""
        own = [name for name in model.heads if name in heads]
        outputs = model(batch, own)
        if BagOfWords.head not in heads:
            return outputs.logits
        assert outputs.pooled is not None
        words = model.words_of(outputs.pooled, batch.candidates)
        return outputs.logits | {BagOfWords.head: words}

    def model_of(self, view: str) -> Model:
        """The model that sees batches in this view."""
        return self.generator if self.generator is not None and view == "masked" else self.model

    def used(self, objectives: Sequence[Objective] | None = None) -> set[nn.Parameter]:
        """The parameters that objectives (all by default) need."""
        objectives = self.objectives if objectives is None else objectives
        heads = {(o.input_view, o.head) for o in objectives}
        needed = set()
        for model in filter(None, (self.model, self.generator)):
            own = {head for view, head in heads if model is self.model_of(view)}
            parts = model.parts(own & model.heads.keys())
            if BagOfWords.head in own and model.pooler is not None:
                parts += [model.pooler, model.heads["mlm"]]
            needed |= {p for part in parts for p in part.parameters()}
        return needed


def unmasked(batch: Batch) -> Tensor:
    """Token ids (T) with what stood there put back where it was masked."""
    if batch.masked_positions is None:
        return batch.token_ids
    assert batch.masked_ids is not None
    return batch.token_ids.index_copy(0, batch.masked_positions, batch.masked_ids)


def causal_view(batch: Batch) -> Batch:
    """The batch for predicting each next token: all but the last of a sequence are targets' rows.

    Its ``masked_positions`` and ``masked_ids`` are of length T - B.
    """
    ids, layout = unmasked(batch), batch.layout
    last = np.cumsum(layout.lengths) - 1
    rows = to_device(torch.from_numpy(np.delete(np.arange(batch.tokens), last)), ids.device)
    layout = replace(layout, causal=True)
    return replace(
        batch, token_ids=ids, layout=layout, masked_positions=rows, masked_ids=ids[rows + 1]
    )


@torch.no_grad()
def corrupted_view(batch: Batch, logits: Tensor) -> Batch:
    """The batch with tokens drawn from a generator's ``logits`` (M, V) where it was masked.

    Its ``replaced`` (T) is true where the token is not the one that stood there.
    """
    assert batch.masked_positions is not None
    assert batch.masked_ids is not None
    # The largest of logits with Gumbel noise is a draw from their softmax.
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
    drawn = (logits.float() - noise).argmax(-1)
    ids = batch.token_ids.index_copy(0, batch.masked_positions, drawn)
    return replace(batch, token_ids=ids, replaced=ids != unmasked(batch))
