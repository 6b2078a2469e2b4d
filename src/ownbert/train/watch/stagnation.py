"""Whether a pretraining run learns anything, judged by its log."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# After this many tokens a run should know more than which words are frequent. Every measured run
# (tiny, mini, small; anonymised news, English, Chinese; initialised and random embeddings) was
# 2.5 % below the unigram loss after 0.2 million tokens and 4 % after 0.4 million.
ENOUGH_TOKENS = 1_000_000
# With large batches a million tokens are a few steps, in which no run learns.
ENOUGH_STEPS = 200
# A run learns if its loss is this far below the unigram loss. It is a proportion, since how much
# can be learnt depends on the text; a model of frequencies alone stays within 0.3 %.
MARGIN = 0.02


def diagnose_stagnation(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """A warning of two lines if the run does not seem to learn anything, else None.

    The loss of the last evaluation is compared with its ``unigram_loss``, that of a model that
    knows only the frequencies of the tokens.

    Args:
        rows: of the log so far.
    """
    last = next((row for row in reversed(rows) if row.get("evaluation")), {})
    trained = [row for row in rows if not row.get("evaluation") and "tokens" in row]
    names = (name for name in ("mlm", "clm", "plm", "span_corruption") if f"{name}_loss" in last)
    name = next(names, "mlm")
    if not last.keys() >= {f"{name}_loss", "unigram_loss"} or not trained:
        return None
    tokens, steps = trained[-1]["tokens"], last["step"]
    loss, unigram = last[f"{name}_loss"], last["unigram_loss"]
    if tokens < ENOUGH_TOKENS or steps < ENOUGH_STEPS or loss < (1 - MARGIN) * unigram:
        return None
    worse = not loss < (1 + MARGIN) * unigram  # also where it is not a number
    if _rises(trained) and not worse:
        return None
    finding = (
        "is worse than the frequencies of the words alone"
        if worse
        else "knows nothing but how frequent each word is"
    )
    return (
        f"not learning: after {tokens:,} tokens the model {finding} "
        f"(held-out {name.upper()} loss {loss:.2f}, unigram baseline {unigram:.2f})\n"
        f"{_advice(trained, worse)}"
    )


def _advice(trained: Sequence[Mapping[str, Any]], worse: bool) -> str:
    """The usual causes, the most likely first."""
    rate = max(row.get("learning_rate", 0.0) for row in trained)
    high = "too high" if worse else "too high or too low"
    current = f", now {rate:.2g}" if rate else ""
    return (
        f"usual causes: a learning rate that is {high} (--learning-rate{current}); batches that "
        "are too small (--batch-tokens, --accumulate); a corpus of duplicates, or with no order in "
        "its tokens; masks that leave too little context (--mask-rate, BERT has 0.15)"
    )


def _rises(trained: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the learning rate still warms up: a long run may not have started to learn yet."""
    rates = [row.get("learning_rate", 0.0) for row in trained]
    return len(rates) > 1 and rates[-1] > max(rates[:-1]) and not math.isclose(rates[-1], rates[-2])
