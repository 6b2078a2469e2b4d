"""The files of a tokenizer in a folder: what a constructor takes from them, and their contents."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputError
from ownbert.files import model_folder, read_json
from ownbert.hf.tokenizers.special import ADDITIONAL, ATTRIBUTES, texts
from ownbert.text.files import CONFIG, SPECIAL, TOKENIZER
from ownbert.text.styles import SPECIAL_NAMES, Style
from ownbert.text.writing import vocabulary_files, write_files

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken

ADDED = "added_tokens.json"
# How files are found and fetched, and which of Transformers' classes; no matter for a tokenizer.
HUB_ARGUMENTS = (
    *("cache_dir", "force_download", "local_files_only", "token", "revision", "proxies"),
    *("trust_remote_code", "resume_download", "use_auth_token", "subfolder", "code_revision"),
    *("use_fast", "config", "_from_auto", "_commit_hash", "_from_pipeline"),
)
# What a saved configuration says of itself and no constructor takes.
NOT_ARGUMENTS = ("tokenizer_class", "tokenizer_file", "vocab_file", "merges_file", "init_inputs")
NOT_SAVED = (
    *("special_tokens_map_file", "device_map", "from_slow", "extra_special_tokens", "backend"),
    *ATTRIBUTES,
)
# Attributes whose present value is saved: always, and where the constructor was given one.
ALWAYS_SAVED = ("model_max_length", "clean_up_tokenization_spaces")
SAVED_IF_GIVEN = ("padding_side", "truncation_side", "model_input_names", "split_special_tokens")


def folder_of(name: Any, subfolder: str = "") -> Path:
    """The folder of a model; ``InputError`` for a name that has none."""
    folder = model_folder(name) / subfolder
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}; a folder with a tokenizer's files is needed")
    return folder


def read_arguments(
    folder: Path, files: Mapping[str, str], changes: Mapping[str, Any], class_name: str
) -> dict[str, Any]:
    """The arguments of a tokenizer's constructor that ``folder`` states, with ``changes``.

    ``files``: arguments that take the family's own files, to their names. Raises ``InputError``
    where neither these nor tokenizer.json are there.
    """
    found = read_json(folder / CONFIG, missing={})
    for key in NOT_ARGUMENTS:
        found.pop(key, None)
    if isinstance(found.get("extra_special_tokens"), list):
        # The name that Transformers 5 gives them.
        found.setdefault(ADDITIONAL, found["extra_special_tokens"])
    found |= changes
    for key, file in {**files, "tokenizer_file": TOKENIZER}.items():
        if (folder / file).is_file():
            found.setdefault(key, str(folder / file))
    if not any(key in found for key in (*files, "tokenizer_file", "tokenizer_object")):
        needed = " or ".join(filter(None, (TOKENIZER, " and ".join(files.values()))))
        raise InputError(f"{folder} holds no tokenizer for {class_name}: {needed} is needed")
    if found.get("added_tokens_decoder") is None:
        added = _older_added_tokens(folder, found, changes)
    else:
        added = {int(index): _token(t) for index, t in found["added_tokens_decoder"].items()}
    by_text = {_text(token): token for token in reversed(added.values())}
    for key in SPECIAL_NAMES:
        if found.get(key) is not None:
            token = _token(found[key])
            found[key] = by_text.get(_text(token), token)
    if found.get(ADDITIONAL) is not None:
        found[ADDITIONAL] = [_token(token) for token in found[ADDITIONAL]]
    return {**found, "added_tokens_decoder": added}


def _older_added_tokens(
    folder: Path, found: dict[str, Any], changes: Mapping[str, Any]
) -> "dict[int, AddedToken]":
    """Added tokens by their ids where tokenizer_config.json does not list them.

    They are in special_tokens_map.json (which is added to ``found``), added_tokens.json and
    tokenizer.json.
    """
    from tokenizers import AddedToken

    for name, token in read_json(folder / SPECIAL, missing={}).items():
        if not changes.get(name):
            many = isinstance(token, list)
            found[name] = [_token(t) for t in token] if many else _token(token, special=True)
    special = {_text(found.get(name)) for name in SPECIAL_NAMES}
    special |= {_text(token) for token in found.get(ADDITIONAL) or ()}
    added = {
        index: AddedToken(text, special=text in special, normalized=text not in special)
        for text, index in read_json(folder / ADDED, missing={}).items()
    }
    if "tokenizer_file" in found:
        for token in read_json(Path(found["tokenizer_file"]), missing={}).get("added_tokens", []):
            added[token["id"]] = _token(token)
    return added


def _token(value: Any, **more: Any) -> Any:
    from tokenizers import AddedToken

    if not isinstance(value, dict):
        return value
    known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(**{key: value[key] for key in known if key in value} | more)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else getattr(value, "content", None)


def vocabulary_contents(
    backend: "tokenizers.Tokenizer", style: Style | None, source: str | None
) -> dict[str, bytes]:
    """Names and contents of the vocabulary's own files.

    A SentencePiece model is copied from ``source``; nothing is returned if it is no longer there.
    """
    found = vocabulary_files(backend)
    if found or style is None or source is None or not os.path.isfile(source):
        return found
    return {style.files["vocab_file"]: Path(source).read_bytes()}


def folder_contents(
    backend: "tokenizers.Tokenizer",
    settings: Mapping[str, Any],
    special: Mapping[str, Any],
    vocabulary: Mapping[str, bytes],
    legacy_format: bool | None,
) -> dict[str, bytes]:
    """Names and contents of all files of a tokenizer.

    ``settings`` are the constructor's arguments and ``tokenizer_class``, ``special`` the special
    tokens by attribute name, ``vocabulary`` the files of ``vocabulary_contents``;
    ``legacy_format`` is that of ``save_pretrained``.
    """
    config = {name: value for name, value in settings.items() if name not in NOT_SAVED}
    if config.get("never_split") is not None:
        config["never_split"] = sorted(config["never_split"])
    added = dict(sorted(backend.get_added_tokens_decoder().items()))
    config["added_tokens_decoder"] = {str(i): token.__getstate__() for i, token in added.items()}
    config |= texts(special)
    bare = {
        name: [_bare(token) for token in value] if isinstance(value, list) else _bare(value)
        for name, value in special.items()
    }
    found = {CONFIG: _json(config), SPECIAL: _json(bare)}
    if legacy_format is not False:
        size = backend.get_vocab_size(with_added_tokens=False)
        new = {token.content: index for index, token in added.items() if index >= size}
        found |= {ADDED: _json(new)} if new else {}
        found |= vocabulary
    if legacy_format is not True:
        backend.no_truncation()
        backend.no_padding()
        found[TOKENIZER] = (backend.to_str(pretty=True) + "\n").encode("utf-8")
    return found


def _bare(token: Any) -> Any:
    """A token as special_tokens_map.json has it: all of its tokens are special."""
    if isinstance(token, str):
        return token
    return {key: value for key, value in token.__getstate__().items() if key != "special"}


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, default=str)
    return (text + "\n").encode("utf-8")


def write_prefixed(
    folder: "str | os.PathLike[str]", contents: Mapping[str, bytes], prefix: str | None
) -> tuple[str, ...]:
    """Write files, ``prefix`` and a hyphen before their names if it is given; returns the paths."""
    start = f"{prefix}-" if prefix else ""
    return tuple(map(str, write_files(folder, {start + n: data for n, data in contents.items()})))
