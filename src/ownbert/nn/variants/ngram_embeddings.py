"""Hashed n-grams of token ids, as a vector beside the pooled one. T tokens, B sequences, W width.

A bag of n-grams knows which tokens stand side by side, whatever the encoder makes of them, and its
table learns much faster than an encoder. Collisions of the hash cost little (Weinberger et al.
2009).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.batch import Batch

# The width of the table: a number for all encoders, since most of a model's size is here.
WIDTH = 128
# Peak learning rates of the table, measured with 7,000 and more examples and with 280. With the
# first the few examples of the second are learnt by heart.
RATE, RATE_OF_FEW = 0.1, 0.01
_LONGEST = 3
# Odd constants near 2^64 / golden ratio and pi, as signed numbers: products in int64 wrap around,
# on every device in the same way.
_MULTIPLIER, _FINAL = -7046029254386353131, -2643881736870682267


class NgramTable(nn.Module):
    """The embeddings of the bigrams and trigrams of each answer's tokens: (T) -> (answers, W).

    Their sum, divided by the square root of how many there are: a mean would be small for a long
    text, whose n-grams point in many directions, and a sum large. Only ordinary tokens count: not
    the first of a sequence ([CLS]), nor those equal to its last ([SEP], also between the texts of a
    pair), so no n-gram spans two texts. The table starts at zero, so an n-gram that was never seen
    in training adds nothing.

    Source: Joulin et al. 2017 (fastText), section 2, for n-grams hashed into a table.

    Args:
        buckets: rows of the table.
    """

    def __init__(self, buckets: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(
            buckets, WIDTH, mode="sum", sparse=True, _weight=torch.zeros(buckets, WIDTH)
        )
        # The peak learning rate, whatever that of the other weights is.
        self.rate = RATE
        # The ids of the tokens of a batch, where its token_ids are indices of these.
        self.ids: Tensor | None = None

    def forward(self, batch: Batch, *, grouped: bool) -> Tensor:
        """grouped: whether there is an answer for each group of sequences instead of for each."""
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


def ngram_buckets(
    batch: Batch, buckets: int, *, ids: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The buckets of all n-grams of a batch, and the sequence of each, ascending.

    Args:
        batch: its token ids (T).
        buckets: how many there are.
        ids: what the token ids are indices of, if they are.

    Returns:
        Two vectors of equal length; a sequence without two ordinary tokens side by side has none.
    """
    layout = batch.layout
    tokens = batch.token_ids if ids is None else ids[batch.token_ids]
    last = tokens[layout.cu_seqlens[1:].long() - 1]
    ordinary = tokens != last[layout.sequences]
    ordinary[batch.first.long()] = False
    found, places = hashed_ngrams(tokens, ordinary, buckets)  # (T, sizes): sequences stay in order
    return found[places], layout.sequences[:, None].expand_as(places)[places]


def hashed_ngrams(tokens: Tensor, ordinary: Tensor, buckets: int) -> tuple[Tensor, Tensor]:
    """The buckets of the n-grams that begin at each token, and which of them are there.

    Args:
        tokens: (..., S), ids.
        ordinary: (..., S), true for the tokens that n-grams are made of.
        buckets: how many there are.

    Returns:
        Two tensors (..., S, sizes).
    """
    hashes, valid = [], []
    keys, inside = tokens, ordinary
    for ahead in range(1, _LONGEST):
        # What goes beyond the end is not ordinary, so it does not count.
        keys = keys * _MULTIPLIER + _ahead(tokens, ahead) + 1
        inside = inside & _ahead(ordinary, ahead)
        hashes.append(_mixed(keys, buckets))
        valid.append(inside)
    return torch.stack(hashes, -1), torch.stack(valid, -1)


def _ahead(x: Tensor, by: int) -> Tensor:
    """(..., S): what stands so many places later, zero beyond the end."""
    return F.pad(x, (0, by))[..., by:]


def _mixed(keys: Tensor, buckets: int) -> Tensor:
    """Keys to buckets; all bits of a key count."""
    keys = (keys ^ (keys >> 32)) * _FINAL
    return (keys ^ (keys >> 29)).remainder(buckets)
