"""Reads the tokenizer files in a Hugging Face model folder, and writes those for Transformers.

tokenizer.json contains everything and takes precedence; a vocab.txt beside it must agree. Without
it, the family's own files are read: vocab.txt (as in Google's release of BERT), vocab.json and
merges.txt (RoBERTa), sentencepiece.bpe.model (XLM-R, CamemBERT), spiece.model (ALBERT, T5, XLNet),
spm.model (DeBERTa).
"""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.exceptions import InputError, MissingError, in_short
from ownbert.files.json_files import read_json
from ownbert.files.text_files import open_text, read_text
from ownbert.files.writing import atomic_path, uninterrupted
from ownbert.hub import model_folder
from ownbert.text.bert_rules import CONTINUATION, blank_backend
from ownbert.text.build import (
    ADDED,
    CONFIG_KEYS,
    IDS,
    SPECIAL_TOKENS,
    build,
    register,
    set_post_processor,
    special_tokens,
)
from ownbert.text.build import CONFIG as CONFIG
from ownbert.text.build import SPECIAL as SPECIAL
from ownbert.text.styles import (
    ALBERT,
    BERT,
    CAMEMBERT,
    CLASSES,
    ROBERTA,
    SPECIAL_NAMES,
    STYLES,
    T5,
    XLM_ROBERTA,
    XLNET,
    Style,
    class_name,
)

if TYPE_CHECKING:
    import tokenizers


VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
MODEL_CONFIG = "config.json"
# All tokenizer files that a folder may contain.
TOKENIZER_FILES = (
    *(TOKENIZER, CONFIG, SPECIAL, ADDED),
    *sorted({name for style in STYLES for name in style.files.values()}),
)
# Maximum bytes of a tokenizer.json; the largest published one has 35 MB.
_MOST_TOKENIZER = 1 << 28
_GENERIC_CLASS = "PreTrainedTokenizerFast"
# Settings of the loaded tokenizer_config.json that are preserved on saving.
_PRESERVED = (
    *("tokenizer_class", "model_input_names", "additional_special_tokens", "extra_ids"),
    *("do_lower_case", "keep_accents", "add_prefix_space", "never_split"),
    *("padding_side", "truncation_side", "clean_up_tokenization_spaces"),
)
KINDS = {"WordLevel": "blank", "WordPiece": "wordpiece", "BPE": "bpe", "Unigram": "unigram"}
_CASE_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}


@dataclass(frozen=True)
class TokenizerFiles:
    """A tokenizer as read from the files of a folder: the backend, its special tokens by name, and
    the content of tokenizer_config.json, if it names no class with that implied by config.json."""

    backend: "tokenizers.Tokenizer"
    special: Mapping[str, str]
    config: dict[str, Any]


def has_tokenizer(folder: str | os.PathLike[str]) -> bool:
    path = model_folder(folder)
    return (path / TOKENIZER).is_file() or bool(TokenizerFolder(path).styles)


