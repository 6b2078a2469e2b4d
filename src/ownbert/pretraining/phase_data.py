"""The data of each phase of pretraining, and its evaluation on held-out data."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ownbert.batches.batch import Batch
from ownbert.batches.loader import batches_once
from ownbert.batches.masking import Masking, continuing_tokens
from ownbert.batches.permutation import PermutedSpans
from ownbert.batches.span_corruption import SpanCorruption
from ownbert.corpus.sentence_pairs import PretrainingData, pretraining_data
from ownbert.corpus.store import Store
from ownbert.objectives import PRETRAINING, BagOfWords, Learner, Objective, causal_view
from ownbert.pretraining.pretrain_recipe import SHORT, PretrainData, PretrainTask
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.device import autocast
from ownbert.train.watch.meter import add_up, mean_metrics

# Tokens per evaluation: enough for two digits, in little time.
_EVALUATION_TOKENS = 30_000
# Number of examples for estimating the frequencies of sentinels.
_COUNTED_EXAMPLES = 200


@dataclass(frozen=True)
class PhaseData:
    """Training and held-out examples of a phase.

    Args:
        unigram: (V) log-probability of each token by its frequency.
        ordinary: (V) true for tokens that are not special.
    """

    task: PretrainTask
    settings: PretrainData
    examples: PretrainingData
    held_out: PretrainingData
    unigram: torch.Tensor
    ordinary: torch.Tensor

    @property
    def objectives(self) -> list[Objective]:
        kinds = {**PRETRAINING, "bow": partial(BagOfWords, ordinary=self.ordinary)}
        weight = {name: getattr(self.task, f"{name}_weight") for name in self.task.objectives}
        return [kinds[name](weight[name]) for name in self.task.objectives]

    def held_out_batches(self, most: float = math.inf) -> list[Batch]:
        """Held-out examples with the same masks at every evaluation.

        Args:
            most: maximum number of tokens, except that the first example is always included.
        """
        batches, tokens = [], 0
        size = int(min(2 * self.settings.batch_tokens, most))
        for batch in batches_once(self.held_out, batch_tokens=size):
            if batches and tokens + batch.tokens > most:
                break
            batches.append(batch)
            tokens += batch.tokens
            if tokens >= _EVALUATION_TOKENS:
                break
        return batches

    @torch.no_grad()
    def evaluate(
        self, learner: Learner, batches: Sequence[Batch], precision: str
    ) -> Mapping[str, float]:
        """Losses and accuracies on ``batches``, and baselines for comparison.

        Baselines are the loss of predicting tokens by frequency (unigram_loss) or uniformly
        (uniform_loss), and the accuracy of always choosing the majority class
        (..._majority_accuracy). Empty without batches.
        """
        learner.eval()
        device = learner.model.device
        torch.manual_seed(0)  # same generator samples at every evaluation
        sums: dict[str, list] = {}
        names = ("mlm", "clm", "plm", "span_corruption")
        predicting = next(name for name in names if name in self.task.objectives)
        unigram, zeros = 0.0, Counter()
        for batch in batches:
            with autocast(device, precision):
                losses = learner(batch.to(device), self.objectives)
            add_up(sums, losses)
            zeros.update(
                {n: int(loss.zeros) for n, loss in losses.items() if loss.zeros is not None}
            )
            targets = (causal_view(batch) if predicting == "clm" else batch).masked_ids
            targets = batch.tags if predicting == "span_corruption" else targets
            assert targets is not None
            unigram -= float(self.unigram[targets].sum())
        if not sums:
            return {}
        metrics = mean_metrics(sums, self.objectives)
        loss = sum(metrics[f"{o.name}_loss"] * o.weight for o in self.objectives)
        return {
            "loss": loss,
            "unigram_loss": unigram / max(1, sums[predicting][2]),
            "uniform_loss": math.log(max(1, int(self.ordinary.sum()))),
            **metrics,
            **{
                f"{name}_majority_accuracy": max(zeros[name], sums[name][2] - zeros[name])
                / sums[name][2]
                for name in zeros
            },
        }


def make_phase_data(
    store: Store,
    tokenizer: Tokenizer,
    task: PretrainTask,
    settings: PretrainData,
    *,
    ordinary: np.ndarray,
    unigram: torch.Tensor,
    sentinels: np.ndarray | None = None,
    seed: int,
) -> PhaseData:
    """Create the data of a phase.

    Args:
        store: token store of the corpus.
        tokenizer: tokenizer of the corpus.
        task: objectives of the phase.
        settings: data settings of the phase.
        ordinary: (V) true for tokens that are not special.
        unigram: (V) log-probability of each token by its frequency.
        sentinels: (100) ids of sentinels for span corruption.
        seed: seed of the examples.
    """
    masking = PermutedSpans(ordinary) if "plm" in task.objectives else None
    if sentinels is not None:
        masking = SpanCorruption(
            sentinels,
            decoder_start_id(tokenizer),
            tokenizer.sep_id,
            ordinary,
            rate=task.rate,
            length=task.span_length,
        )
    if "mlm" in task.objectives:
        masking = Masking(
            tokenizer.mask_id,
            ordinary,
            task.rate,
            kind=task.masking,
            continues=None if task.masking == "token" else continuing_tokens(tokenizer),
            longest=task.ngram if task.masking == "ngram" else None,
        )
    data, held_out = pretraining_data(
        store,
        tokenizer,
        masking,
        max_length=settings.max_length or SHORT,
        pairs=task.pairs,
        held_out=settings.held_out,
        seed=seed,
    )
    if sentinels is not None:
        unigram = _with_sentinels(unigram, data, ordinary)
    return PhaseData(task, settings, data, held_out, unigram, torch.from_numpy(ordinary))


def decoder_start_id(tokenizer: Tokenizer) -> int:
    """The id of a decoder's first token: the token that starts texts, or padding if there is
    none."""
    start = tokenizer.start_ids
    return int(start[0]) if len(start) else tokenizer.pad_id


def _with_sentinels(
    unigram: torch.Tensor, data: PretrainingData, ordinary: np.ndarray
) -> torch.Tensor:
    """Log-probabilities of decoder targets: words rescaled, sentinels and end tokens with their
    frequencies in the first examples."""
    examples = (data.example(0, i) for i in range(min(len(data), _COUNTED_EXAMPLES)))
    written = [example.tags for example in examples if example.tags is not None]
    counts = np.bincount(np.concatenate(written), minlength=len(ordinary))
    special = np.where(ordinary, 0, counts + 1.0)
    share = special.sum() / (special.sum() + counts[ordinary].sum())
    words = np.where(ordinary, unigram.exp().numpy(), 0)
    mixed = (1 - share) * words / words.sum() + share * special / special.sum()
    return torch.from_numpy(np.log(mixed).astype(np.float32))
