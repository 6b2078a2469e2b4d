"""The words that a softmax in training is taken over.

T tokens, C candidates, V vocabulary, E embedding size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

# So many are drawn beside the words of a batch, in which long texts repeat themselves.
DRAWS = 4096
# Candidates are filled up to a multiple of this, since products of few shapes are compiled less
# often (``ownbert.nn.fast.linear_layers``).
_MULTIPLE = 128


@dataclass(frozen=True)
class Candidates:
    """Some words of the vocabulary, among which those of a batch are.

    Args:
        ids: (C), ascending; the last one may recur.
        offsets: (C), to add to their logits: the rarer a word is a candidate, the more it counts
            when it is one; -inf for what is not to be predicted.
        rows: of a table of words by its id, (C, E), once they have been selected.
    """

    ids: Tensor
    offsets: Tensor
    rows: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def index_of(self, ids: Tensor) -> Tensor:
        """Which candidates token ids are."""
        return torch.searchsorted(self.ids, ids)


@dataclass(frozen=True)
class CandidateSampler:
    """Draws the candidates of a batch: its own words, and others by their frequency.

    A word of probability p is among T words of a batch and N drawn ones with the probability
    1 - exp(-(T + N) p), as if the words of a batch were drawn, too. The logarithm of that is taken
    off its logit, so that the expected sum over candidates is the sum over all words.

    Args:
        probabilities: (V), of the words in the corpus, on the device of the batches; 0 for tokens
            that are never predicted, which are candidates where a batch has them.
        draws: N.

    Source: Bengio and Senecal 2008 (importance sampling by word frequencies); Jean et al. 2015,
    section 3; the words of the batch as samples: Yi et al. 2019, section 3.
    """

    probabilities: Tensor
    draws: int = DRAWS

    def __call__(self, ids: Tensor, shown: Tensor | None = None) -> Candidates:
        """The candidates for a batch.

        Args:
            ids: (T), its tokens.
            shown: (T), what the model sees in their places; that is never predicted, but its rows
                are selected too.
        """
        drawn = torch.multinomial(self.probabilities, self.draws, replacement=True)
        own = torch.cat((ids, drawn))
        found = (own if shown is None else torch.cat((own, shown))).unique()
        found = torch.cat((found, found[-1:].expand(-len(found) % _MULTIPLE)))
        expected = (len(ids) + self.draws) * self.probabilities[found]
        chance = -torch.expm1(-expected)
        offsets = torch.full_like(chance, -torch.inf)
        # Of ids that recur, only the first is found.
        at = torch.searchsorted(found, own)
        offsets[at] = torch.where(expected > 0, -chance.log(), 0.0)[at]
        return Candidates(found, offsets)
