"""From ids of texts to sequences of a model. L tokens of a sequence."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ownbert.config import EncoderConfig
from ownbert.data.batch import Example
from ownbert.tasks.rows import Row, shortened
from ownbert.text.files import guess_style
from ownbert.text.tokenizer import Tokenizer

# The share of unknown tokens from which a vocabulary does not fit.
_UNKNOWN = 0.05
_CHARACTERS = 200  # of an example's tokens, for people
_TEXTS = 5  # of an example, each on a line


@dataclass(frozen=True)
class EncodedRows:
    """Rows as the model reads them, for a loader. cut: of how many rows tokens were left out.
    notes: what a task needs to make an answer of a row's scores (places of words, ...)."""

    examples: Sequence[Example]
    cut: int = 0
    notes: Sequence[Any] = field(default=())

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.asarray([len(e.token_ids) for e in self.examples], dtype=np.int64)

    def example(self, epoch: int, index: int) -> Example:
        return self.examples[index]

    def identity(self) -> str:
        """What tells these rows and their answers from others."""
        digest = hashlib.sha256()
        for e in self.examples:
            for part in (e.token_ids, e.label, e.tags, e.parts):
                if part is not None:
                    digest.update(np.asarray(part).tobytes())
        return f"{len(self):,} examples ({digest.hexdigest()[:12]})"


