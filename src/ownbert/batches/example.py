"""A sequence before packing; does not depend on torch.

T tokens, M masked tokens, W words, F features of a word, P patches, C labels.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Example:
    """A sequence before packing.

    Args:
        token_ids, type_ids: (T).
        masked_positions: (M) positions of masked tokens.
        masked_ids: (M) original ids of the masked tokens.
        order: (M) prediction order of the masked tokens, from 0, for permutation language
            modelling.
        next_sentence: 0 if the second part follows the first, 1 if it comes from elsewhere or the
            two are swapped.
        label: a class, or values (C).
        weight: weight of the answer's loss; None: 1.
        tags: (T) class of each token, or -1 for none.
        words: (W, 1 + F), for each word including special tokens its number of tokens and the ids
            of its F features.
        parts: lengths of several concatenated sequences with one answer (choices, windows of a
            document, texts to compare), which do not attend to each other.
        patches: (P, values) patches of an image, for which token_ids have no meaning.
        source: source sequence of a translation.
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
