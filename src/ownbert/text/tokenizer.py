"""Tokenizer: text to ids and back, loaded from and saved to a Hugging Face folder."""

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.text.bert_rules import keep_whole, wordpiece_backend
from ownbert.text.blank import blank_backend
from ownbert.text.folder.build import register, special_tokens, surround
from ownbert.text.folder.tokenizer_folder import (
    guess_style,
    kind_of,
    never_split_of,
    read_folder,
    vocabulary_of,
)
from ownbert.text.folder.writing import write_folder
from ownbert.text.input_format import InputFormat
from ownbert.text.styles import ROBERTA
from ownbert.text.text_parts import PART, parts_of, places_to_cut, together
from ownbert.time_limit import check_wanted

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

# Transformers writes 1e30 for "no limit".
NO_LIMIT = 10**9


class Tokenizer:
    """A vocabulary and the rules that split text into its tokens.

    The backend's padding, truncation and special tokens are not used by ``encode_batch``.

    Attributes:
        kind: ``blank`` (text that is already tokens), ``wordpiece`` (BERT's rules), ``bpe``
            (RoBERTa's byte-level BPE) or ``unigram`` (SentencePiece).
        style: the family, which decides on the tokens around a text.
        max_length: the longest input of the model that it belongs to, if known; nothing is
            truncated here.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        *,
        max_length: int | None = None,
        special: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        """From a tokenizer of the ``tokenizers`` library.

        Args:
            backend: this tokenizer.
            max_length: the longest input of the model, if known.
            special: the tokens by ``pad_token``, ``unk_token``, ``cls_token``, ``sep_token`` and
                ``mask_token``; None: those of the family.
            config: the contents of tokenizer_config.json.

        Raises:
            InputError: the vocabulary lacks a special token.
        """
        self.style = guess_style(backend)
        self.special = dict(special or self.style.special)
        tokens = [self.special[name] for name in self.style.needed]
        missing = [token for token in tokens if backend.token_to_id(token) is None]
        if missing:
            raise InputError(f"the vocabulary lacks the special tokens {' '.join(missing)}")
        self.backend = backend
        self.kind = kind_of(backend)
        self.max_length = max_length
        self.config = dict(config or {})
        rules = self.kind == "wordpiece" and self.config.get("do_basic_tokenize", True)
        self.never_split = never_split_of(self.config) if rules else ()
        self.encoder = keep_whole(backend, self.never_split) if self.never_split else backend
        self._tokens = _all_tokens(backend)
        self._ids = {token: index for index, token in enumerate(self._tokens)}

    @classmethod
    def blank(cls, vocabulary: Sequence[str], *, max_length: int | None = None) -> "Tokenizer":
        """For text that is already tokens; ``vocabulary`` includes the special tokens."""
        return cls(blank_backend(vocabulary), max_length=max_length)

    @classmethod
    def wordpiece(
        cls,
        vocabulary: Sequence[str],
        *,
        do_lower_case: bool = True,
        strip_accents: bool | None = None,
        tokenize_chinese_chars: bool = True,
        max_length: int | None = None,
    ) -> "Tokenizer":
        """For plain text by BERT's rules; ``vocabulary`` includes the special tokens."""
        backend = wordpiece_backend(
            vocabulary,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )
        return cls(backend, max_length=max_length)

    @classmethod
    def byte_level(cls, backend: "tokenizers.Tokenizer") -> "Tokenizer":
        """From a byte-level BPE ``backend`` with RoBERTa's special tokens in its vocabulary."""
        register(backend, special_tokens(ROBERTA, ROBERTA.special, built=True))
        surround(backend, ROBERTA, ROBERTA.special, add_prefix_space=True)
        return cls(backend, special=ROBERTA.special, config={"add_prefix_space": True})

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], model: Mapping[str, Any] | None = None
    ) -> "Tokenizer":
        """Read a folder with tokenizer.json or a family's own files; see
        ``text/folder/tokenizer_folder.py``.

        Args:
            folder: of the tokenizer.
            model: its config.json, if it has been read.

        Raises:
            InputError: files are missing, damaged or contradictory.
        """
        found = read_folder(folder, model)
        limit = found.config.get("model_max_length")
        if not isinstance(limit, int | float) or not 0 < limit < NO_LIMIT:
            limit = None
        try:
            return cls(
                found.backend,
                max_length=None if limit is None else int(limit),
                special=found.special,
                config=found.config,
            )
        except InputError as error:
            raise InputError(f"{folder}: {error}") from None

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """As ``load``."""
        return cls.load(folder)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json, tokenizer_config.json and the files of the vocabulary alone."""
        write_folder(
            folder,
            self.backend,
            special=self.special,
            config=self.config,
            max_length=self.max_length,
        )

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """The tokenizer with further special tokens; those that it lacks get ids behind its own."""
        new = [token for token in tokens if token not in self._ids]
        if not new:
            return self
        backend = type(self.backend).from_str(self.backend.to_str())
        register(backend, new)
        listed = [*(self.config.get("additional_special_tokens") or ()), *new]
        return Tokenizer(
            backend,
            max_length=self.max_length,
            special=self.special,
            config=self.config | {"additional_special_tokens": listed},
        )

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        return self._ids[self.special["pad_token"]]

    @property
    def unk_id(self) -> int:
        return self._ids[self.special["unk_token"]]

    @property
    def cls_id(self) -> int:
        return self._special_id("cls_token")

    @property
    def sep_id(self) -> int:
        """Of the token after each text, [SEP] or its equivalent."""
        return self._special_id(self.style.end)

    @property
    def mask_id(self) -> int:
        return self._special_id("mask_token")

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Of the tokens before a text: [CLS], and in T5 none."""
        return () if self.style.start is None else (self._special_id(self.style.start),)

    def _special_id(self, name: str) -> int:
        if name not in self.style.needed:
            raise InputError(f"a {self.style.name} tokenizer has no {name}")
        return self._ids[self.special[name]]

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of [PAD] [UNK] [CLS] [SEP] [MASK], or their equivalents, in this order.

        Those that the family lacks are left out.
        """
        return tuple(self._ids[self.special[name]] for name in self.style.needed)

    @cached_property
    def input_format(self) -> InputFormat:
        """Where the special tokens stand around texts."""
        start = None if self.style.start is None else self._special_id(self.style.start)
        return InputFormat(start, self.sep_id, self.style.double_sep, self.style.cls_last)

    def encode_batch(self, texts: Sequence[str], *, most: int | None = None) -> list[list[int]]:
        """The ids of each text, without special tokens around it; uses all cores.

        Args:
            texts: of any length; long ones are encoded part by part.
            most: ids that are needed of a text; of one that has more, those behind may be missing.

        Raises:
            InputError: a text holds half a surrogate pair.
            Abandoned: nobody waits for them (``wanted_until``).
        """
        # The fast call leaves out the offsets, which are not needed; older versions lack it.
        encode = getattr(self.encoder, "encode_batch_fast", self.encoder.encode_batch)
        if sum(map(len, texts)) <= PART:
            return [encoding.ids for encoding in _encoded(encode, texts)]
        ids: list[list[int]] = [[] for _ in texts]
        parts = [parts_of(text, self._places_to_cut) for text in texts]
        left = list(range(len(texts)))
        while left:
            going_on = []
            chosen = ((n, part) for n in left for part in islice(parts[n], most and 1))
            for group in together(chosen):
                check_wanted()
                encodings = _encoded(encode, [part for _, part in group], texts)
                for (number, _), encoding in zip(group, encodings, strict=True):
                    ids[number] += encoding.ids
                    going_on.append(number)
            left = [n for n in going_on if len(ids[n]) < most] if most else []
        return ids

    @cached_property
    def _places_to_cut(self) -> "re.Pattern[str] | None":
        return places_to_cut(self.encoder)

    def encode(self, text: str) -> list[int]:
        """As ``encode_batch``, for one text."""
        return self.encode_batch([text])[0]

    def encodings(self, texts: Sequence[str]) -> "list[tokenizers.Encoding]":
        """As ``encode_batch``, with the place of each token in its text.

        Raises:
            InputError: a text holds half a surrogate pair.
        """
        return _encoded(self.encoder.encode_batch, texts)

    def with_offsets(self, texts: Sequence[str]) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
        """As ``encode_batch``: the ids (tokens) of each text and their characters (tokens, 2), ends
        exclusive."""
        import numpy as np

        ids, offsets, last, start = [], [], 0, 0
        parts = (
            (n, p) for n, text in enumerate(texts) for p in parts_of(text, self._places_to_cut)
        )
        for group in together(parts):
            check_wanted()
            encodings = _encoded(self.encoder.encode_batch, [part for _, part in group], texts)
            for (number, part), encoding in zip(group, encodings, strict=True):
                if number > last:
                    yield np.concatenate(ids), np.concatenate(offsets)
                    ids, offsets, last, start = [], [], number, 0
                ids.append(np.asarray(encoding.ids, dtype=np.int32))
                own = np.asarray(encoding.offsets, dtype=np.int32).reshape(-1, 2)
                offsets.append(own + start)
                start += len(part)
        if ids:
            yield np.concatenate(ids), np.concatenate(offsets)

    def unknown_words(self, texts: Sequence[str]) -> list[list[str]]:
        """What becomes the unknown token in each text, as it stands there."""
        return [
            [text[start:end] for start, end in offsets[ids == self.unk_id].tolist()]
            for text, (ids, offsets) in zip(texts, self.with_offsets(texts), strict=True)
        ]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id.

        Raises:
            ValueError: an id is not in the vocabulary.
        """
        size = self.vocab_size
        found = []
        for index in ids:
            if not 0 <= index < size:
                raise ValueError(
                    f"id {index} is not in the vocabulary, whose ids are 0..{size - 1}"
                )
            found.append(self._tokens[index])
        return found

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of ``ids``: pieces joined to words, words to one line."""
        return self.backend.decode(
            [int(index) for index in ids], skip_special_tokens=skip_special_tokens
        )

    def id_of(self, token: str) -> int | None:
        """The id of ``token``, or None."""
        return self._ids.get(token)

    def vocabulary(self) -> list[str]:
        """All tokens in the order of their ids."""
        return list(self._tokens)

    def fingerprint(self) -> str:
        """A sha256 of all that ids depend on: the vocabulary and rules, not ``max_length``."""
        parts = json.loads(self.backend.to_str())
        model = parts["model"]
        if self.kind == "unigram":
            # The library may lose the last bit of a score when it reads JSON.
            model["vocab"] = [[token, _single(score)] for token, score in model["vocab"]]
        else:
            model["vocab"] = vocabulary_of(self.backend)
        kept = {name: parts[name] for name in ("normalizer", "pre_tokenizer", "added_tokens")}
        if self.never_split:
            kept["never_split"] = sorted(set(self.never_split))
        content = json.dumps({"model": model, **kept}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"


def _encoded(
    encode: Callable[..., Any], texts: Sequence[str], whole: Sequence[str] | None = None
) -> list[Any]:
    """Texts, or parts of ``whole`` ones, by a method of the tokenizers library."""
    try:
        return encode(texts, add_special_tokens=False)
    except TypeError:
        given = texts if whole is None else whole
        for number, text in enumerate(given):
            # What stands for half a character in Python's strings has no UTF-8.
            if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text):
                which = "the text" if len(given) == 1 else f"texts[{number}]"
                raise InputError(
                    f"{which} contains half a surrogate pair, not a character"
                ) from None
        raise


def _single(number: float) -> float:
    return struct.unpack("<f", struct.pack("<f", number))[0]


def _all_tokens(backend: "tokenizers.Tokenizer") -> list[str]:
    ids = backend.get_vocab(with_added_tokens=True).values()
    size = 1 + max(ids, default=-1)
    if size > len(ids):  # a single id of four billion would make a list of as many tokens
        raise InputError(f"the vocabulary's ids are not 0..{len(ids) - 1}, each once")
    tokens = [backend.id_to_token(index) for index in range(size)]
    found = [token for token in tokens if token is not None]
    if len(found) != size:
        raise InputError(f"the vocabulary's ids are not 0..{size - 1}, each once")
    return found
