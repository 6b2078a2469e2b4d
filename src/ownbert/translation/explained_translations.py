"""Explains translations: each target word by the words of its source.

S source tokens, T target tokens, N copies in a batch, V vocabulary size.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, Example, pack
from ownbert.exceptions import InputError
from ownbert.inspect.explain.targets import Target
from ownbert.inspect.internals.observing import evaluating, require_room
from ownbert.tasks.rows import Row
from ownbert.translation.decode import Translator
from ownbert.translation.translation_folder import load_translation
from ownbert.translation.translation_pairs import encode_sources

# Sources translated at a time.
_BATCH_SOURCES = 32
# Ranges of word-initial characters in scripts without spaces: Chinese, Japanese, Korean.
_IDEOGRAPHS = ("\u3040", "\u9fff"), ("\uac00", "\ud7af")


class ExplainedTranslator:
    """A translation model whose words are to be explained.

    Attributes:
        model: model with gradients, unlike the one of ``Translator``.
        head: kind of the head for the next token.
        tokenizer: source tokenizer.
        unknown: id of the token that replaces removed source words; these models have no [MASK].

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self._translator = Translator(folder, device=device)
        model, _ = load_translation(folder)
        self.model = model.to(self._translator.device)
        (self.head,) = self.model.heads
        self.tokenizer = self._translator.source
        self.unknown = self.tokenizer.unk_id

    def translated(
        self, rows: Iterator[Row], word: str | None
    ) -> Iterator[tuple[Row, Example, list[Target]]]:
        """Translate rows, and yield them with decoder inputs and one target per word; rows with an
        empty translation are skipped.

        Args:
            rows: sources.
            word: a word of the translation; None: all words.

        Raises:
            InputError: a source is too long, or its translation lacks the word.
        """
        while batch_rows := list(islice(rows, _BATCH_SOURCES)):
            texts = [row.texts[0] for row in batch_rows]
            sources = encode_sources(texts, self.tokenizer)
            for source in sources:
                require_room(self.model, source)
            hypotheses = self._translator.hypotheses(texts)
            for row, source, best in zip(batch_rows, sources, hypotheses, strict=True):
                ids = [] if best is None else best.ids
                example = self._example(source, ids)
                yield row, example, self._targets(example, ids, word) if ids else []

    def _example(self, source: np.ndarray, ids: Sequence[int]) -> Example:
        decoder_ids = np.asarray([self._translator.start, *ids[:-1]], dtype=np.int64)
        encoder_input = Example(source.astype(np.int64), np.zeros(len(source), np.int64))
        tags, types = np.asarray(ids, np.int64), np.zeros_like(decoder_ids)
        return Example(decoder_ids, types, tags=tags, source=encoder_input)

    def _targets(self, example: Example, ids: Sequence[int], word: str | None) -> list[Target]:
        with evaluating(self.model), torch.inference_mode():
            batch = pack([example]).to(self.model.device)
            log_probs = _word_scores(self.model(batch, [self.head]).logits[self.head], batch)[0]
        log_probs = log_probs.cpu().numpy()
        targets = []
        words = self._words(ids)
        if word is not None and word not in [name for name, _ in words]:
            translation = " ".join(name for name, _ in words)
            raise InputError(
                "the translation has no {word!r}; it is {translation!r}", word, translation
            )
        for name, positions in words:
            if word in (None, name):
                targets.append(_target(name, positions, float(np.exp(log_probs[positions].sum()))))
        return targets

    def _words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """The words of a translation with the positions of their tokens."""
        decode = self._translator.target.decode
        words: list[tuple[str, list[int]]] = []
        previous = ""
        for position in range(len(ids)):
            text = decode(ids[: position + 1], skip_special_tokens=True)
            new = text[len(previous) :] if text.startswith(previous) else text
            begins = new[:1].isspace() or any(a <= new[:1] <= b for a, b in _IDEOGRAPHS)
            if begins or not words:
                words.append(("", []))
            name, positions = words[-1]
            words[-1] = (name + new.strip(), [*positions, position])
            previous = text
        return [(name, positions) for name, positions in words if name]


def _word_scores(logits: Tensor, batch: Batch) -> Tensor:
    """(N, T): the log-probability of each generated token."""
    assert batch.tags is not None
    log_probs = logits.float().log_softmax(-1).gather(1, batch.tags[:, None])[:, 0]
    return log_probs.unflatten(0, (len(batch.layout.lengths), -1))


def _target(name: str, positions: Sequence[int], shown: float) -> Target:
    """The log-probability of a word given the previous ones: the sum over its tokens."""

    def score(logits: Tensor, batch: Batch) -> Tensor:
        return _word_scores(logits, batch)[:, list(positions)].sum(-1)

    # The head reads decoder states; methods that need ``reads`` are rejected.
    reads = np.zeros(0)
    return Target(name, score, lambda logits, batch: score(logits, batch).exp(), reads, shown)
