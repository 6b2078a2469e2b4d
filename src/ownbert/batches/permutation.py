"""Permutation language modelling: selects the predicted tokens and their order.

T tokens of a sequence, V vocabulary, M targets.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from ownbert.batches.batch import Batch

# XLNet: a span of one to five tokens in a context of six times its length.
_LONGEST, _TOKENS_PER_TARGET = 5, 6


@dataclass(frozen=True)
class PermutedSpans:
    """Spans to predict, each in a context of six times its length.

    The text is split into such contexts, each with a span of 1 to 5 tokens. Special tokens are not
    predicted; all tokens that are not predicted are visible to all others.

    Args:
        ordinary: (V) false for special tokens.

    Source: Yang et al. 2019, section 2.2 and appendix A.3; the spans as in Transformers'
    DataCollatorForPermutationLanguageModeling.
    """

    ordinary: np.ndarray

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Choose the targets of a sequence.

        Args:
            ids: (T) the tokens.
            rng: random generator.

        Returns:
            The positions of the targets (M, ascending), and the rank of each in the prediction
            order (M). There is at least one target, if there is any ordinary token.
        """
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


def permuted_view(batch: Batch) -> Batch:
    """The batch for predicting its masked tokens, which are not replaced, in the given order.

    ``predicted`` are the rows of these tokens (M), which a query stream predicts, and
    ``masked_positions`` are the stream's rows, which follow all tokens.

    Raises:
        ValueError: the batch has no order.
    """
    if batch.masked_positions is None or batch.order is None:
        raise ValueError("a batch for permutation language modelling names an order of its targets")
    rows = batch.masked_positions
    ranks = torch.full_like(batch.token_ids, -1).index_copy(0, rows, batch.order)
    behind = torch.arange(batch.tokens, batch.tokens + len(rows), device=rows.device)
    layout = replace(batch.layout, ranks=ranks)
    return replace(batch, layout=layout, predicted=rows, masked_positions=behind)
