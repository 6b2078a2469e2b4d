"""Permutation language modelling: words in a random order, by an XLNet.

T tokens of a sequence, V vocabulary, M targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ownbert.config.encoder import XLNET_STRUCTURE, EncoderConfig
from ownbert.config.head_spec import HeadSpec
from ownbert.objectives.objective import PretrainingObjective

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ownbert.batches.batch import Batch
    from ownbert.batches.example import Example
    from ownbert.batches.masking import Masker
    from ownbert.nn.model import Model
    from ownbert.text.tokenizer import Tokenizer


# XLNet: a span of one to five tokens in a context of six times its length.
_LONGEST, _TOKENS_PER_TARGET = 5, 6


@dataclass(frozen=True)
class PermutedSpans:
    """Spans to predict, of one to five tokens, each in a context of six times its length.

    Special tokens are not predicted; all tokens that are not predicted are visible to all others.
    ``ordinary`` (V) is false for special tokens.

    Source: Yang et al. 2019, section 2.2 and appendix A.3; the spans as in Transformers'
    DataCollatorForPermutationLanguageModeling.
    """

    ordinary: np.ndarray
    by_words = False

    def example(
        self, whole: Example, rng: np.random.Generator, begins: np.ndarray | None
    ) -> Example:
        positions, order = self(whole.token_ids, rng)
        ids = whole.token_ids[positions]
        return replace(whole, masked_positions=positions, masked_ids=ids, words=None, order=order)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """The positions of the targets (M, ascending) in a sequence of ids (T), and the rank of
        each in the prediction order (M); at least one target, if there is any ordinary token."""
        import numpy as np

        chosen = np.zeros(len(ids), dtype=bool)
        start = 0
        while start < len(ids):
            length = int(rng.integers(1, _LONGEST + 1))
            piece = length * _TOKENS_PER_TARGET
            first = start + int(rng.integers(piece - length + 1))
            chosen[first : first + length] = True
            start += piece
        candidates = self.ordinary[ids]
        positions = (chosen & candidates).nonzero()[0]
        if not len(positions) and candidates.any():
            positions = rng.choice(candidates.nonzero()[0], 1)
        return positions, rng.permutation(len(positions))


@dataclass(frozen=True)
class PermutationLM(PretrainingObjective):
    """Cross entropy of tokens that are predicted one after the other, in a random order: each by a
    query stream, from the tokens that are not predicted and those before it in the order.

    Source: Yang et al. 2019, sections 2.2 and 2.3.
    """

    name, input_view = "plm", "permuted"
    title, short, colour = "words in a random order", "PLM", 3
    explained = "words in a random order, on its own: XLNet"
    network, alone = "XLNet", True
    decodes = predicts = True

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        return permuted_view(batch)

    @classmethod
    def masker(cls, tokenizer: Tokenizer, ordinary: np.ndarray, task: Any) -> Masker:
        return PermutedSpans(ordinary)

    @classmethod
    def structure(cls, config: EncoderConfig, dropout: float) -> EncoderConfig:
        return replace(config, **XLNET_STRUCTURE, activation_dropout=dropout)

    @classmethod
    def make_network(cls, config: EncoderConfig, settings: Any) -> tuple[Model, None]:
        from ownbert.nn.model import Model

        head = HeadSpec("mlm", transform=False)
        return Model(config, [head], pooler=False, model_type="xlnet"), None


def permuted_view(batch: Batch) -> Batch:
    """The batch for predicting its masked tokens, which are not replaced, in its order.
    ``predicted`` are the rows of these tokens (M), which a query stream predicts, and
    ``masked_positions`` are the stream's rows, which follow all tokens."""
    import torch

    if batch.masked_positions is None or batch.order is None:
        raise ValueError("a batch for permutation language modelling names an order of its targets")
    rows = batch.masked_positions
    ranks = torch.full_like(batch.token_ids, -1).index_copy(0, rows, batch.order)
    behind = torch.arange(batch.tokens, batch.tokens + len(rows), device=rows.device)
    layout = replace(batch.layout, ranks=ranks)
    return replace(batch, layout=layout, predicted=rows, masked_positions=behind)
