"""The tokenizer's files: vocab.txt, tokenizer.json and tokenizer_config.json.

These are the files of a Hugging Face model folder; a folder with vocab.txt alone is how Google
released its models. Where both are present tokenizer.json decides, and vocab.txt must agree.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.files import atomic_path, open_text
from ownbert.text.bert import CONTINUATION, SPECIAL_TOKENS, wordpiece_backend
from ownbert.text.blank import blank_backend

if TYPE_CHECKING:
    import tokenizers

VOCABULARY = "vocab.txt"
TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
KINDS = {"WordLevel": "blank", "WordPiece": "wordpiece"}
CASE_SETTINGS = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
SPECIAL_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def has_tokenizer(folder: str | os.PathLike[str]) -> bool:
    """Whether ``folder`` holds a vocabulary to load."""
    return any(Path(folder, name).is_file() for name in (TOKENIZER, VOCABULARY))


def write_folder(
    folder: str | os.PathLike[str], backend: "tokenizers.Tokenizer", *, max_length: int | None
) -> None:
    """Write the three files; all are complete before the first takes its place."""
    contents = {
        VOCABULARY: "".join(f"{token}\n" for token in vocabulary_of(backend)),
        TOKENIZER: backend.to_str(pretty=True) + "\n",
        CONFIG: json.dumps(_config_of(backend, max_length), ensure_ascii=False, indent=2) + "\n",
    }
    with contextlib.ExitStack() as stack:
        for name, text in contents.items():
            temporary = stack.enter_context(atomic_path(Path(folder, name)))
            temporary.write_bytes(text.encode("utf-8"))


def read_folder(folder: str | os.PathLike[str]) -> tuple["tokenizers.Tokenizer", dict[str, Any]]:
    """The tokenizer of ``folder`` and its tokenizer_config.json ({} without one).

    Where tokenizer_config.json states case, accents or Chinese characters, it decides over
    tokenizer.json, as in Transformers. ``InputError`` for files that are missing, damaged or
    disagree, and for a vocabulary that lacks a special token.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"no such folder: {place}")
    config = _read_json(place / CONFIG) if (place / CONFIG).is_file() else {}
    if (place / TOKENIZER).is_file():
        backend = _read_backend(place / TOKENIZER)
        source = place / TOKENIZER
        if (place / VOCABULARY).is_file():
            _require_agreement(place, vocabulary_of(backend))
        _apply_case_settings(backend, config)
    elif (place / VOCABULARY).is_file():
        source = place / VOCABULARY
        backend = _from_vocabulary(source, config)
    else:
        raise InputError(f"{place} holds no tokenizer: {TOKENIZER} or {VOCABULARY} is needed")
    missing = [token for token in SPECIAL_TOKENS if backend.token_to_id(token) is None]
    if missing:
        raise InputError(f"{source} lacks the special tokens {' '.join(missing)}")
    return backend, config


def read_vocabulary(path: str | os.PathLike[str]) -> list[str]:
    """The tokens of a vocab.txt, the n-th line being id n (from 0).

    ``InputError`` for an empty file, an empty line and a token that stands there twice.
    """
    lines: dict[str, int] = {}
    for number, token in open_text(path):
        if not token:
            raise InputError(f"{path}, line {number}: empty, a token is needed on every line")
        if token in lines:
            raise InputError(
                f"{path}, line {number}: {token!r} stands on line {lines[token]} already"
            )
        lines[token] = number
    if not lines:
        raise InputError(f"{path} is empty")
    return list(lines)


def vocabulary_of(backend: "tokenizers.Tokenizer") -> list[str]:
    """The tokens of the model in the order of their ids, tokens added later left out."""
    ids = backend.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.__getitem__)


def _read_backend(path: Path) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer

    text = "\n".join(line for _, line in open_text(path))
    try:
        backend = Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{path} is damaged or no tokenizer of the tokenizers library") from error
    if kind_of(backend) is None:
        model = type(backend.model).__name__
        raise InputError(f"{path} holds a {model} model; known are {' and '.join(KINDS)}")
    # Some folders (sentence-transformers) keep a length and a padding here; both are ours to set.
    backend.no_truncation()
    backend.no_padding()
    return backend


def kind_of(backend: "tokenizers.Tokenizer") -> str | None:
    """``blank`` or ``wordpiece``; None for a model that is neither."""
    return KINDS.get(type(backend.model).__name__)


def _require_agreement(folder: Path, tokens: list[str]) -> None:
    listed = read_vocabulary(folder / VOCABULARY)
    if listed == tokens:
        return
    if len(listed) != len(tokens):
        detail = f"{len(listed)} tokens and {len(tokens)}"
    else:
        first = next(
            i for i, pair in enumerate(zip(listed, tokens, strict=True)) if len({*pair}) > 1
        )
        detail = f"id {first} is {listed[first]!r} and {tokens[first]!r}"
    raise InputError(f"{folder}: {VOCABULARY} and {TOKENIZER} disagree ({detail}); remove one")


def _from_vocabulary(path: Path, config: dict[str, Any]) -> "tokenizers.Tokenizer":
    tokens = read_vocabulary(path)
    if config.get("do_basic_tokenize") is False:
        # How Transformers' BertTokenizer saves a blank vocabulary: split at blanks only.
        if any(token.startswith(CONTINUATION) for token in tokens):
            raise InputError(f"{path.parent / CONFIG}: do_basic_tokenize false is not known here")
        return blank_backend(tokens)
    settings = {name: config[name] for name in CASE_SETTINGS if name in config}
    return wordpiece_backend(tokens, **settings)


def _apply_case_settings(backend: "tokenizers.Tokenizer", config: dict[str, Any]) -> None:
    from tokenizers import normalizers

    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return
    for name, attribute in CASE_SETTINGS.items():
        if name in config and getattr(normalizer, attribute) != config[name]:
            setattr(normalizer, attribute, config[name])
    backend.normalizer = normalizer


def _read_json(path: Path) -> dict[str, Any]:
    text = "\n".join(line for _, line in open_text(path))
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is not JSON") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} is not a JSON object")
    return value


def _config_of(backend: "tokenizers.Tokenizer", max_length: int | None) -> dict[str, Any]:
    normalizer: Any = backend.normalizer
    config: dict[str, Any] = {
        # A WordLevel model has no class of its own in Transformers; the general one reads it.
        "tokenizer_class": (
            "BertTokenizer" if kind_of(backend) == "wordpiece" else "PreTrainedTokenizerFast"
        ),
        "do_basic_tokenize": kind_of(backend) == "wordpiece",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{name: getattr(normalizer, key) for name, key in CASE_SETTINGS.items()},
        **dict(zip(SPECIAL_NAMES, SPECIAL_TOKENS, strict=True)),
    }
    if max_length is not None:
        config["model_max_length"] = max_length
    return config