class TokenizerFolder:
    """A folder with a tokenizer, whose files are read once, when they are first needed.

    As in Transformers, the settings for case, accents and Chinese characters in
    tokenizer_config.json take precedence over those in tokenizer.json.

    Args:
        model: content of the folder's config.json, if it has been read already.
        changes: settings that override those in tokenizer_config.json.
        preferred: class of the tokenizer if the files name none, or one of the same family.
    """

    def __init__(
        self,
        path: Path,
        model: Mapping[str, Any] | None = None,
        changes: Mapping[str, Any] = {},
        preferred: str | None = None,
    ) -> None:
        self.path, self._model, self._changes, self._preferred = path, model, changes, preferred

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, with the changes; empty if there is none."""
        return read_json(self.path / CONFIG, missing={}, check=CONFIG_KEYS) | self._changes

    @cached_property
    def special_tokens(self) -> dict[str, Any]:
        """The content of special_tokens_map.json, tokens by name; empty if there is none."""
        return read_json(self.path / SPECIAL, missing={}, check=SPECIAL_TOKENS)

    def added_tokens(self) -> "list[tokenizers.AddedToken]":
        """The added tokens in the order of their ids, for a folder without tokenizer.json.

        tokenizer_config.json contains them, or else, in older folders, added_tokens.json.
        """
        from tokenizers import AddedToken

        stated = self.special_tokens | self.config
        more = stated.get("additional_special_tokens") or stated.get("extra_special_tokens") or ()
        more = more.values() if isinstance(more, dict) else more
        special = [_token(value, special=True) for value in more]
        listed = self.config.get("added_tokens_decoder") or {}
        if wrong := [key for key in listed if not key.isdecimal() or len(key) > 9]:
            raise InputError(
                "{path}: added_tokens_decoder has the key {wrong}; its keys must be ids",
                self.path / CONFIG,
                in_short(wrong[0]),
            )
        if listed:
            return [*(_token(listed[key]) for key in sorted(listed, key=int)), *special]
        ids = read_json(self.path / ADDED, missing={}, check=IDS)
        names = {token.content for token in special}
        in_order = sorted(ids, key=ids.__getitem__)
        return [*(AddedToken(t, normalized=t not in names) for t in in_order), *special]

    @cached_property
    def class_name(self) -> str | None:
        """The tokenizer class named in the files, without ``Fast``; None if it is unknown."""
        model = self._model
        if model is None:
            model = read_json(self.path / MODEL_CONFIG, missing={})
        named, preferred = class_name(self.config, model), self._preferred
        if preferred and (named is None or CLASSES[named][0] is CLASSES[preferred][0]):
            return preferred
        return named

    @property
    def styles(self) -> list[Style]:
        """The styles whose files all exist."""
        return [style for style in STYLES if all(map(self.has, style.files.values()))]

    @cached_property
    def backend(self) -> "tokenizers.Tokenizer":
        return _read_backend(self.path / TOKENIZER)

    def style(self, named: str | None = None) -> Style:
        """The style of a folder without tokenizer.json; ``named``: tokenizer class named in the
        files."""
        styles = self.styles
        if named and CLASSES[named][0] in styles:
            return CLASSES[named][0]
        if not styles:
            raise MissingError(
                "{path} contains no tokenizer: {tokenizer} or {vocabulary} is needed",
                self.path,
                TOKENIZER,
                VOCABULARY,
            )
        if styles[0] is XLM_ROBERTA:
            raise InputError(
                "{path}: {config} must state tokenizer_class, XLMRobertaTokenizer or "
                "CamembertTokenizer, because {files} does not determine it",
                self.path,
                CONFIG,
                XLM_ROBERTA.files["vocab_file"],
            )
        return styles[0]

    def special_names(self, style: Style) -> dict[str, str]:
        """The special tokens by name, from the files or by default from ``style``."""
        stated = self.special_tokens | self.config
        names = dict(style.special)
        for name in SPECIAL_NAMES:
            value = stated.get(name)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                names[name] = text
        return names

    def read(self) -> TokenizerFiles:
        config, named, built = dict(self.config), self.class_name, not self.has(TOKENIZER)
        bert = not built and kind_of(self.backend) in ("blank", "wordpiece")
        if named and bert:
            # BERT's rules need BERT's style, even if the network is another one (XLNet, T5).
            named = named if CLASSES[named][0] is BERT else None
        if named and named == self._preferred and class_name(config, {}):
            config["tokenizer_class"] = named
        elif named:
            config.setdefault("tokenizer_class", named)
        if built:
            style = self.style(named)
            special = self.special_names(style)
            files = {key: self.path / name for key, name in style.files.items()}
            tokens = read_vocabulary(files["vocab_file"]) if style is BERT else [CONTINUATION]
            pieces = any(token.startswith(CONTINUATION) for token in tokens)
            if config.get("do_basic_tokenize") is False and not pieces:
                # Transformers' BertTokenizer saves a blank vocabulary, split at whitespace, so.
                backend = blank_backend(tokens)
            else:
                backend = build(style, files, {**config, "unk_token": special["unk_token"]})
        else:
            backend = self.backend
            if bert and self.has(VOCABULARY):
                _require_agreement(self.path, vocabulary_of(backend))
            if config.get("do_basic_tokenize", True):
                _apply_case_settings(backend, config)
            style = style_of(backend, named)
            special = self.special_names(style)
        needed = [n for n in style.needed if not (built and n in style.behind)]
        absent = [special[n] for n in needed if backend.token_to_id(special[n]) is None]
        if absent:
            source = style.files["vocab_file"] if built else TOKENIZER
            raise InputError(
                "{path} lacks the special tokens {absent}", self.path / source, " ".join(absent)
            )
        if built:
            register(backend, special_tokens(style, special, config), self.added_tokens())
            set_post_processor(backend, style, special)
        return TokenizerFiles(backend, special, config)


def read_folder(
    folder: str | os.PathLike[str], model: Mapping[str, Any] | None = None
) -> TokenizerFiles:
    """Read the tokenizer of a folder; see ``TokenizerFolder``."""
    path = model_folder(folder) if model is None else Path(folder)
    if not path.is_dir():
        raise InputError("no such folder: {path}", path)
    return TokenizerFolder(path, model).read()


def _token(value: Any, **more: bool) -> "tokenizers.AddedToken":
    from tokenizers import AddedToken

    if isinstance(value, str):
        return AddedToken(value, **more)
    known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(**{key: value[key] for key in known if key in value} | more)


def style_of(backend: "tokenizers.Tokenizer", named: object) -> Style:
    """The style of the class that the files name; without one, and for BERT's rules, a guess."""
    entry = CLASSES.get(str(named).removesuffix("Fast"))
    words = kind_of(backend) in ("blank", "wordpiece")
    return _guess_style(backend) if words or entry is None else entry[0]


