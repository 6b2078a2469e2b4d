"""Which sequences are computed together: batches by their tokens."""

from collections.abc import Iterator, Sequence

import numpy as np

from ownbert.threads import adapt_threads

# Tokens in one forward pass.
BATCH_TOKENS = 8192


def batches_by_tokens(
    order: np.ndarray, lengths: Sequence[int], most: int = BATCH_TOKENS
) -> Iterator[np.ndarray]:
    """Batches of indices in ``order``, each of at most ``most`` tokens or a single longer text."""
    start = tokens = 0
    for end, index in enumerate(order):
        if tokens and tokens + lengths[index] > most:
            adapt_threads()
            yield order[start:end]
            start, tokens = end, 0
        tokens += lengths[index]
    if start < len(order):
        adapt_threads()
        yield order[start:]
