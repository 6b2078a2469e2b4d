"""Which tokens permutation language modelling predicts, and in which order.

T tokens of a sequence, V vocabulary, M targets.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from ownbert.batches.batch import Batch

# Of XLNet: a span of one to five tokens in six times as many.
_LONGEST, _TOKENS_PER_TARGET = 5, 6


@dataclass(frozen=True)
class PermutedSpans:
    """Spans to predict, each somewhere in a piece of the text that is six times as long.

    The text is split into such pieces one after the other, each for a span of 1 to 5 tokens.
    Special tokens in a span are not predicted, and what is not predicted is context, which all
    see.

    Args:
        ordinary: (V), false for special tokens.

    Source: Yang et al. 2019, section 2.2 and appendix A.3; the spans as in Transformers'
    DataCollatorForPermutationLanguageModeling.
    """

    ordinary: np.ndarray

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Choose the targets of a sequence.

        Args:
            ids: (T), the tokens.
            rng: the source of all random numbers.

        Returns:
            The positions of the targets (M, ascending), and the place of each in the order (M).
            There is at least one target, if there is any ordinary token.
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
    """The batch for predicting its masked tokens, which it shows, in the order that it names.

    Its ``predicted`` are the rows of these tokens (M), which a query stream predicts, and its
    ``masked_positions`` those of this stream, behind all tokens.

    Raises:
        ValueError: the batch names no order.
    """
    if batch.masked_positions is None or batch.order is None:
        raise ValueError("a batch for permutation language modelling names an order of its targets")
    rows = batch.masked_positions
    ranks = torch.full_like(batch.token_ids, -1).index_copy(0, rows, batch.order)
    behind = torch.arange(batch.tokens, batch.tokens + len(rows), device=rows.device)
    layout = replace(batch.layout, ranks=ranks)
    return replace(batch, layout=layout, predicted=rows, masked_positions=behind)
