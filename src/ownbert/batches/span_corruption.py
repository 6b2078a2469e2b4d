"""T5's span corruption: removes spans from a text, and makes inputs of encoder and decoder.

T tokens of a sequence, V vocabulary, N spans.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ownbert.batches.example import Example
from ownbert.text.styles import SENTINEL

if TYPE_CHECKING:
    from ownbert.text.tokenizer import Tokenizer

# Number of sentinels in T5.
_SENTINELS = tuple(map(SENTINEL.format, range(100)))


def with_sentinels(tokenizer: "Tokenizer") -> tuple["Tokenizer", np.ndarray]:
    """Return a tokenizer with <extra_id_0>, ..., and their ids in this order (100).

    T5's tokenizer has them; other tokenizers get them appended to their vocabulary.
    """
    tokenizer = tokenizer.with_special_tokens(_SENTINELS)
    known = {token: number for number, token in enumerate(tokenizer.vocabulary())}
    return tokenizer, np.array([known[token] for token in _SENTINELS])


@dataclass(frozen=True)
class SpanCorruption:
    """Replaces spans by sentinels, which a decoder has to reconstruct.

    The encoder reads the text with a sentinel <0>, <1>, ... instead of each span. The decoder
    writes each sentinel followed by its span, and the end token. Lengths of spans and of the text
    between them are random partitions of the removed and the remaining tokens. Special tokens
    around the text are never removed.

    Args:
        sentinels: (100) sentinel ids in order.
        start_id: first token of the decoder's input.
        end_id: last token of the decoder's output.
        ordinary: (V) false for special tokens.
        rate: share of removed tokens.
        length: mean span length in tokens; a text has at most as many spans as there are sentinels.

    Source: Raffel et al. 2020, section 3.1.4, figure 2, and their random_spans_noise_mask.
    """

    sentinels: np.ndarray
    start_id: int
    end_id: int
    ordinary: np.ndarray
    rate: float = 0.15
    length: float = 3.0

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> Example:
        """Make an encoder-decoder example of a sequence.

        Args:
            ids: (T) tokens including special tokens.
            rng: random generator.
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
        """Starts (N) and lengths (N) of spans in a text of ``tokens`` tokens.

        As in T5, a text starts with kept tokens and ends with a span; one with fewer than two
        tokens is kept.
        """
        if tokens < 2:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        taken = min(max(1, round(self.rate * tokens)), tokens - 1)
        count = min(max(1, round(taken / self.length)), tokens - taken, len(self.sentinels))
        lengths, between = _partition(taken, count, rng), _partition(tokens - taken, count, rng)
        return np.cumsum(between) + np.cumsum(lengths) - lengths, lengths


def _partition(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random partition of ``total`` into ``count`` positive integers."""
    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)
