"""Token surprisals of texts under a masked language model: pseudo-log-likelihoods.

n: tokens of a text.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ownbert.batches.by_tokens import batches_by_tokens
from ownbert.batches.example import Example
from ownbert.inference.fill_mask import Filler, masked_example

# Default number of passes over a text: every 6th token is masked, similar to pretraining.
PASSES = 6
# Tokens per forward pass; each masked token has V logits.
_BATCH_TOKENS = 4096
# Window size, in tokens, for models without a maximum length.
_WINDOW = 512


def surprisals(
    filler: Filler, texts: Sequence[np.ndarray], passes: int | None = PASSES
) -> list[np.ndarray]:
    """Compute -ln p of each token of texts, given the others.

    Each token is masked once: in each of ``passes`` passes every ``passes``-th token is masked.
    Texts longer than the model's limit are split into windows of equal length.

    Args:
        filler: the model.
        texts: ids (n) without special tokens.
        passes: number of passes; None: mask one token per pass, the exact pseudo-log-likelihood.

    Returns:
        float32 (n) for each text, in nats.

    Source: Salazar et al. 2020, Masked Language Model Scoring, equation 1.
    """
    input_format = filler.tokenizer.input_format
    limits = [each for each in (filler.longest, filler.tokenizer.max_length) if each]
    room = max(1, min(limits, default=_WINDOW) - input_format.special())
    results = [np.zeros(len(ids), dtype=np.float32) for ids in texts]
    # (text, first token, end, first masked token, distance between masked tokens)
    jobs: list[tuple[int, int, int, int, int]] = []
    for number, ids in enumerate(texts):
        windows = -(-len(ids) // room)
        edges = [len(ids) * i // windows for i in range(windows)] + [len(ids)]
        for start, end in pairwise(edges):
            step = min(passes or end - start, end - start)
            jobs += [(number, start, end, first, step) for first in range(step)]
    lengths = [end - start + input_format.special() for _, start, end, _, _ in jobs]
    for chosen in batches_by_tokens(np.argsort(lengths, kind="stable"), lengths, _BATCH_TOKENS):
        batch = [jobs[i] for i in chosen]
        examples = [_masked(filler, texts[n][start:end], *where) for n, start, end, *where in batch]
        values = filler.surprisals(examples)
        for number, start, end, first, step in batch:
            target = results[number][start:end][first::step]
            target[:], values = values[: len(target)], values[len(target) :]
    return results


def _masked(filler: Filler, ids: np.ndarray, first: int, step: int) -> Example:
    """A window in which every ``step``-th token from ``first`` on is masked."""
    tokenizer = filler.tokenizer
    positions = np.arange(first, len(ids), step)
    masked = np.array(ids, dtype=np.int64)
    masked[positions] = tokenizer.mask_id
    input_format = tokenizer.input_format
    example = masked_example(input_format.one(masked.tolist()), tokenizer)
    places, masked_ids = positions + input_format.before, np.asarray(ids[positions], np.int64)
    return replace(example, masked_positions=places, masked_ids=masked_ids, order=0 * positions)
