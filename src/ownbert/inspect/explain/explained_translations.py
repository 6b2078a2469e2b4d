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
from ownbert.checkpoint.transformer_folder import load_translation
from ownbert.errors import InputError
from ownbert.inspect.explain.targets import Target
from ownbert.inspect.observing import evaluating, require_room
from ownbert.tasks.rows import Row
from ownbert.translate.decode import Translator
from ownbert.translate.translation_pairs import encode_sources

# Sources translated at a time.
_TOGETHER = 32
# Ranges of word-initial characters in scripts without spaces: Chinese, Japanese, Korean.
_IDEOGRAPHS = ("\u3040", "\u9fff"), ("\uac00", "\ud7af")


class ExplainedTranslator:
    """A translation model whose words are to be explained.

    Args:
        folder: folder of an encoder-decoder with its head.
        device: auto, cpu or cuda.

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
        self, rows: Iterator[Row], wanted: str | None
    ) -> Iterator[tuple[Row, Example, list[Target]]]:
        """Translate rows, and yield them with decoder inputs and one target per word; rows with an
        empty translation are skipped.

        Args:
            rows: sources.
            wanted: a word of the translation; None: all words.

        Raises:
            InputError: a source is too long, or its translation lacks the word.
        """
        while some := list(islice(rows, _TOGETHER)):
            texts = [row.texts[0] for row in some]
            sources = encode_sources(texts, self.tokenizer)
            for source in sources:
                require_room(self.model, source)
            found = self._translator.hypotheses(texts)
            for row, source, best in zip(some, sources, found, strict=True):
                ids = [] if best is None else best.ids
                example = self._example(source, ids)
                yield row, example, self._targets(example, ids, wanted) if ids else []

    def _example(self, source: np.ndarray, ids: Sequence[int]) -> Example:
        written = np.asarray([self._translator.start, *ids[:-1]], dtype=np.int64)
        read = Example(source.astype(np.int64), np.zeros(len(source), np.int64))
        return Example(written, np.zeros_like(written), tags=np.asarray(ids, np.int64), source=read)

    def _targets(self, example: Example, ids: Sequence[int], wanted: str | None) -> list[Target]:
        with evaluating(self.model), torch.inference_mode():
            batch = pack([example]).to(self.model.device)
            likely = _word_scores(self.model(batch, [self.head]).logits[self.head], batch)[0]
        likely = likely.cpu().numpy()
        found = []
        words = self._words(ids)
        if wanted is not None and wanted not in [name for name, _ in words]:
            there = " ".join(name for name, _ in words)
            raise InputError(f"the translation has no {wanted!r}; it is {there!r}")
        for name, places in words:
            if wanted in (None, name):
                found.append(_target(name, places, float(np.exp(likely[places].sum()))))
        return found

    def _words(self, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
        """The words of a translation with the positions of their tokens."""
        decode = self._translator.target.decode
        found: list[tuple[str, list[int]]] = []
        before = ""
        for place in range(len(ids)):
            text = decode(ids[: place + 1], skip_special_tokens=True)
            new = text[len(before) :] if text.startswith(before) else text
            begins = new[:1].isspace() or any(a <= new[:1] <= b for a, b in _IDEOGRAPHS)
            if begins or not found:
                found.append(("", []))
            name, places = found[-1]
            found[-1] = (name + new.strip(), [*places, place])
            before = text
        return [(name, places) for name, places in found if name]


def _word_scores(logits: Tensor, batch: Batch) -> Tensor:
    """(N, T): the log-probability of each generated token."""
    assert batch.tags is not None
    found = logits.float().log_softmax(-1).gather(1, batch.tags[:, None])[:, 0]
    return found.unflatten(0, (len(batch.layout.lengths), -1))


def _target(name: str, places: Sequence[int], shown: float) -> Target:
    """The log-probability of a word given the previous ones: the sum over its tokens."""

    def score(logits: Tensor, batch: Batch) -> Tensor:
        return _word_scores(logits, batch)[:, list(places)].sum(-1)

    # The head reads decoder states; methods that need ``reads`` are rejected.
    reads = np.zeros(0)
    return Target(name, score, lambda logits, batch: score(logits, batch).exp(), reads, shown)