class TextInputBuilder:
    """Puts special tokens and types around ids, and cuts them to ``max_length`` tokens in all.

    A pair is as the family has it: RoBERTa's has two separators between the texts and no types.
    """

    def __init__(self, tokenizer: Tokenizer, config: EncoderConfig, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.double_sep = guess_style(tokenizer.backend).double_sep
        self.types = config.type_vocab_size > 1 and not self.double_sep

    @property
    def room(self) -> int:
        """Tokens of a single text that fit."""
        return self.max_length - 2

    @property
    def pair_room(self) -> int:
        """Tokens of two texts together that fit."""
        return self.max_length - (4 if self.double_sep else 3)

    def about(self, data: EncodedRows, unit: str) -> Iterator[str]:
        """Lengths as they are after cutting, and unknown tokens, for people."""
        together = max(len(e.parts or (0,)) for e in data.examples)
        parts = (e.parts or (len(e.token_ids),) for e in data.examples)
        sizes = np.asarray([size for of_example in parts for size in of_example])
        half, most, nearly = np.percentile(sizes, (50, 90, 99)).round().astype(int).tolist()
        several = f" (up to {together} of them together)" if together > 1 else ""
        cut = f"{data.cut:,} {unit} are" if data.cut else "none is"
        yield (
            f"tokens a sequence{several}: median {half:,}, 90% up to {most:,}, 99% up to "
            f"{nearly:,}, longest {sizes.max():,}; {cut} cut at {self.max_length:,}"
        )
        unknown = UnknownWords(self.tokenizer)
        unknown.count(data.examples)
        yield unknown.warning() or f"unknown tokens: {unknown.share:.2%}"

    def shown(self, example: Example) -> list[str]:
        """An example for people, a line each; of many texts the first."""
        texts = readable(example, self.tokenizer)
        return texts if len(texts) <= _TEXTS else [*texts[:_TEXTS], "..."]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        return self.tokenizer.encode_batch(texts)

    def ids_by_row(self, rows: Sequence[Row]) -> Iterator[list[list[int]]]:
        """As ``ids``, those of a row's texts together."""
        ids = iter(self.ids([text for row in rows for text in row.texts]))
        return ([next(ids) for _ in row.texts] for row in rows)

    def one(self, ids: Sequence[int]) -> np.ndarray:
        """[CLS] text [SEP], (L)."""
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        return np.asarray([cls, *ids[: self.room], sep], dtype=np.int64)

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """[CLS] first [SEP] second [SEP] and the types, (L) each; too long ones lose the end of
        the longer text, as ``longest_first`` of Transformers."""
        first, second = _cut_longest(first, second, self.pair_room)
        cls, sep = self.tokenizer.cls_id, self.tokenizer.sep_id
        left = [cls, *first, sep]
        right = [*([sep] if self.double_sep else []), *second, sep]
        ids = np.asarray(left + right, dtype=np.int64)
        types = np.zeros_like(ids)
        if self.types:
            types[len(left) :] = 1
        return ids, types

    def example(self, texts: Sequence[Sequence[int]], **targets: Any) -> tuple[Example, bool]:
        """One text or two as an example, and whether something was cut."""
        if len(texts) == 1:
            ids = self.one(texts[0])
            return Example(ids, np.zeros_like(ids), **targets), len(texts[0]) > self.room
        ids, types = self.pair(*texts)
        cut = len(texts[0]) + len(texts[1]) > self.pair_room
        return Example(ids, types, **targets), cut

    def windows(
        self, ids: Sequence[int], *, stride: int, most: int, **targets: Any
    ) -> tuple[Example, bool]:
        """A text of any length as windows that share ``stride`` tokens with their neighbours, in
        one example; and whether there were more than ``most``, and so something was cut."""
        step = self.room - stride
        starts = range(0, max(1, len(ids) - stride), step)
        pieces = [self.one(ids[start : start + self.room]) for start in starts[:most]]
        token_ids = np.concatenate(pieces)
        parts = tuple(map(len, pieces))
        example = Example(token_ids, np.zeros_like(token_ids), parts=parts, **targets)
        return example, len(starts) > most


def cut_warning(cut: int, total: int, limit: str, what: str) -> str:
    """What to tell of rows that were too long."""
    return f"warning: {cut:,} of {total:,} {what} are longer than {limit} and are cut there"


class UnknownWords:
    """How many tokens of texts are [UNK], or what takes its place; none where there is no
    tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.unknown = self.total = 0

    def count(self, examples: Sequence[Example]) -> None:
        """Take in the tokens of these."""
        if (tokenizer := self.tokenizer) is None:
            return
        around = np.asarray([tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id])
        for example in examples:
            self.total += len(example.token_ids) - int(np.isin(example.token_ids, around).sum())
            self.unknown += int((example.token_ids == tokenizer.unk_id).sum())

    @property
    def share(self) -> float:
        return self.unknown / max(1, self.total)

    def warning(self) -> str | None:
        """What to tell where they are many."""
        if self.tokenizer is None or self.share <= _UNKNOWN:
            return None
        return (
            f"warning: {self.share:.1%} of the tokens are {self.tokenizer.special['unk_token']}: "
            "the vocabulary of the model is not one for these texts"
        )


def readable(example: Example, tokenizer: Tokenizer) -> list[str]:
    """The tokens of an example, with the middle of long texts left out: the two texts of a
    sequence by themselves, or, of several sequences, each of these."""
    if not example.parts:
        return _texts(example.token_ids, tokenizer)
    begins = np.cumsum(example.parts)[:-1]
    return [" ".join(_texts(ids, tokenizer)) for ids in np.split(example.token_ids, begins)]


def _texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Each up to its separator; RoBERTa's second one is the first token of the second text."""
    ends = (np.flatnonzero(ids[:-1] == tokenizer.sep_id) + 1).tolist()
    pieces = np.split(ids, [end for end in ends if end - 1 not in ends])
    most = _CHARACTERS // len(pieces)
    return [shortened(" ".join(tokenizer.tokens(piece.tolist())), most) for piece in pieces]


def join(examples: Sequence[Example], **targets: Any) -> Example:
    """Several sequences that have one answer, as one example."""
    return Example(
        np.concatenate([e.token_ids for e in examples]),
        np.concatenate([e.type_ids for e in examples]),
        parts=tuple(len(e.token_ids) for e in examples),
        **targets,
    )


def _cut_longest(
    first: Sequence[int], second: Sequence[int], room: int
) -> tuple[Sequence[int], Sequence[int]]:
    short, long = sorted((len(first), len(second)))
    if short + long > room:
        # The short text stays whole if it takes no more than half.
        short = min(short, room // 2)
        long = room - short
        sizes = (short, long) if len(first) <= len(second) else (long, short)
        first, second = first[: sizes[0]], second[: sizes[1]]
    return first, second
