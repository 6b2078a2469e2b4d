"""Detects from its log whether a pretraining run learns nothing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ownbert.objectives import PRETRAINING

# After this many tokens a run should know more than token frequencies. Every measured run (tiny,
# mini, small; anonymised news, English, Chinese; initialised and random embeddings) was 2.5 % below
# the unigram loss after 0.2 million tokens and 4 % after 0.4 million.
ENOUGH_TOKENS = 1_000_000
# With large batches a million tokens are too few steps for any run.
ENOUGH_STEPS = 200
# Required distance below the unigram loss. It is relative, because how much can be learnt depends
# on the text; a unigram model stays within 0.3 %.
MARGIN = 0.02


def diagnose_stagnation(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning of two lines if the run does not seem to learn, else None.

    Compares the loss of the last evaluation with its ``unigram_loss``, the loss of a model that
    knows only token frequencies.
    """
    last = next((row for row in reversed(rows) if row.get("evaluation")), {})
    trained = [row for row in rows if not row.get("evaluation") and "tokens" in row]
    predicting = (name for name, objective in PRETRAINING.items() if objective.predicts)
    name = next((name for name in predicting if f"{name}_loss" in last), "mlm")
    if not last.keys() >= {f"{name}_loss", "unigram_loss"} or not trained:
        return None
    tokens, steps = trained[-1]["tokens"], last["step"]
    loss, unigram = last[f"{name}_loss"], last["unigram_loss"]
    if tokens < ENOUGH_TOKENS or steps < ENOUGH_STEPS or loss < (1 - MARGIN) * unigram:
        return None
    worse = not loss < (1 + MARGIN) * unigram  # also true for NaN
    if _is_warming_up(trained) and not worse:
        return None
    finding = (
        "is worse than word frequencies alone" if worse else "has learnt only word frequencies"
    )
    return (
        f"not learning: after {tokens:,} tokens the model {finding} "
        f"(held-out {name.upper()} loss {loss:.2f}, unigram baseline {unigram:.2f})\n"
        f"{_advice(trained, worse)}"
    )


def _advice(trained: Sequence[Mapping[str, Any]], worse: bool) -> str:
    """The usual causes, most likely first."""
    rate = max(row.get("learning_rate", 0.0) for row in trained)
    high = "too high" if worse else "too high or too low"
    current = f", now {rate:.2g}" if rate else ""
    return (
        f"usual causes: a learning rate that is {high} (--learning-rate{current}); batches that "
        "are too small (--batch-tokens, --accumulate); a corpus of duplicates, or of tokens "
        "without any order; masks that leave too little context (--mask-rate, BERT uses 0.15)"
    )


def _is_warming_up(trained: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the learning rate is still warming up, so that learning may not have started."""
    rates = [row.get("learning_rate", 0.0) for row in trained]
    return len(rates) > 1 and rates[-1] > max(rates[:-1]) and not math.isclose(rates[-1], rates[-2])
