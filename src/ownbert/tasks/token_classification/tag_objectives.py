"""Objectives of tagging: independent tags, or a CRF over the tags of a sentence.

A word is represented by its first token, the only one with a tag; C is the number of tags.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.objectives.objective import Loss
from ownbert.tasks.row_objectives import RowObjective, symmetric_kl
from ownbert.tasks.token_classification.word_windows import NO_TAG


def word_counts(batch: Batch) -> list[int]:
    """The number of tagged tokens of each sentence in a batch."""
    assert batch.tags is not None
    groups = (1,) * batch.sequences if batch.groups is None else batch.groups
    rows = np.repeat(np.arange(len(groups)), groups)
    tagged = (batch.tags >= 0).cpu().numpy()
    tokens = np.repeat(rows, batch.layout.lengths)
    return np.bincount(tokens[tagged], minlength=len(groups)).tolist()


@dataclass(frozen=True)
class TaggingObjective(RowObjective):
    """Cross entropy of the tag of each tagged token."""

    name: str = "tags"
    head: str = "tokens"
    smoothing: float = 0.0

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else int((batch.tags >= 0).sum())

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        logits, tags = logits.float(), batch.tags
        total = F.cross_entropy(
            logits, tags, ignore_index=NO_TAG, label_smoothing=self.smoothing, reduction="sum"
        )
        return Loss(total, _count_correct(logits, tags), self.count(batch))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        assert batch.tags is not None
        tagged = batch.tags >= 0
        return symmetric_kl(one[tagged], two[tagged]).sum()


@dataclass(frozen=True)
class CrfObjective(TaggingObjective):
    """Negative log-likelihood of the tags of a sentence under a linear-chain CRF.

    The logits are the emission scores. The loss is counted per word, to be comparable with cross
    entropy; correct tags are counted by the logits alone.

    Source: Lafferty, McCallum, Pereira 2001, section 3.
    """

    crf: Any = None

    def __call__(self, logits: Tensor, batch: Batch) -> Loss:
        assert batch.tags is not None
        tagged = batch.tags >= 0
        counts = word_counts(batch)
        emissions, mask = pad_sentences(logits.float()[tagged], counts)
        tags, _ = pad_sentences(batch.tags[tagged], counts)
        total = -self.crf(emissions, tags, mask, reduction="sum")
        return Loss(total, _count_correct(logits, batch.tags), sum(counts))

    def distance(self, one: Tensor, two: Tensor, batch: Batch) -> Tensor:
        assert batch.tags is not None
        tagged, counts = batch.tags >= 0, word_counts(batch)
        a, b = (word_marginals(x.float()[tagged], counts, self.crf) for x in (one, two))
        return symmetric_kl(a, b).sum()


def _count_correct(logits: Tensor, tags: Tensor) -> Tensor:
    # NO_TAG is not a class, so tokens without a tag are not counted.
    return (logits.detach().argmax(-1) == tags).sum()


def pad_sentences(values: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
    """Pad words to sentences; sentences without words are skipped.

    Args:
        values: (words, ...).
        counts: number of words of each sentence.

    Returns:
        (sentences, longest, ...), and the mask of words (sentences, longest).
    """
    counts = [n for n in counts if n]
    padded = nn.utils.rnn.pad_sequence(list(values.split(counts)), batch_first=True)
    lengths = torch.tensor(counts, device=values.device)
    return padded, torch.arange(padded.shape[1], device=values.device) < lengths[:, None]


def word_marginals(emissions: Tensor, counts: list[int], crf: Any) -> Tensor:
    """(words, C) -> (words, C): the log-probability of each tag of a word given the whole
    sentence."""
    if not len(emissions):
        return emissions
    padded, mask = pad_sentences(emissions, counts)
    return log_marginals(crf, padded, mask)[mask]


@torch.inference_mode()
def marginals(emissions: np.ndarray, counts: list[int], crf: Any) -> np.ndarray:
    """(words, C) -> (words, C): the probability of each tag of a word given the whole sentence.

    Args:
        emissions: emission scores of the words of all sentences.
        counts: number of words of each sentence.
        crf: CRF, whose transitions may be arrays.
    """
    names = ("transitions", "start_transitions", "end_transitions")
    crf = SimpleNamespace(**{name: torch.as_tensor(getattr(crf, name)) for name in names})
    return word_marginals(torch.from_numpy(emissions), counts, crf).exp().numpy()


def log_marginals(crf: Any, emissions: Tensor, mask: Tensor) -> Tensor:
    """Marginal log-probabilities by the forward-backward algorithm in log space.

    Choosing the best tag of each word by these minimises the expected number of wrong words; the
    tags need not be the single best path.

    Args:
        crf: CRF with transitions.
        emissions: (sentences, longest, C).
        mask: (sentences, longest).

    Returns:
        (sentences, longest, C).

    Source: Lafferty et al. 2001, section 3.
    """
    transitions = crf.transitions.float()  # (C, C), from row to column
    forward = [crf.start_transitions + emissions[:, 0]]
    for step in range(1, emissions.shape[1]):
        after = (forward[-1][:, :, None] + transitions).logsumexp(1) + emissions[:, step]
        forward.append(torch.where(mask[:, step, None], after, forward[-1]))
    backward = [crf.end_transitions.expand_as(forward[0])]
    for step in range(emissions.shape[1] - 1, 0, -1):
        next_score = emissions[:, step] + backward[-1]
        before = (transitions + next_score[:, None]).logsumexp(2)
        backward.append(torch.where(mask[:, step, None], before, backward[-1]))
    return (torch.stack(forward, 1) + torch.stack(backward[::-1], 1)).log_softmax(-1)
