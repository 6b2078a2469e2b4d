"""Groups sequences into batches by their number of tokens."""

from collections.abc import Iterator, Sequence

import numpy as np

from ownbert.threads import adapt_threads

# Maximum tokens per forward pass.
BATCH_TOKENS = 8192


def batches_by_tokens(
    order: np.ndarray, lengths: Sequence[int], most: int = BATCH_TOKENS
) -> Iterator[np.ndarray]:
    """Yield batches of indices in ``order``, each with at most ``most`` tokens or a single text."""
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
