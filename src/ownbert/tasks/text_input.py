"""Converts token ids of texts to input sequences of a model."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.batches.masking import Masking
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import percent
from ownbert.language.messages import Message
from ownbert.tasks.rows import Row, shortened
from ownbert.text.text_parts import PART
from ownbert.text.tokenizer import Tokenizer

# Shares of unknown tokens: below the first the vocabulary is fine, above the second it does not
# fit. In between it depends on whether the unknown words are rare (a vocabulary learnt with a
# minimum count lacks rare words of its own corpus too) or occur in many texts.
_FEW, _MANY = 0.05, 0.3
# A word is frequent if this share of the texts contains it, and at least this many texts.
_FREQUENT, _LEAST_TEXTS = 0.02, 3
# The vocabulary does not fit if frequent words are this share of the unknown tokens.
_SYSTEMATIC = 0.25
_EXAMINED, _NAMED = 1000, 3  # number of texts examined, and of unknown words named
_CHARACTERS = 200  # maximum characters of an example's tokens in a preview
START, END = 1, 2  # tags of the first and last token of an answer
_TEXTS = 5  # maximum texts of an example in a preview, one per line


@dataclass(frozen=True)
class EncodedRows:
    """Rows encoded as model inputs, for a loader."""

    examples: Sequence[Example]
    truncated: int = 0  # number of truncated rows
    notes: Sequence[Any] = ()  # what the task needs to read outputs (positions of words, ...)
    windows: int | None = None  # maximum per document in ``example``, sampled in each epoch
    masking: Masking | None = None  # random, in ``example``, different in each epoch
    seed: int = 0  # seed of both

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", self.notes or [None] * len(self.examples))

    def __len__(self) -> int:
        return len(self.examples)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Lengths (examples) in tokens; for sampled windows, those of the longest ones."""
        sizes = [sum(e.lengths[: self.windows]) for e in self.examples]
        return np.asarray(sizes, dtype=np.int64)

    def example(self, epoch: int, index: int) -> Example:
        """Row ``index`` as used in ``epoch``: a pure function of (seed, epoch, index)."""
        example, masking = self.examples[index], self.masking
        count = len(example.parts or ())
        sampled = self.windows is not None and count > self.windows
        if not sampled and masking is None:
            return example
        rng = np.random.default_rng((self.seed, epoch, index))
        if sampled:
            chosen = np.sort(rng.choice(count, self.windows, replace=False)).tolist()
            parts = example.parts or ()
            ends = np.cumsum(parts).tolist()
            tokens = np.concatenate([np.arange(ends[i] - parts[i], ends[i]) for i in chosen])
            example = replace(
                example,
                token_ids=example.token_ids[tokens],
                type_ids=example.type_ids[tokens],
                parts=tuple(parts[i] for i in chosen),
            )
        # Texts with less than one expected masked token are not masked.
        if masking is not None and masking.rate * len(example.token_ids) >= 1:
            example = replace(example, token_ids=masking(example.token_ids, rng)[0])
        return example

    def subset(self, indices: Sequence[int]) -> "EncodedRows":
        """The rows at the indices, in their order."""
        examples, notes = ([values[i] for i in indices] for values in (self.examples, self.notes))
        return replace(self, examples=examples, notes=notes, truncated=0)

    def identity(self) -> str:
        """The number and the digest of the examples, which depend on rows and targets."""
        digest = hashlib.sha256()
        for e in self.examples:
            for part in (e.token_ids, e.label, e.tags, e.parts, e.weight, e.words):
                if part is not None:
                    digest.update(np.asarray(part).tobytes())
        return f"{len(self):,} examples ({digest.hexdigest()[:12]})"


