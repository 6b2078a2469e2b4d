"""The data of each phase of pretraining, and its evaluation on held-out data."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ownbert.batches.batch import Batch
from ownbert.batches.loader import batches_once
from ownbert.corpus.pretraining_examples import PretrainingData, pretraining_data
from ownbert.corpus.store import Store
from ownbert.objectives import PRETRAINING, objectives_of
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import PretrainingObjective
from ownbert.pretraining.pretrain_recipe import SHORT, PretrainData, PretrainTask
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.device import autocast
from ownbert.train.watch.meter import add_up, mean_metrics

# Tokens per evaluation: enough for two digits, in little time.
_EVALUATION_TOKENS = 30_000


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
    def objectives(self) -> list[PretrainingObjective]:
        return [
            PRETRAINING[name](getattr(self.task, f"{name}_weight"), self.ordinary)
            for name in self.task.objectives
        ]

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
        predicting = next(o() for o in objectives_of(self.task.objectives) if o.predicts)
        unigram, zeros = 0.0, Counter()
        for batch in batches:
            with autocast(device, precision):
                losses = learner(batch.to(device), self.objectives)
            add_up(sums, losses)
            zeros.update({n: int(x.zeros) for n, x in losses.items() if x.zeros is not None})
            unigram -= float(self.unigram[predicting.targets(predicting.to_view(batch, {}))].sum())
        if not sums:
            return {}
        metrics = mean_metrics(sums, self.objectives)
        loss = sum(metrics[f"{o.name}_loss"] * o.weight for o in self.objectives)
        shares = {name: count / sums[name][2] for name, count in zeros.items()}
        return {
            "loss": loss,
            "unigram_loss": unigram / max(1, sums[predicting.name][2]),
            "uniform_loss": math.log(max(1, int(self.ordinary.sum()))),
            **metrics,
            **{f"{name}_majority_accuracy": max(p, 1 - p) for name, p in shares.items()},
        }


def make_phase_data(
    store: Store,
    tokenizer: Tokenizer,
    task: PretrainTask,
    settings: PretrainData,
    *,
    ordinary: np.ndarray,
    unigram: torch.Tensor,
    seed: int,
) -> PhaseData:
    """Create the data of a phase."""
    chosen = objectives_of(task.objectives)
    maskers = (one.masker(tokenizer, ordinary, task) for one in chosen)
    data, held_out = pretraining_data(
        store,
        tokenizer,
        next(filter(None, maskers), None),
        max_length=settings.max_length or SHORT,
        pairs=task.pairs,
        held_out=settings.held_out,
        seed=seed,
    )
    predicting = next(one for one in chosen if one.predicts)
    unigram = predicting.unigram(unigram, data, ordinary)
    return PhaseData(task, settings, data, held_out, unigram, torch.from_numpy(ordinary))
