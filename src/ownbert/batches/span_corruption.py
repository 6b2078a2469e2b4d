"""Which spans T5's pretraining takes out of a text, and what its encoder and decoder then read.

T tokens of a sequence, V vocabulary, N spans.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ownbert.batches.example import Example
from ownbert.text.styles import SENTINEL

if TYPE_CHECKING:
    from ownbert.text.tokenizer import Tokenizer

# As many as T5 has.
_SENTINELS = tuple(map(SENTINEL.format, range(100)))


def with_sentinels(tokenizer: "Tokenizer") -> tuple["Tokenizer", np.ndarray]:
    """The tokenizer with <extra_id_0> and so on, and their ids in this order (100).

    That of a T5 has them; others get them behind their vocabulary.
    """
    tokenizer = tokenizer.with_special_tokens(_SENTINELS)
    known = {token: number for number, token in enumerate(tokenizer.vocabulary())}
    return tokenizer, np.array([known[token] for token in _SENTINELS])


@dataclass(frozen=True)
class SpanCorruption:
    """Spans replaced by sentinels, to be written by a decoder.

    The encoder reads the text with a sentinel in place of each span, <0>, <1>, ... in their order.
    The decoder writes each sentinel and the tokens that it stands for, and the end of the text.
    Lengths of spans, and of what is between them, are random partitions of the tokens that are
    taken out and of those that stay. Special tokens around the text are never taken out.

    Args:
        sentinels: (100), their ids in their order.
        start_id: what the decoder reads first.
        end_id: what it writes last.
        ordinary: (V), false for special tokens.
        rate: share of the tokens that are taken out.
        length: of a span on average, in tokens; a text has as many spans as sentinels at most.

    Source: Raffel et al. 2020, section 3.1.4, figure 2, and their random_spans_noise_mask.
    """

    sentinels: np.ndarray
    start_id: int
    end_id: int
    ordinary: np.ndarray
    rate: float = 0.15
    length: float = 3.0

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> Example:
        """The pair of a sequence.

        Args:
            ids: (T), the tokens, special ones included.
            rng: the source of all random numbers.
        """
        inside = self.ordinary[ids].nonzero()[0]
        first, stop = (inside[0], inside[-1] + 1) if len(inside) else (0, 0)
        starts, lengths = self._spans(int(stop - first), rng)
        source, target, at = [], [], 0
        for number, (start, length) in enumerate(zip(starts + first, lengths, strict=True)):
            sentinel = self.sentinels[number : number + 1]
            source += [ids[at:start], sentinel]
            target += [sentinel, ids[start : start + length]]
            at = start + length
        read = np.concatenate([*source, ids[at:]])
        written = np.concatenate([*target, [self.end_id]]).astype(np.int64)
        inputs = np.concatenate([[self.start_id], written[:-1]])
        return Example(
            inputs,
            np.zeros_like(inputs),
            tags=written,
            source=Example(read, np.zeros_like(read)),
        )

    def _spans(self, tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Where the spans of so many tokens begin (N) and how long they are (N).

        A text begins with what stays and ends with a span, as there; one of less than two tokens
        stays whole.
        """
        if tokens < 2:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        taken = min(max(1, round(self.rate * tokens)), tokens - 1)
        count = min(max(1, round(taken / self.length)), tokens - taken, len(self.sentinels))
        lengths, between = _partition(taken, count, rng), _partition(tokens - taken, count, rng)
        return np.cumsum(between) + np.cumsum(lengths) - lengths, lengths


def _partition(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random division of ``total`` into ``count`` numbers of at least one."""
    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)
