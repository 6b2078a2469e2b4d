"""Causal language modelling: next words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ownbert.objectives.objective import PretrainingObjective, unmasked, with_special_tokens

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ownbert.batches.batch import Batch
    from ownbert.corpus.pretraining_examples import PretrainingData


@dataclass(frozen=True)
class CausalLM(PretrainingObjective):
    """Cross entropy of the next token under a model that sees only the tokens before it."""

    name, input_view = "clm", "causal"
    title, short, colour = "next words", "CLM", 2
    explained = "next words"
    decodes = predicts = True

    def count(self, batch: Batch) -> int:
        return batch.tokens - batch.sequences

    def to_view(self, batch: Batch, logits: Mapping[str, Tensor]) -> Batch:
        return causal_view(batch)

    @classmethod
    def unigram(cls, unigram: Tensor, data: PretrainingData, ordinary: np.ndarray) -> Tensor:
        return with_special_tokens(unigram, data, lambda example: example.token_ids[1:], ordinary)


def causal_view(batch: Batch) -> Batch:
    """The batch for predicting each next token: the targets' rows (T - B) are all but the last of a
    sequence, masked tokens are restored, and each token attends to those before it."""
    import numpy as np
    import torch

    from ownbert.batches.layout import to_device

    ids, layout = unmasked(batch), batch.layout
    last = np.cumsum(layout.lengths) - 1
    rows = to_device(torch.from_numpy(np.delete(np.arange(batch.tokens), last)), ids.device)
    layout = replace(layout, causal=True)
    return replace(
        batch, token_ids=ids, layout=layout, masked_positions=rows, masked_ids=ids[rows + 1]
    )