def _guess_style(backend: "tokenizers.Tokenizer") -> Style:
    """The style of a tokenizer.json if no other file names it."""
    if kind_of(backend) in ("blank", "wordpiece"):
        return BERT
    maskless = kind_of(backend) == "unigram" and backend.token_to_id("<mask>") is None
    if maskless and all(backend.token_to_id(t) is not None for t in T5.special.values()):
        return T5
    last = ROBERTA if kind_of(backend) == "bpe" else XLM_ROBERTA
    for style in (BERT, ALBERT, XLNET, CAMEMBERT):
        tokens = [*style.special.values(), *style.additional]
        if all(backend.token_to_id(token) is not None for token in tokens):
            return style
    return last


def read_vocabulary(path: str | os.PathLike[str]) -> list[str]:
    """Read a vocab.txt: the tokens in the order of their ids."""
    lines: dict[str, int] = {}
    for number, token in open_text(path, internal=True):
        if not token:
            raise InputError(
                "{path}, line {number}: empty, a token is needed on every line", path, number
            )
        if token in lines:
            raise InputError(
                "{path}, line {number}: {token!r} is on line {lines} already",
                path,
                number,
                token,
                lines[token],
            )
        lines[token] = number
    if not lines:
        raise InputError("{path} is empty", path)
    return list(lines)


def vocabulary_of(backend: "tokenizers.Tokenizer") -> list[str]:
    """The tokens of the model in the order of their ids, without added tokens."""
    ids = backend.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def _read_backend(path: Path) -> "tokenizers.Tokenizer":
    """Read a tokenizer.json without its truncation and padding."""
    from tokenizers import Tokenizer

    text = read_text(path, most=_MOST_TOKENIZER)
    try:
        backend = Tokenizer.from_str(text)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # no narrower type; a Rust panic is not an Exception
        raise InputError(
            "{path} is damaged or not a tokenizer of the tokenizers library", path
        ) from error
    # Some folders (sentence-transformers) set truncation and padding, which are done elsewhere.
    backend.no_truncation()
    backend.no_padding()
    return backend


def kind_of(backend: "tokenizers.Tokenizer") -> str:
    """The kind of a tokenizer: ``blank``, ``wordpiece``, ``bpe`` or ``unigram``."""
    return KINDS[type(backend.model).__name__]


def _require_agreement(folder: Path, tokens: list[str]) -> None:
    listed = read_vocabulary(folder / VOCABULARY)
    if listed == tokens:
        return
    if len(listed) != len(tokens):
        detail = f"{len(listed)} tokens and {len(tokens)}"
    else:
        first = next(i for i, token in enumerate(tokens) if listed[i] != token)
        detail = f"id {first} is {listed[first]!r} and {tokens[first]!r}"
    raise InputError(
        "{folder}: {vocabulary} and {tokenizer} disagree ({detail}); remove one",
        folder,
        VOCABULARY,
        TOKENIZER,
        detail,
    )


