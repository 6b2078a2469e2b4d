"""A sequence before it is packed; no torch is needed to make one.

T tokens, M masked tokens, W words, F features of a word, P patches, C labels.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Example:
    """One sequence before it is packed.

    Args:
        token_ids, type_ids: (T).
        masked_positions, masked_ids: (M), where tokens are masked, and which they were.
        order: (M), when each of these is predicted, from 0, where they are predicted one after the
            other.
        next_sentence: 0 if the second part follows the first, 1 if it comes from elsewhere or the
            two are swapped.
        label: a class, or numbers (C).
        weight: of the loss of the answer; None: 1.
        tags: (T), a class for each token, or -1 where there is none.
        words: (W, 1 + F), for each word, special tokens included, of how many tokens it is, and the
            ids of its F features.
        parts: the lengths of several sequences that lie in it end to end and have one answer
            (choices, segments of a document, texts to compare); they do not see each other.
        patches: (P, values), an image, whose token_ids mean nothing.
        source: the sequence that this one is a translation of.
    """

    token_ids: np.ndarray
    type_ids: np.ndarray
    masked_positions: np.ndarray | None = None
    masked_ids: np.ndarray | None = None
    next_sentence: int | None = None
    label: int | np.ndarray | None = None
    weight: np.float32 | None = None
    tags: np.ndarray | None = None
    words: np.ndarray | None = None
    parts: tuple[int, ...] | None = None
    patches: np.ndarray | None = None
    source: "Example | None" = None
    order: np.ndarray | None = None
