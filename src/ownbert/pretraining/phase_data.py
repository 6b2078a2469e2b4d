"""The data of a phase of pretraining: its examples, its evaluation on held-out text, and canaries,
which are random token sequences planted in the training text to measure memorisation (``ownbert
audit``)."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.batches.batch import Batch
from ownbert.batches.loader import batches_once
from ownbert.corpus.pretraining_examples import PretrainingData, hold_out
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.files.json_files import write_json
from ownbert.objectives import PRETRAINING, objectives_of
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import PretrainingObjective
from ownbert.pretraining.pretrain_recipe import PretrainData, PretrainTask
from ownbert.run.file_names import CANARIES
from ownbert.train.device import autocast
from ownbert.train.meter import add_up, mean_metrics

# Tokens per evaluation: enough for two digits, in little time.
_EVALUATION_TOKENS = 30_000
LENGTH = 6  # tokens of a canary
# How often canaries are planted, cyclically.
_REPEATS = (1, 2, 4, 8, 16)
# Documents must have this many times the length of a canary.
_ROOM = 2


@dataclass(frozen=True)
class PhaseData:
    """Training and held-out examples of a phase; ``unigram`` (V): log-probability of each token by
    its frequency; ``ordinary`` (V): true for tokens that are not special."""

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
        """Held-out examples with the same masks at every evaluation; at most ``most`` tokens,
        except that the first batch is always included."""
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
        """Losses and accuracies on ``batches``, and baselines: the loss of predicting tokens by
        frequency (unigram_loss) or uniformly (uniform_loss), and the accuracy of always choosing
        the majority class (..._majority_accuracy). Empty without batches."""
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


def plant(
    store: Store, ordinary: np.ndarray, count: int, *, held_out: float, seed: int
) -> tuple[Store, list[dict[str, Any]]]:
    """A store whose training text contains ``count`` canaries of ``ordinary`` tokens, and for each
    canary its ``ids`` and the number of ``times`` it was planted; the first once, others 2, 4, 8
    and 16 times. The files of the store are not changed.

    Source: Carlini et al. 2019, "The Secret Sharer", section 4.
    """
    rng = np.random.default_rng((seed, 0xCA4A))
    times = [_REPEATS[i % len(_REPEATS)] for i in range(count)]
    split = hold_out(store.sentence_ends, store.document_ends, held_out, seed)
    starts = np.concatenate([[0], split.ends[:-1]])
    free = np.flatnonzero(~split.held & (split.ends - starts >= _ROOM * LENGTH))
    if len(free) < sum(times):
        raise InputError(
            "{count} canaries are planted in {times} documents of {room} tokens or more, but "
            "{folder} has {count2} for training; use fewer",
            count,
            sum(times),
            _ROOM * LENGTH,
            store.folder,
            len(free),
        )
    places = iter(starts[rng.choice(free, sum(times), replace=False)].tolist())
    # A private memory map: pages are changed in memory only.
    path = store.folder / "tokens.bin"
    tokens = np.memmap(path, dtype=store.tokens.dtype, mode="c")
    ordinary_ids = np.flatnonzero(ordinary)
    canaries = []
    for number in times:
        ids = rng.choice(ordinary_ids, LENGTH)
        for _ in range(number):
            place = next(places)
            tokens[place : place + LENGTH] = ids
        canaries.append({"ids": ids.tolist(), "times": number})
    return replace(store, tokens=tokens), canaries


def write_canaries(folder: Path, canaries: list[dict[str, Any]]) -> None:
    if canaries:
        write_json(folder / CANARIES, {"format": 1, "canaries": canaries})
