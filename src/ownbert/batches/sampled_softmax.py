"""Sampled softmax: the words that a softmax in training is computed over.

T tokens, C candidates, V vocabulary, E embedding size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

# Number of sampled words, in addition to the words of a batch, which repeat in long texts.
DRAWS = 4096
# Candidates are padded to a multiple of this, because few shapes need fewer compilations
# (``ownbert.nn.layers``).
_MULTIPLE = 128


@dataclass(frozen=True)
class Candidates:
    """A subset of the vocabulary that includes all words of a batch.

    Args:
        ids: (C) ascending; the last one may repeat.
        offsets: (C) added to the logits: the less likely a word is to be a candidate, the larger
            its weight; -inf for words that must not be predicted.
        rows: rows of a word table by its id, (C, E), once selected.
    """

    ids: Tensor
    offsets: Tensor
    rows: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def index_of(self, ids: Tensor) -> Tensor:
        """The candidate indices of token ids."""
        return torch.searchsorted(self.ids, ids)


@dataclass(frozen=True)
class CandidateSampler:
    """Samples the candidates of a batch: its own words, and others by their frequency.

    A word of probability p is among T words of a batch and N samples with probability
    1 - exp(-(T + N) p), if the words of a batch are regarded as samples. The logarithm of that is
    subtracted from its logit, so that the expected sum over candidates is the sum over all words.

    Args:
        probabilities: (V) word probabilities in the corpus, on the device of the batches; 0 for
            tokens that are never predicted, which are candidates only if they occur in a batch.
        draws: number of samples N.

    Source: Bengio and Senecal 2008 (importance sampling by word frequencies); Jean et al. 2015,
    section 3; the words of the batch as samples: Yi et al. 2019, section 3.
    """

    probabilities: Tensor
    draws: int = DRAWS

    def expected(self, ids: Tensor, shown: Tensor) -> float:
        """The expected number of candidates of a batch, without padding; for the arguments see
        ``__call__``."""
        chance = -torch.expm1(self.draws * torch.log1p(-self.probabilities))
        chance[torch.cat((ids, shown))] = 1.0
        return float(chance.sum())

    def __call__(self, ids: Tensor, shown: Tensor | None = None) -> Candidates:
        """Sample the candidates for the tokens of a batch (T); ``shown`` (T) are masked tokens as
        seen by the model, which are not predicted but whose rows are selected, too."""
        drawn = torch.multinomial(self.probabilities, self.draws, replacement=True)
        candidates = torch.cat((ids, drawn))
        ids_in_use = (candidates if shown is None else torch.cat((candidates, shown))).unique()
        ids_in_use = torch.cat((ids_in_use, ids_in_use[-1:].expand(-len(ids_in_use) % _MULTIPLE)))
        expected = (len(ids) + self.draws) * self.probabilities[ids_in_use]
        chance = -torch.expm1(-expected)
        offsets = torch.full_like(chance, -torch.inf)
        # Of repeated ids, only the first is found.
        at = torch.searchsorted(ids_in_use, candidates)
        offsets[at] = torch.where(expected > 0, -chance.log(), 0.0)[at]
        return Candidates(ids_in_use, offsets)
