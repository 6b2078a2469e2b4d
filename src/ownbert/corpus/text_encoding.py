"""Encodes chunks of text as ids, sentence ends and document ends.

The tokenizers library processes 4 MB of plain text per second and core. If whitespace separates
words independent of context (pre-tokenised text, and BERT's rules), a word always has the same ids,
so it is tokenised once and then looked up.
"""

import importlib.util
import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ownbert.checks import known
from ownbert.corpus.chunks import DOCUMENT_ENDS, PIECE_ENDS, PRESPLIT, WORDS, Chunk
from ownbert.exceptions import InputError
from ownbert.text.bert_rules import CONTINUATION
from ownbert.text.text_parts import grouped, split_sentences
from ownbert.text.tokenizer import Tokenizer

SEGMENTERS = ("jieba",)

# Texts tokenised at a time: these encodings include offsets and are large.
_TEXTS = 1024


def require_segmenter(name: str, tokenizer: Tokenizer) -> None:
    """Check that a segmenter is available and suits the tokenizer."""
    known(*SEGMENTERS)("segmenter", name)
    if tokenizer.kind != "wordpiece":
        raise InputError(
            "segmenter {name}: needs a wordpiece tokenizer, this one is {kind}",
            name,
            tokenizer.kind,
        )
    if importlib.util.find_spec(name) is None:
        raise InputError("the segmenter {name} is not installed: pip install 'ownbert[zh]'", name)


