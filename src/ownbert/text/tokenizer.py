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

from ownbert.exceptions import InputError
from ownbert.text.bert_rules import blank_backend, keep_whole, wordpiece_backend
from ownbert.text.build import register, set_post_processor, special_tokens
from ownbert.text.styles import ROBERTA, InputFormat
from ownbert.text.text_parts import PART, parts_of, places_to_cut, together
from ownbert.text.tokenizer_folder import (
    TokenizerFolder,
    kind_of,
    never_split_of,
    read_folder,
    style_of,
    vocabulary_of,
    write_folder,
)
from ownbert.time_limit import check_wanted

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

# Values from here on mean "no limit"; Transformers writes 1e30.
NO_LIMIT = 10**9


class Tokenizer:
    """A vocabulary and the rules that split text into its tokens.

    ``encode_batch`` ignores the padding, truncation and special tokens of the backend.

    Attributes:
        backend: tokenizer of the ``tokenizers`` library.
        kind: ``blank`` (text that is already tokenized), ``wordpiece`` (BERT's rules), ``bpe``
            (RoBERTa's byte-level BPE) or ``unigram`` (SentencePiece).
        style: tokenizer family, which determines the special tokens around a text.
        special: special tokens by name (``pad_token`` and so on).
        config: content of tokenizer_config.json.
        max_length: maximum input length of the model, if known; texts are not truncated here.
        never_split: words that BERT's rules do not split.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        *,
        max_length: int | None = None,
        special: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        """Create a tokenizer from one of the ``tokenizers`` library.

        Args:
            backend: tokenizer of the library.
            max_length: maximum input length of the model, if known; by default that in ``config``.
            special: special tokens by name (``pad_token``, ``unk_token``, ``cls_token``,
                ``sep_token`` and ``mask_token``); by default those of the family.
            config: content of tokenizer_config.json.

        Raises:
            InputError: the vocabulary lacks a special token, or ``never_split`` is invalid.
        """
        self.config = dict(config or {})
        self.style = style_of(backend, self.config.get("tokenizer_class"))
        self.special = dict(special or self.style.special)
        tokens = [self.special[name] for name in self.style.needed]
        missing = [token for token in tokens if backend.token_to_id(token) is None]
        if missing:
            raise InputError("the vocabulary lacks the special tokens {missing}", " ".join(missing))
        self.backend = backend
        self.kind = kind_of(backend)
        limit = self.config.get("model_max_length")
        if max_length is None and isinstance(limit, int | float) and 0 < limit < NO_LIMIT:
            max_length = int(limit)
        self.max_length = max_length
        rules = self.kind == "wordpiece" and self.config.get("do_basic_tokenize", True)
        self.never_split = never_split_of(self.config) if rules else ()
        self.encoder = keep_whole(backend, self.never_split) if self.never_split else backend
        self._tokens = _all_tokens(backend)
        self._ids = {token: index for index, token in enumerate(self._tokens)}

    @classmethod
    def blank(cls, vocabulary: Sequence[str], *, max_length: int | None = None) -> "Tokenizer":
        """Create a tokenizer for text that is already tokenized.

        Args:
            vocabulary: tokens in the order of their ids, including special tokens.
            max_length: maximum input length of the model, if known.
        """
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
        """Create a tokenizer with BERT's rules.

        Args:
            vocabulary: tokens in the order of their ids, including special tokens.
            do_lower_case, strip_accents, tokenize_chinese_chars: see ``wordpiece_rules``.
            max_length: maximum input length of the model, if known.
        """
        backend = wordpiece_backend(
            vocabulary,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )
        return cls(backend, max_length=max_length)

    @classmethod
    def byte_level(cls, backend: "tokenizers.Tokenizer") -> "Tokenizer":
        """Create a tokenizer from a byte-level BPE backend with RoBERTa's special tokens in its
        vocabulary, which is modified in place."""
        register(backend, special_tokens(ROBERTA, ROBERTA.special))
        set_post_processor(backend, ROBERTA, ROBERTA.special, add_prefix_space=True)
        return cls(backend, special=ROBERTA.special, config={"add_prefix_space": True})

    @classmethod
    def load(
        cls,
        folder: "str | os.PathLike[str] | TokenizerFolder",
        model: Mapping[str, Any] | None = None,
    ) -> "Tokenizer":
        """Load a tokenizer from tokenizer.json or a family's own files.

        For these files see ``text/tokenizer_folder.py``.

        Args:
            folder: folder of the tokenizer.
            model: content of the folder's config.json, if it has been read already.

        Raises:
            InputError: files are missing, damaged or contradictory.
        """
        files = folder.read() if isinstance(folder, TokenizerFolder) else read_folder(folder, model)
        try:
            return cls(
                files.backend,
                special=files.special,
                config=files.config,
            )
        except InputError as error:
            where = folder.path if isinstance(folder, TokenizerFolder) else folder
            raise InputError("{where}: {error}", where, error) from None

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Same as ``load``."""
        return cls.load(folder)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write tokenizer.json, tokenizer_config.json and vocabulary files to ``folder``."""
        write_folder(
            folder,
            self.backend,
            special=self.special,
            config=self.config,
            max_length=self.max_length,
        )

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """The tokenizer with further special tokens; new ones get ids after the existing ones."""
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
        """The id of the token after each text: [SEP] or its equivalent."""
        return self._special_id(self.style.end)

    @property
    def mask_id(self) -> int:
        return self._special_id("mask_token")

    @property
    def mask_or_unknown_id(self) -> int:
        """The id that takes the place of a removed word; T5 has no mask token."""
        return self.mask_id if "mask_token" in self.style.needed else self.unk_id

    @property
    def start_ids(self) -> tuple[int, ...]:
        """The ids of the tokens before a text: [CLS] or its equivalent; none in T5."""
        return () if self.style.start is None else (self._special_id(self.style.start),)

    def _special_id(self, name: str) -> int:
        if name not in self.style.needed:
            raise InputError("a {name} tokenizer has no {name2}", self.style.name, name)
        return self._ids[self.special[name]]

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of [PAD] [UNK] [CLS] [SEP] [MASK], or their equivalents, in this order.

        Tokens that the family does not have are omitted.
        """
        return tuple(self._ids[self.special[name]] for name in self.style.needed)

    @cached_property
    def input_format(self) -> InputFormat:
        """The positions of special tokens around texts."""
        start = None if self.style.start is None else self._special_id(self.style.start)
        return InputFormat(start, self.sep_id, self.style.double_sep, self.style.cls_last)

    def encode_batch(self, texts: Sequence[str], *, most: int | None = None) -> list[list[int]]:
        """Encode texts without special tokens, on all cores.

        Args:
            texts: texts of any length; long ones are encoded in parts.
            most: number of ids needed per text; later ids may be omitted.

        Returns:
            The ids of each text.

        Raises:
            InputError: a text contains half a surrogate pair.
            Abandoned: the result is no longer needed (``wanted_until``).
        """
        # The fast method omits the offsets; older versions of the library do not have it.
        encode = getattr(self.encoder, "encode_batch_fast", self.encoder.encode_batch)
        if sum(map(len, texts)) <= PART:
            return [encoding.ids for encoding in _encoded(encode, texts)]
        ids: list[list[int]] = [[] for _ in texts]
        parts = [parts_of(text, self._places_to_cut) for text in texts]
        unfinished = list(range(len(texts)))
        while unfinished:
            continued = []
            chosen = ((n, part) for n in unfinished for part in islice(parts[n], most and 1))
            for group in together(chosen):
                check_wanted()
                encodings = _encoded(encode, [part for _, part in group], texts)
                for (number, _), encoding in zip(group, encodings, strict=True):
                    ids[number] += encoding.ids
                    continued.append(number)
            unfinished = [n for n in continued if len(ids[n]) < most] if most else []
        return ids

    @cached_property
    def _places_to_cut(self) -> "re.Pattern[str] | None":
        return places_to_cut(self.encoder)

    def encode(self, text: str) -> list[int]:
        """Encode a single text; see ``encode_batch``."""
        return self.encode_batch([text])[0]

    def encodings(self, texts: Sequence[str]) -> "list[tokenizers.Encoding]":
        """Encode texts without special tokens, as objects of the ``tokenizers`` library.

        The texts are not encoded in parts, and the objects include the offsets of their tokens.

        Raises:
            InputError: a text contains half a surrogate pair.
        """
        return _encoded(self.encoder.encode_batch, texts)

    def with_offsets(self, texts: Sequence[str]) -> "Iterator[tuple[np.ndarray, np.ndarray]]":
        """Encode texts without special tokens, with the offsets of the tokens.

        Args:
            texts: texts of any length; long ones are encoded in parts.

        Returns:
            For each text its ids (tokens) and character spans (tokens, 2), ends exclusive.

        Raises:
            InputError: a text contains half a surrogate pair.
            Abandoned: the result is no longer needed (``wanted_until``).
        """
        import numpy as np

        ids, offsets, last, start = [], [], 0, 0
        parts = ((n, p) for n, t in enumerate(texts) for p in parts_of(t, self._places_to_cut))
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
        """The words or characters of each text that become the unknown token."""
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
        tokens = []
        for index in ids:
            if not 0 <= index < size:
                raise ValueError(
                    f"id {index} is not in the vocabulary, whose ids are 0..{size - 1}"
                )
            tokens.append(self._tokens[index])
        return tokens

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Decode ids to a line of text, with pieces joined to words."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def id_of(self, token: str) -> int | None:
        """The id of ``token``; None if it is not in the vocabulary."""
        return self._ids.get(token)

    def vocabulary(self) -> list[str]:
        """All tokens in the order of their ids."""
        return list(self._tokens)

    def fingerprint(self) -> str:
        """The SHA-256 of everything that determines ids: the vocabulary and the rules."""
        parts = json.loads(self.backend.to_str())
        model = parts["model"]
        if self.kind == "unigram":
            # The library may change the last bit of a score when it reads JSON.
            vocabulary, scores = zip(*model["vocab"], strict=True)
            single = struct.unpack(f"<{len(scores)}f", struct.pack(f"<{len(scores)}f", *scores))
            model["vocab"] = list(map(list, zip(vocabulary, single, strict=True)))
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
    """Encode texts, or parts of ``whole`` texts, with a method of the ``tokenizers`` library."""
    try:
        return encode(texts, add_special_tokens=False)
    except TypeError:
        whole_texts = texts if whole is None else whole
        for number, text in enumerate(whole_texts):
            # Half a surrogate pair has no UTF-8 encoding.
            if isinstance(text, str) and any("\ud800" <= letter <= "\udfff" for letter in text):
                which = "the text" if len(whole_texts) == 1 else f"texts[{number}]"
                raise InputError(
                    "{which} contains half a surrogate pair, not a character", which
                ) from None
        raise


def _all_tokens(backend: "tokenizers.Tokenizer") -> list[str]:
    ids = backend.get_vocab(with_added_tokens=True).values()
    size = 1 + max(ids, default=-1)
    if size > len(ids):  # one id of four billion would need a list of this length
        raise InputError("the vocabulary's ids are not 0..{count}, each once", len(ids) - 1)
    tokens = [backend.id_to_token(index) for index in range(size)]
    known = [token for token in tokens if token is not None]
    if len(known) != size:
        raise InputError("the vocabulary's ids are not 0..{size}, each once", size - 1)
    return known
