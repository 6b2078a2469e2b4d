"""The words that a softmax in training is taken over. T tokens, C candidates, V vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor

# So many are drawn beside the words of a batch, in which long texts repeat themselves.
DRAWS = 4096


@dataclass(frozen=True)
class Candidates:
    """Some words of the vocabulary, among which those of a batch are.

    Args:
        ids: (C), ascending.
        offsets: (C), to add to their logits: the rarer a word is a candidate, the more it counts
            when it is one.
    """

    ids: Tensor
    offsets: Tensor

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

    def __call__(self, ids: Tensor) -> Candidates:
        """The candidates for a batch of these token ids (T)."""
        drawn = torch.multinomial(self.probabilities, self.draws, replacement=True)
        found = torch.cat((ids, drawn)).unique()
        expected = (len(ids) + self.draws) * self.probabilities[found]
        chance = -torch.expm1(-expected)
        return Candidates(found, torch.where(expected > 0, -chance.log(), 0.0))