class WordBoundaryEncoder:
    """Encodes texts to ids, and marks the tokens that start a word of jieba."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # jieba's own deprecation warnings
            import jieba
        jieba.setLogLevel(60)  # otherwise it logs loading its dictionary
        jieba.initialize()
        self.encoder, self.segment = tokenizer.encoder, jieba.cut
        names = tokenizer.vocabulary()
        self.continues = np.array([name.startswith(CONTINUATION) for name in names], dtype=bool)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The ids (T) of all texts, the number of ids of each text (texts), and 1 at word starts
        (T)."""
        all_ids, starts = [], []
        for at in range(0, len(texts), _TEXTS):
            group = texts[at : at + _TEXTS]
            encodings = self.encoder.encode_batch(group, add_special_tokens=False)
            for text, encoding in zip(group, encodings, strict=True):
                ids = np.array(encoding.ids, dtype=np.int32)
                offsets = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
                all_ids.append(ids)
                starts.append(self._starts(text, ids, offsets))
        empty = np.empty(0, dtype=np.int32)
        return (
            np.concatenate([empty, *all_ids]),
            np.array([*map(len, all_ids)], dtype=np.int64),
            np.concatenate([empty.astype(np.uint8), *starts]),
        )

    def _starts(self, text: str, ids: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """1 for the first token of each word. Tokens that start inside a word belong to it, as do
        continuation tokens."""
        sizes = [len(word) for word in self.segment(text)]
        word_of = np.repeat(np.arange(len(sizes)), sizes)
        if not len(ids):
            return np.empty(0, dtype=np.uint8)
        words = word_of[offsets]
        first = np.concatenate([[True], words[1:] != words[:-1]])
        return (first & ~self.continues[ids]).astype(np.uint8)


# Characters tokenised at a time: encodings take a hundred times the memory of their text.
_BLOCK = 200_000
# Characters per text for the library: a call for a single word takes longer than the word.
_TEXT = 2_000
# Lookup pays off if words repeat: at most one in this many may be new.
_FEW_REPEATS = 3
# Limits of the word table: entries, and total characters.
_MOST_WORDS, _MOST_CHARACTERS = 200_000, 8_000_000


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A chunk as ids.

    Args:
        tokens: (T) ids.
        sentence_ends, document_ends: one past the last token of each, relative to the chunk,
            ascending; 0 if one from an earlier chunk ends before the first token.
        words: (T) 1 at word starts, from a segmenter or with features; None without both.
        features: (T, F) feature ids of each token's word; None without features.
    """

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    words: np.ndarray | None = None
    features: np.ndarray | None = None


class ChunkEncoder:
    """Encodes chunks; ``end_ids``: ids of tokens that end a sentence within a piece."""

    def __init__(
        self, tokenizer: Tokenizer, end_ids: np.ndarray, segmenter: str | None = None
    ) -> None:
        self.by_rule = tokenizer.kind != "blank"
        self.end_ids = end_ids
        self.unknown = tokenizer.unk_id
        # Byte-level BPE marks the start of a word by the space before it.
        self.before_word = " " if tokenizer.kind == "bpe" else ""
        self.ids = TextEncoder(tokenizer)
        self.words = None if segmenter is None else WordBoundaryEncoder(tokenizer)

    def encode(self, chunk: Chunk) -> EncodedChunk:
        texts, closed, document_ends = self._texts(chunk)
        words = features = None
        if self.words is not None:
            ids, lengths, words = self.words.encode(texts)
        else:
            ids, lengths = self.ids.encode(texts)
        if chunk.features:
            # Words of control characters, which have no ids, are unknown, as in fine-tuning.
            empty = lengths == 0
            ids = np.insert(ids, (np.cumsum(lengths) - lengths)[empty], self.unknown)
            lengths = lengths + empty
            words = np.zeros(len(ids), dtype=np.uint8)
            words[np.cumsum(lengths) - lengths] = 1
            features = np.concatenate(chunk.features).repeat(lengths, 0)
        ends = np.cumsum(np.concatenate([[0], lengths]), dtype=np.int64)
        sentence_ends = ends[1:][np.frombuffer(closed, dtype=bool)]
        if len(self.end_ids):
            last = np.isin(ids, self.end_ids)
            last[:-1] &= ~last[1:]  # consecutive ends count once
            sentence_ends = np.concatenate([sentence_ends, np.flatnonzero(last) + 1])
        # Empty pieces and documents disappear, because ends are unique.
        sentence_ends, document_ends = np.unique(sentence_ends), np.unique(ends[document_ends])
        return EncodedChunk(ids, sentence_ends, document_ends, words, features)

    def _texts(self, chunk: Chunk) -> tuple[list[str], bytearray, list[int]]:
        """The texts to tokenise, whether each ends a sentence, and the number of texts before the
        end of each document."""
        texts: list[str] = []
        closed = bytearray()
        document_ends = []
        start = 0
        for count, flags in zip(chunk.counts, chunk.flags, strict=True):
            pieces = chunk.pieces[start : start + count]
            start += count
            if self.by_rule and not flags & PRESPLIT:
                pieces = [s for piece in pieces for s in split_sentences(piece)]
            if flags & WORDS and self.before_word:
                pieces = [self.before_word + word for word in pieces]
            texts += pieces
            closed.extend(b"\1" * len(pieces))
            if flags & WORDS:
                closed[-len(pieces) : -1] = bytes(len(pieces) - 1)
            if pieces and not flags & PIECE_ENDS:
                closed[-1] = 0
            if flags & DOCUMENT_ENDS:
                document_ends.append(len(texts))
        return texts, closed, document_ends


class TextEncoder:
    """``Tokenizer.encode_batch``, several times as fast if words repeat."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.by_word = encodes_by_word(tokenizer)
        self.separator_id = tokenizer.pad_id
        self.separator = tokenizer.special["pad_token"]
        self._clear()

    def _clear(self) -> None:
        self.numbers: dict[str, int] = {}
        self.characters = 0
        self.pool = np.empty(0, dtype=np.int32)
        self.lengths = np.empty(0, dtype=np.int64)

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids (T) of all texts, and the number of ids of each text (texts)."""
        if not texts:
            return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64)
        if not self.by_word:
            return self._encode_separately(texts)
        if len(self.numbers) > _MOST_WORDS or self.characters > _MOST_CHARACTERS:
            self._clear()
        words: list[str] = []
        firsts = []
        for text in texts:
            firsts.append(len(words))
            words += text.split(" ")
        unknown = set(words).difference(self.numbers)
        if len(unknown) * _FEW_REPEATS > len(words):  # words do not repeat
            if any(self.separator in text for text in texts):
                return self._encode_separately(texts)
            ids, lengths = zip(*self._encode_joined(texts), strict=True)
            return np.concatenate(ids), np.concatenate(lengths)
        self._add_words(unknown)
        chosen = np.fromiter(map(self.numbers.__getitem__, words), np.int32, len(words))
        lengths = self.lengths[chosen]
        # Position of each id in the pool, relative to the first id of its word.
        first = np.cumsum(self.lengths) - self.lengths
        shift = first[chosen] - (np.cumsum(lengths) - lengths)
        positions = np.repeat(shift, lengths) + np.arange(int(lengths.sum()))
        return self.pool[positions], np.add.reduceat(lengths, firsts)

    def _add_words(self, words: set[str]) -> None:
        if not words:
            return
        joined = [word for word in words if self.separator not in word]
        separate = [word for word in words if self.separator in word]
        encoded = [*self._encode_joined(joined), self._encode_separately(separate)]
        self.numbers.update(zip(joined + separate, range(len(self.numbers), 1 << 62), strict=False))
        self.pool = np.concatenate([self.pool, *(ids for ids, _ in encoded)])
        self.lengths = np.concatenate([self.lengths, *(lengths for _, lengths in encoded)])
        self.characters += sum(map(len, words))

    def _encode_joined(self, words: list[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Encode many words in one text, separated by a special token, which acts as a text end."""
        groups = list(_groups(words, _TEXT))
        ids, sizes = self._encode_separately([self.separator.join(group) for group in groups])
        stops = np.cumsum(sizes)
        for group, start, stop in zip(groups, stops - sizes, stops, strict=True):
            inside = ids[start:stop]
            separators = np.flatnonzero(inside == self.separator_id)
            if len(separators) == len(group) - 1:
                lengths = np.diff(np.concatenate([[-1], separators, [len(inside)]])) - 1
                yield np.delete(inside, separators), lengths
            else:  # a word contains the id of the separator
                yield self._encode_separately(group)

    def _encode_separately(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = [np.empty(0, dtype=np.int32)], [0]
        for group in _groups(texts, _BLOCK):
            for encoded in self.tokenizer.encode_batch(group):
                ids.append(np.array(encoded, dtype=np.int32))
                lengths.append(len(encoded))
        return np.concatenate(ids), np.array(lengths[1:], dtype=np.int64)


def _groups(texts: Sequence[str], size: int) -> Iterator[list[str]]:
    return grouped(texts, size, lambda text: len(text) + 1)


def encodes_by_word(tokenizer: Tokenizer) -> bool:
    """Whether text between two spaces has the same ids in every context."""
    if tokenizer.kind not in ("blank", "wordpiece"):
        return False
    parts = json.loads(tokenizer.backend.to_str())
    normalizer = (parts["normalizer"] or {"type": None})["type"]
    pre_tokenizer = (parts["pre_tokenizer"] or {"type": None})["type"]
    added = [token["content"] for token in parts["added_tokens"]]
    return (
        normalizer in (None, "BertNormalizer")
        and pre_tokenizer in ("BertPreTokenizer", "WhitespaceSplit", "Whitespace")
        and not any(character.isspace() for content in added for character in content)
        and tokenizer.special["pad_token"] in added
    )