def _apply_case_settings(backend: "tokenizers.Tokenizer", config: Mapping[str, Any]) -> None:
    """Apply the settings for case, accents and Chinese characters in ``config`` to BERT's rules."""
    from tokenizers import normalizers

    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return
    for name, attribute in _CASE_SETTINGS.items():
        if name in config:
            value = config[name] if name == "strip_accents" else bool(config[name])
            setattr(normalizer, attribute, value)
    backend.normalizer = normalizer


def never_split_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The words in ``never_split``, a setting of BERT's tokenizers in Transformers."""
    words = config.get("never_split") or ()
    if not isinstance(words, list | tuple | set | frozenset) or not all(
        isinstance(word, str) for word in words
    ):
        raise InputError("never_split must be a list of words, not {words!r}", words)
    return tuple(words)


def write_folder(
    folder: str | os.PathLike[str],
    backend: "tokenizers.Tokenizer",
    *,
    special: Mapping[str, str],
    config: Mapping[str, Any],
    max_length: int | None,
) -> None:
    """Write files that Transformers 4.57.6 and 5 can load; all are complete before one is replaced.
    A SentencePiece model is only written to tokenizer.json. ``config`` is the content of the
    tokenizer_config.json that was loaded."""
    from tokenizers import pre_tokenizers

    kind = kind_of(backend)
    style = style_of(backend, config.get("tokenizer_class"))
    # Transformers has no class for WordLevel models; the generic one loads them.
    own = kind != "blank" and (kind == "wordpiece" or style is not BERT)
    stated = str(config.get("tokenizer_class")).removesuffix("Fast")
    _, inputs = CLASSES.get(stated, CLASSES[style.tokenizer_class])
    described: dict[str, Any] = {
        "tokenizer_class": style.tokenizer_class if own else _GENERIC_CLASS,
        "clean_up_tokenization_spaces": False,
        "model_input_names": list(inputs),
    }
    if style is BERT:
        normalizer: Any = backend.normalizer
        described["do_basic_tokenize"] = isinstance(
            backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer
        )
        described |= {
            name: getattr(normalizer, key)
            for name, key in _CASE_SETTINGS.items()
            if hasattr(normalizer, key)
        }
    of_words = ("model_input_names", "additional_special_tokens")
    kept = of_words if kind == "blank" else _PRESERVED
    described |= {name: config[name] for name in kept if name in config}
    described |= special
    if max_length is not None:
        described["model_max_length"] = max_length
    texts = {
        TOKENIZER: backend.to_str(pretty=True) + "\n",
        CONFIG: json.dumps(described, ensure_ascii=False, indent=2) + "\n",
    }
    contents = {name: text.encode("utf-8") for name, text in texts.items()}
    contents |= _vocabulary_files(backend)
    with uninterrupted(), contextlib.ExitStack() as stack:
        # The file entered last is replaced first: the one with the rules, because a vocabulary
        # without it would be read with BERT's rules.
        for name, data in reversed(contents.items()):
            stack.enter_context(atomic_path(Path(folder, name))).write_bytes(data)


def _vocabulary_files(backend: "tokenizers.Tokenizer") -> dict[str, bytes]:
    """The files with the vocabulary but without the rules: contents by file name."""
    from tokenizers import decoders

    kind = kind_of(backend)
    if kind in ("blank", "wordpiece"):
        tokens = vocabulary_of(backend)
        return {VOCABULARY: "".join(f"{token}\n" for token in tokens).encode("utf-8")}
    if kind != "bpe" or not isinstance(backend.decoder, decoders.ByteLevel):
        return {}
    model = json.loads(backend.to_str())["model"]
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    ids = json.dumps(model["vocab"], ensure_ascii=False) + "\n"
    merges = "".join(f"{line}\n" for line in ["#version: 0.2", *pairs])
    return {
        ROBERTA.files["vocab_file"]: ids.encode("utf-8"),
        ROBERTA.files["merges_file"]: merges.encode("utf-8"),
    }
