"""Tokenizer: text to ids and back, loaded from and saved to a Hugging Face folder."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ownbert.errors import InputError
from ownbert.text.bert import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK, wordpiece_backend
from ownbert.text.blank import blank_backend
from ownbert.text.files import kind_of, read_folder, vocabulary_of, write_folder

if TYPE_CHECKING:
    import tokenizers

# Transformers writes 1e30 for "no limit".
NO_LIMIT = 10**9


class Tokenizer:
    """A vocabulary and the rules that cut text into it.

    ``kind`` is ``blank`` (text that is already tokens) or ``wordpiece`` (BERT's rules).
    ``max_length`` is the longest input of the model that it belongs to, if known; nothing is cut
    here. The backend's padding, truncation and special tokens are not used by ``encode_batch``.
    """

    def __init__(self, backend: "tokenizers.Tokenizer", *, max_length: int | None = None):
        """Raise ``InputError`` when the backend is of no known kind or lacks a special token."""
        kind = kind_of(backend)
        if kind is None:
            raise InputError(f"a {type(backend.model).__name__} tokenizer is not known here")
        missing = [token for token in SPECIAL_TOKENS if backend.token_to_id(token) is None]
        if missing:
            raise InputError(f"the vocabulary lacks the special tokens {' '.join(missing)}")
        self.backend = backend
        self.kind = kind
        self.max_length = max_length
        self._tokens = _all_tokens(backend)
        self._ids = {token: index for index, token in enumerate(self._tokens)}

    @classmethod
    def blank(cls, vocabulary: Sequence[str], *, max_length: int | None = None) -> "Tokenizer":
        """For text that is already tokens; ``vocabulary`` holds the special tokens too."""
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
        """For plain text by BERT's rules; ``vocabulary`` holds the special tokens too."""
        backend = wordpiece_backend(
            vocabulary,
            do_lower_case=do_lower_case,
            strip_accents=strip_accents,
            tokenize_chinese_chars=tokenize_chinese_chars,
        )
        return cls(backend, max_length=max_length)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Read a folder with tokenizer.json or vocab.txt; see ``ownbert.text.files``."""
        backend, config = read_folder(folder)
        limit = config.get("model_max_length")
        if not isinstance(limit, int | float) or not 0 < limit < NO_LIMIT:
            limit = None
        return cls(backend, max_length=None if limit is None else int(limit))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json into ``folder``."""
        write_folder(folder, self.backend, max_length=self.max_length)

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    @property
    def pad_id(self) -> int:
        return self._ids[PAD]

    @property
    def unk_id(self) -> int:
        return self._ids[UNK]

    @property
    def cls_id(self) -> int:
        return self._ids[CLS]

    @property
    def sep_id(self) -> int:
        return self._ids[SEP]

    @property
    def mask_id(self) -> int:
        return self._ids[MASK]

    @property
    def special_ids(self) -> tuple[int, ...]:
        """The ids of [PAD] [UNK] [CLS] [SEP] [MASK], in this order."""
        return tuple(self._ids[token] for token in SPECIAL_TOKENS)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens around it, on all cores."""
        # The fast call leaves out the offsets, which nobody reads here; older versions lack it.
        encode = getattr(self.backend, "encode_batch_fast", self.backend.encode_batch)
        return [encoding.ids for encoding in encode(texts, add_special_tokens=False)]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token of each id. ``ValueError`` for an id that is not in the vocabulary."""
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
        """The text of ``ids``: pieces joined to words, words to a line."""
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
        """A sha256 over all that decides ids: the vocabulary and the rules, not the lengths."""
        parts = json.loads(self.backend.to_str())
        model = parts["model"]
        model["vocab"] = vocabulary_of(self.backend)
        kept = {name: parts[name] for name in ("normalizer", "pre_tokenizer", "added_tokens")}
        content = json.dumps({"model": model, **kept}, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(content.encode("utf-8")).hexdigest()

    def __repr__(self) -> str:
        return f"Tokenizer(kind={self.kind!r}, vocab_size={self.vocab_size})"


def _all_tokens(backend: "tokenizers.Tokenizer") -> list[str]:
    ids = backend.get_vocab(with_added_tokens=True)
    tokens = sorted(ids, key=ids.__getitem__)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise InputError(f"the vocabulary's ids are not 0..{len(tokens) - 1}, each once")
    return tokens