class TextInputBuilder:
    """Adds special tokens and token types to ids, by the family's ``InputFormat``, and truncates to
    ``max_length`` tokens in total."""

    def __init__(self, tokenizer: Tokenizer, config: EncoderConfig, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.format = tokenizer.input_format
        self.types = config.type_vocab_size > 1 or config.positions.segments

    @property
    def room(self) -> int:
        """Maximum tokens of a single text, without special tokens."""
        return self.max_length - self.format.special(1)

    @property
    def pair_room(self) -> int:
        """Maximum tokens of two texts together, without special tokens."""
        return self.max_length - self.format.special(2)

    def describe(self, data: EncodedRows, unit: str) -> Iterator[str]:
        """Yield lines on lengths after truncation and on unknown tokens."""
        together = max(len(e.lengths) for e in data.examples)
        sizes = np.asarray([size for e in data.examples for size in e.lengths])
        median, p90, p99 = np.percentile(sizes, (50, 90, 99)).round().astype(int).tolist()
        several = Message(" (up to {count} of them together)", together)
        cut = Message("{count:,} {unit!t} are", data.truncated, unit)
        yield Message(
            "tokens per sequence{several}: median {median:,}, 90% up to {p90:,}, 99% up to "
            "{p99:,}, longest {longest:,}; {cut!t} cut at {limit:,}",
            *(several if together > 1 else "", median, p90, p99, sizes.max()),
            *(cut if data.truncated else "none is", self.max_length),
        )
        unknown = UnknownWords(self.tokenizer)
        unknown.count([example.token_ids for example in data.examples])
        yield Message("unknown tokens: {share:.2%}", unknown.share)

    def preview(self, example: Example) -> list[str]:
        """The tokens of an example, one line per text; only the first of many texts."""
        texts = readable(example, self.tokenizer)
        return texts if len(texts) <= _TEXTS else [*texts[:_TEXTS], "..."]

    def ids(self, texts: Sequence[str], most: int | None = None) -> list[list[int]]:
        """The ids of each text without special tokens; for ``most`` see ``encode_batch``."""
        return self.tokenizer.encode_batch(texts, most=most)

    def ids_by_row(self, rows: Sequence[Row], most: int | None = None) -> Iterator[list[list[int]]]:
        """Like ``ids``, for the texts of each row."""
        ids = iter(self.ids([text for row in rows for text in row.texts], most))
        return ([next(ids) for _ in row.texts] for row in rows)

    def one(self, ids: Sequence[int]) -> np.ndarray:
        """[CLS] text [SEP] as an array of ids; without [CLS] in T5."""
        return np.asarray(self.format.one(ids[: self.room]), dtype=np.int64)

    def types_of(self, ids: np.ndarray) -> np.ndarray:
        """The token types of one text with special tokens."""
        types = np.zeros_like(ids)
        if self.types:
            types[:] = self.format.types(len(ids))
        return types

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """[CLS] first [SEP] second [SEP] as arrays of ids and of types; without [CLS] in T5. The
        longer text is truncated first, like ``longest_first`` in Transformers."""
        short, long = sorted((len(first), len(second)))
        if short + long > self.pair_room:
            # A text that takes at most half is not truncated.
            short = min(short, self.pair_room // 2)
            sizes = short, self.pair_room - short
            one, two = sizes if len(first) <= len(second) else sizes[::-1]
            first, second = first[:one], second[:two]
        pair, known = self.format.pair(first, second)
        ids = np.asarray(pair, dtype=np.int64)
        types = np.zeros_like(ids)
        if self.types:
            types[:] = known
        return ids, types

    def example(self, texts: Sequence[Sequence[int]], **targets: Any) -> tuple[Example, bool]:
        """An example of one or two texts, and whether it was truncated."""
        if len(texts) == 1:
            ids = self.one(texts[0])
            return Example(ids, self.types_of(ids), **targets), len(texts[0]) > self.room
        ids, types = self.pair(*texts)
        truncated = len(texts[0]) + len(texts[1]) > self.pair_room
        return Example(ids, types, **targets), truncated

    def windows(
        self, ids: Sequence[int], *, stride: int, most: int, room: int | None = None, **targets: Any
    ) -> tuple[Example, bool]:
        """The ids of a text of any length as an example of at most ``most`` windows with ``room``
        tokens besides the special ones (by default as many as fit), of which neighbours share
        ``stride``; and whether the text was truncated."""
        room = room or self.room
        step = room - stride
        starts = range(0, max(1, len(ids) - stride), step)
        pieces = [self.one(ids[start : start + room]) for start in starts[:most]]
        examples = [Example(piece, self.types_of(piece)) for piece in pieces]
        return join(examples, **targets), len(starts) > most


def truncation_warning(truncated: int, total: int, limit: str, what: str) -> str:
    """A warning about rows that were too long."""
    return Message(
        "warning: {truncated:,} of {total:,} {what} are longer than {limit} and are truncated",
        truncated,
        total,
        what,
        limit,
    )


class UnknownWords:
    """Counts unknown tokens ([UNK] or its equivalent); zero without a tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.unknown = self.total = 0
        # A sample of distinct texts; a dictionary keeps their order.
        self.texts: dict[str, None] = {}

    def count(self, token_ids: Sequence[np.ndarray], texts: Iterable[str] = ()) -> None:
        """Add sequences of token ids; ``texts`` are for the unknown words that are named."""
        if (tokenizer := self.tokenizer) is None or not token_ids:
            return
        ids = np.concatenate(token_ids)
        special = {*tokenizer.start_ids, tokenizer.sep_id, tokenizer.pad_id}
        self.total += len(ids) - sum(int((ids == each).sum()) for each in special)
        self.unknown += int((ids == tokenizer.unk_id).sum())
        if len(self.texts) < _EXAMINED:
            self.texts |= dict.fromkeys(text[:PART] for text in islice(texts, _EXAMINED))

    @property
    def share(self) -> float:
        return self.unknown / max(1, self.total)

    def warning(self) -> str | None:
        if self.tokenizer is None or self.share <= _FEW:
            return None
        unknown_words = self.tokenizer.unknown_words(list(self.texts))
        occurrences = Counter(word for words in unknown_words for word in words)
        texts = Counter(word for words in unknown_words for word in set(words))
        least = max(_LEAST_TEXTS, _FREQUENT * len(unknown_words))
        frequent = [word for word, count in texts.most_common() if count >= least]
        covered = sum(occurrences[word] for word in frequent)
        if self.share <= _MANY and covered <= _SYSTEMATIC * occurrences.total():
            return None
        frequent = [word for word in frequent if any(map(str.isalnum, word))] or frequent
        shown = ", ".join(frequent[:_NAMED])
        named = Message(", including frequent words ({words})", shown) if frequent else ""
        why = "the model's vocabulary does not fit these texts"
        if self.unknown == self.total:
            named, why = "", "the model's vocabulary contains no word of these texts"
        return Message(
            "warning: {share} of the tokens are {token}{named}: {why!t}; use another model, or "
            "make one: ownbert vocab TEXTS -o MODEL, then ownbert prepare and ownbert pretrain",
            *(percent(self.share), self.tokenizer.special["unk_token"], named, why),
        )


def readable(example: Example, tokenizer: Tokenizer) -> list[str]:
    """The tokens of an example, with the middle of long texts removed: one string per text of a
    single sequence, or per sequence if there are several."""
    if not example.parts:
        return _texts(example.token_ids, tokenizer)
    return [" ".join(_texts(ids, tokenizer)) for ids in example.split(example.token_ids)]


def _texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Each text with its separator; RoBERTa's second separator belongs to the second text."""
    ends = (np.flatnonzero(ids[:-1] == tokenizer.sep_id) + 1).tolist()
    pieces = np.split(ids, [end for end in ends if end - 1 not in ends])
    most = _CHARACTERS // len(pieces)
    return [shortened(" ".join(tokenizer.tokens(piece.tolist())), most) for piece in pieces]


def join(examples: Sequence[Example], **targets: Any) -> Example:
    """Combine several sequences with one target into one example."""
    return Example(
        np.concatenate([e.token_ids for e in examples]),
        np.concatenate([e.type_ids for e in examples]),
        parts=tuple(len(e.token_ids) for e in examples),
        **targets,
    )
