"""Hashed n-grams of token ids, concatenated with the pooled vector. T tokens, B sequences, W width.

A bag of n-grams captures adjacent tokens directly, and its table learns much faster than an
encoder. Hash collisions cost little (Weinberger et al. 2009).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.batch import Batch

# Width of the table, fixed for all encoders because most of a model's size is here.
WIDTH = 128
# Peak learning rates of the table, measured with at least 7,000 examples and with 280. The first
# one overfits few examples.
RATE, RATE_OF_FEW = 0.1, 0.01
_LONGEST = 3
# Odd constants near 2^64 / golden ratio and pi as signed integers: int64 products wrap around
# equally on every device.
_MULTIPLIER, _FINAL = -7046029254386353131, -2643881736870682267


class NgramTable(nn.Module):
    """Embeddings of the bigrams and trigrams in each answer's tokens: (T) -> (answers, W).

    Their sum is divided by the square root of their number: a mean would be small for a long text,
    whose n-grams point in many directions, and a sum large. Only ordinary tokens count: not the
    first of a sequence ([CLS]), nor tokens equal to its last ([SEP], also between the texts of a
    pair), so n-grams do not span texts. The table, of ``buckets`` rows, starts at zero, so unseen
    n-grams contribute nothing.

    Source: Joulin et al. 2017 (fastText), section 2, for n-grams hashed into a table.
    """

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(
            buckets, WIDTH, mode="sum", sparse=True, _weight=torch.zeros(buckets, WIDTH)
        )
        # Peak learning rate, independent of other weights.
        self.rate = RATE
        # Ids of the tokens if the batch's token_ids are indices into them.
        self.ids: Tensor | None = None

    def forward(self, batch: Batch, *, grouped: bool) -> Tensor:
        """Embed the n-grams; ``grouped``: one answer for each group of sequences, not for each
        one."""
        buckets, sequences = ngram_buckets(batch, self.table.num_embeddings, ids=self.ids)
        answers = batch.sequences
        if grouped and batch.groups is not None:
            answers = batch.answers
            sizes = torch.tensor(batch.groups, device=buckets.device)
            of = torch.arange(answers, device=buckets.device).repeat_interleave(sizes)
            sequences = of[sequences]
        counts = torch.bincount(sequences, minlength=answers)
        sums = self.table(buckets, counts.cumsum(0) - counts)
        return sums / counts.clamp_min(1)[:, None].sqrt()

    def extra_repr(self) -> str:
        return "bigrams and trigrams"


def ngram_tables(model: nn.Module) -> list[NgramTable]:
    """All tables of a model, which are in its heads."""
    return [module for module in model.modules() if isinstance(module, NgramTable)]


def ngram_buckets(
    batch: Batch, buckets: int, *, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The buckets of all n-grams in a batch, and the sequence index of each, ascending; a sequence
    without adjacent ordinary tokens has none. ``ids`` are the actual ids if the batch's token ids
    are indices into them."""
    layout = batch.layout
    tokens = batch.token_ids if ids is None else ids[batch.token_ids]
    last = tokens[layout.cu_seqlens[1:].long() - 1]
    ordinary = tokens != last[layout.sequences]
    ordinary[batch.first.long()] = False
    hashed, places = hashed_ngrams(tokens, ordinary, buckets)  # (T, sizes): by sequence
    return hashed[places], layout.sequences[:, None].expand_as(places)[places]


def hashed_ngrams(tokens: Tensor, ordinary: Tensor, buckets: int) -> tuple[Tensor, Tensor]:
    """The buckets of the n-grams starting at each token, and a mask of valid ones.

    Ids (..., S) and ``ordinary``, true for tokens in n-grams, -> (..., S, sizes) twice.
    """
    hashes, valid = [], []
    keys, inside = tokens, ordinary
    for ahead in range(1, _LONGEST):
        # Positions beyond the end are not ordinary, so they are invalid.
        keys = keys * _MULTIPLIER + _shifted(tokens, ahead) + 1
        inside = inside & _shifted(ordinary, ahead)
        mixed = (keys ^ (keys >> 32)) * _FINAL  # uses all bits of a key
        hashes.append((mixed ^ (mixed >> 29)).remainder(buckets))
        valid.append(inside)
    return torch.stack(hashes, -1), torch.stack(valid, -1)


def _shifted(x: Tensor, by: int) -> Tensor:
    """(..., S) shifted ahead by a number of positions, zero beyond the end."""
    return F.pad(x, (0, by))[..., by:]
