"""A sequence before packing, and batches by numbers of tokens; does not depend on torch.

T tokens, B sequences, S longest sequence, M masked tokens, W words, F features of a word,
P patches, C labels.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ownbert.threads import adapt_threads


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

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths of its sequences."""
        return self.parts or (len(self.token_ids),)

    def split(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of the tokens, (T, ...), by sequence."""
        return np.split(values, np.cumsum(self.lengths)[:-1])


def split_sequences(examples: Iterable[Example]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The ids and the types of all sequences of examples."""
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    for example in examples:
        ids += example.split(example.token_ids)
        types += example.split(example.type_ids)
    return ids, types


def padded(
    ids: Sequence[np.ndarray], pad: int, types: Iterable[Any] | None
) -> dict[str, np.ndarray]:
    """Sequences as inputs of a Transformers model: int64 (B, S) each; ``types`` of the tokens, or
    one for all tokens, of each sequence, or None for no such input."""
    shape = len(ids), max(map(len, ids), default=0)
    inputs = {
        "input_ids": np.full(shape, pad, np.int64),
        "attention_mask": np.zeros(shape, np.int64),
    }
    for row, sequence in enumerate(ids):
        inputs["input_ids"][row, : len(sequence)] = sequence
        inputs["attention_mask"][row, : len(sequence)] = 1
    if types is not None:
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
        for row, (sequence, values) in enumerate(zip(ids, types, strict=True)):
            inputs["token_type_ids"][row, : len(sequence)] = values
    return inputs


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
