"""Span corruption: removed spans, which the decoder of a T5 writes.

T tokens of a sequence, V vocabulary, N spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ownbert.config.encoder import T5_STRUCTURE, EncoderConfig
from ownbert.objectives.objective import PretrainingObjective, with_special_tokens
from ownbert.text.styles import SENTINEL

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ownbert.batches.batch import Batch
    from ownbert.batches.example import Example
    from ownbert.batches.masking import Masker
    from ownbert.corpus.pretraining_examples import PretrainingData
    from ownbert.nn.model import Model
    from ownbert.text.tokenizer import Tokenizer

# Settings of T5 version 1.1, as in the published models.
_T5: Mapping[str, Any] = {
    "gated_feed_forward": True,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-6,
    "relative_buckets": 32,
    "relative_max_distance": 128,
}
# Number of sentinels in T5.
_SENTINELS = tuple(map(SENTINEL.format, range(100)))


@dataclass(frozen=True)
class SpanCorruption:
    """Replaces spans by sentinels, which a decoder has to reconstruct.

    The encoder reads the text with a sentinel <0>, <1>, ... instead of each span. The decoder
    writes each sentinel followed by its span, and the end token. Lengths of spans and of the text
    between them are random partitions of the removed (a share ``rate``) and the remaining tokens;
    spans have ``length`` tokens on average. Special tokens around the text (``ordinary`` (V) is
    false) are never removed. There are at most as many spans as sentinels (100).

    Source: Raffel et al. 2020, section 3.1.4, figure 2, and their random_spans_noise_mask.
    """

    sentinels: np.ndarray
    start_id: int
    end_id: int
    ordinary: np.ndarray
    rate: float = 0.15
    length: float = 3.0
    by_words = False

    def example(
        self, whole: Example, rng: np.random.Generator, begins: np.ndarray | None
    ) -> Example:
        return self(whole.token_ids, rng)

    def __call__(self, ids: np.ndarray, rng: np.random.Generator) -> Example:
        """Make an encoder-decoder example of a sequence (T), which includes special tokens."""
        import numpy as np

        from ownbert.batches.example import Example

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
            inputs, np.zeros_like(inputs), tags=written, source=Example(read, np.zeros_like(read))
        )

    def _spans(self, tokens: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Starts (N) and lengths (N) of spans in a text of ``tokens`` tokens. As in T5, it starts
        with kept tokens and ends with a span; one with fewer than two tokens is kept."""
        import numpy as np

        if tokens < 2:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        removed = min(max(1, round(self.rate * tokens)), tokens - 1)
        count = min(max(1, round(removed / self.length)), tokens - removed, len(self.sentinels))
        lengths, between = _partition(removed, count, rng), _partition(tokens - removed, count, rng)
        return np.cumsum(between) + np.cumsum(lengths) - lengths, lengths


@dataclass(frozen=True)
class SpanCorruptionLM(PretrainingObjective):
    """Cross entropy of the tokens that a decoder writes for removed spans (Raffel et al. 2020,
    section 3.1.4)."""

    name, head = "span_corruption", "generator"
    title, short, colour = "removed spans", "spans", 4
    explained = "removed spans, on its own: T5"
    network, alone = "T5", True
    predicts, samples = True, False
    rate = 0.15
    uses = frozenset({"mask_rate", "span_length"})
    auto_class = "AutoModelForSeq2SeqLM"

    def count(self, batch: Batch) -> int:
        return 0 if batch.tags is None else batch.tokens

    def targets(self, batch: Batch) -> Tensor:
        assert batch.tags is not None
        return batch.tags

    @classmethod
    def extend(cls, tokenizer: Tokenizer) -> tuple[Tokenizer, np.ndarray]:
        """T5's tokenizer has <extra_id_0>, ...; others get them appended to their vocabulary."""
        import numpy as np

        tokenizer = tokenizer.with_special_tokens(_SENTINELS)
        return tokenizer, np.array([tokenizer.id_of(token) for token in _SENTINELS])

    @classmethod
    def masker(cls, tokenizer: Tokenizer, ordinary: np.ndarray, task: Any) -> Masker:
        return SpanCorruption(
            cls.extend(tokenizer)[1],
            decoder_start_id(tokenizer),
            tokenizer.sep_id,
            ordinary,
            rate=task.rate,
            length=task.span_length,
        )

    @classmethod
    def structure(cls, config: EncoderConfig, dropout: float) -> EncoderConfig:
        """One of the two stacks of a T5 (version 1.1)."""
        return replace(config, **T5_STRUCTURE, **_T5, head_width=config.head_size)

    @classmethod
    def make_network(cls, config: EncoderConfig, settings: Any) -> tuple[Model, None]:
        from ownbert.checkpoint.saved_model import new_encoder_decoder

        decoder = replace(config, is_decoder=True, add_cross_attention=True)
        return new_encoder_decoder("t5", config, decoder, shared=False), None

    @classmethod
    def unigram(cls, unigram: Tensor, data: PretrainingData, ordinary: np.ndarray) -> Tensor:
        return with_special_tokens(unigram, data, lambda example: example.tags, ordinary)


def decoder_start_id(tokenizer: Tokenizer) -> int:
    """The id of a decoder's first token: the token that starts texts, or padding if there is
    none."""
    return (*tokenizer.start_ids, tokenizer.pad_id)[0]


def _partition(total: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random partition of ``total`` into ``count`` positive integers."""
    import numpy as np

    cuts = np.sort(rng.choice(total - 1, count - 1, replace=False)) + 1
    return np.diff(cuts, prepend=0, append=total)
