"""Which unlabelled texts ``fit`` learns from: up to a limit, and those like the labelled texts.

A general corpus beside a few thousand texts like the labelled ones makes better word vectors, but a
network that is trained for minutes is better without it (docs/lab/fit.md).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus.documents import approximate_characters, read_documents
from ownbert.corpus.sparse import Matrix
from ownbert.tasks.related_rows import text_key
from ownbert.views.ngram_counts import WordNgrams
from ownbert.views.tokens import splitter

# Texts and characters that are read, at most, and characters for each that the views learn from.
_MOST_READ, _CHARACTERS_READ, _READ_PER_LEARNT = 200_000, 100_000_000, 5
# Tokens of a text that are compared, at most, and characters of a token.
_LONGEST, _TOKEN = 100, 12
# Labelled and other texts from which word frequencies are estimated, texts compared at a time, and
# words.
_LABELLED, _SAMPLE, _BLOCK, _MOST_WORDS = 2_000, 5_000, 10_000, 100_000
# Minimum number of labelled texts; fewer say nothing about their kind.
_FEWEST_LABELLED = 20
# Share of held-out labelled texts that would be rejected as being of another kind.
_REJECTED = 0.02
# If at least this share of the texts is like the labelled ones, all are.
_NEARLY_ALL = 0.8


@dataclass(frozen=True)
class Corpus:
    """The texts that a network is pretrained on."""

    files: Sequence[str]
    text_column: str | None  # in tables
    similar: Sequence[str] = ()  # those like the labelled ones, as far as they were read
    restricted: bool = False  # whether a network is pretrained on these alone

    def texts(self, characters: int | None = None) -> Iterator[str]:
        """Yield each document of the unlabelled text as one string, up to about a number of
        characters from all files (see ``read_documents``)."""
        if not self.files:
            return
        given: Any = {"text_column": self.text_column, "characters": characters}
        for document in read_documents(list(self.files), **given):
            yield " ".join(document.pieces)

    def files_up_to(self, characters: int, path: Path, seed: int) -> list[str | Path]:
        """The files; or, if only some texts are wanted or the files are larger than the limit, a
        file with some of the texts, written to ``path``."""
        if not self.restricted and sum(map(approximate_characters, self.files)) <= characters:
            return [*self.files]
        texts: Iterable[str] = self.texts(characters)
        if self.restricted or sum(map(len, self.similar)) >= characters:
            texts = some_texts(self.similar, characters, len(self.similar), seed)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(" ".join(text.split()) + "\n" for text in texts)
        return [path]


@dataclass(frozen=True)
class UnlabelledTexts:
    """Distinct unlabelled texts, none of which is a labelled one: those like the labelled texts,
    filled up to a minimum with the most similar others, and the other texts; all are similar if
    hardly any is different. ``alike`` are similar without the filling."""

    similar: Sequence[str]
    others: Sequence[str]
    alike: int = 0

    @classmethod
    def read(
        cls,
        texts: Iterable[str],
        labelled: Sequence[str],
        known: Collection[str],
        kind: str,
        *,
        characters: int,
        fewest: int,
    ) -> "UnlabelledTexts":
        """Read texts up to a limit of ``characters``, and divide them.

        Args:
            labelled: texts of the training rows.
            known: texts to leave out, with their copies (see ``text_key``).
            kind: kind of text, one of ``ownbert.views.tokens.KINDS``.
            fewest: minimum number of characters of the labelled and similar texts together.
        """
        distinct: dict[str, None] = {}
        keys = set(map(text_key, known))
        for text in texts:
            if text in distinct or not text.strip() or text_key(text) in keys:
                continue
            distinct[text] = None
            characters -= len(text)
            if characters <= 0 or len(distinct) >= _MOST_READ:
                break
        pool = list(distinct)
        similar, alike = _similar(pool, labelled, kind, fewest - sum(map(len, labelled)))
        pairs = list(zip(pool, similar, strict=True))
        return cls([t for t, like in pairs if like], [t for t, like in pairs if not like], alike)

    def __len__(self) -> int:
        return len(self.similar) + len(self.others)

    def some(self, characters: int, most: int, seed: int) -> tuple[list[str], list[str]]:
        """Texts up to these numbers of characters and texts: similar ones, then others."""
        similar = some_texts(self.similar, characters, most, seed)
        left = characters - sum(map(len, similar))
        return similar, some_texts(self.others, left, most - len(similar), seed)


def characters_to_read(learnt: int) -> int:
    """Number of characters to choose from, given how many the views learn from."""
    return min(_CHARACTERS_READ, _READ_PER_LEARNT * learnt)


def some_texts(texts: Sequence[str], characters: int, most: int, seed: int) -> list[str]:
    """Random texts up to these numbers of characters and texts, in random order.

    The first ones would not do: files are sorted by source, date or label.
    """
    order = np.random.default_rng(seed).permutation(len(texts))[: max(0, most)]
    lengths = np.cumsum([len(texts[i]) for i in order], dtype=np.int64)
    return [texts[int(i)] for i in order[lengths <= characters]]


def _similar(
    texts: Sequence[str], labelled: Sequence[str], kind: str, fewest: int
) -> tuple[np.ndarray, int]:
    """(N) which texts are like labelled ones, with others up to the number of characters
    ``fewest``, and the number without these others.

    By the likelihood ratio of their words among the labelled and among all texts (Moore and Lewis
    2010, "Intelligent selection of language model training data"), with a threshold from labelled
    texts whose words were not counted.
    """
    all_texts = np.ones(len(texts), dtype=bool), len(texts)
    if len(labelled) < _FEWEST_LABELLED or not len(texts):
        return all_texts
    split, rng = splitter(kind), np.random.default_rng(0)
    own = [split(labelled[int(i)]) for i in rng.permutation(len(labelled))[:_LABELLED]]
    longest = min(_LONGEST, max(1, int(np.quantile([len(tokens) for tokens in own], 0.9))))

    def tokens_of(indices: Iterable[int]) -> list[list[str]]:
        return [split(texts[i][: longest * _TOKEN])[:longest] for i in indices]

    own = [tokens[:longest] for tokens in own]
    sample = tokens_of(rng.permutation(len(texts))[:_SAMPLE])
    words = WordNgrams.fit([*own, *sample], order=1, most=_MOST_WORDS)
    counts = words.counts(own)
    everywhere = np.asarray(words.counts(sample).sum(0)).ravel() + 1.0
    halves = [_log_ratios(counts[half::2], everywhere) for half in (0, 1)]
    held_out = [_scores(counts[1 - half :: 2], halves[half]) for half in (0, 1)]
    least = np.quantile(np.concatenate(held_out), _REJECTED)
    ratios = np.mean(halves, axis=0)
    blocks = (range(i, min(i + _BLOCK, len(texts))) for i in range(0, len(texts), _BLOCK))
    scores = np.concatenate([_scores(words.counts(tokens_of(each)), ratios) for each in blocks])
    alike = int((scores >= least).sum())
    if alike >= _NEARLY_ALL * len(texts):
        return all_texts
    order = np.argsort(-scores, kind="stable")
    lengths = np.cumsum([len(texts[i]) for i in order])
    least = min(least, scores[order[min(np.searchsorted(lengths, fewest), len(texts) - 1)]])
    return scores >= least, alike


def _log_ratios(counts: Matrix, everywhere: np.ndarray) -> np.ndarray:
    """(F) log ratios of the words' frequencies in texts (N, F) and in all texts (F), smoothed."""
    own, other = np.asarray(counts.sum(0)).ravel(), everywhere / everywhere.sum()
    return np.log((own / max(1, own.sum()) + other) / (2 * other))


def _scores(counts: Matrix, ratios: np.ndarray) -> np.ndarray:
    """(N) log likelihood ratios of texts, divided by the square root of their lengths."""
    return (counts @ ratios) / np.sqrt(np.maximum(1, np.asarray(counts.sum(1)).ravel()))
