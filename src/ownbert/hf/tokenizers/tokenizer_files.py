"""A folder's tokenizer files: the constructor's arguments in them, and their contents."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.exceptions import InputError, MissingError, in_short
from ownbert.hf.tokenizers.special import ADDITIONAL, ATTRIBUTES, texts
from ownbert.hub import pretrained_folder
from ownbert.text.folder.tokenizer_config import ADDED, CONFIG, SPECIAL
from ownbert.text.folder.tokenizer_folder import (
    TOKENIZER,
    TokenizerFolder,
    vocabulary_files,
    write_files,
)
from ownbert.text.styles import SPECIAL_NAMES, Style

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken

# The constructor's argument for a tokenizer.json that has been read already.
READ_BACKEND = "_read_backend"
# Arguments of ``from_pretrained`` that find and fetch files, or select a class of Transformers.
HUB_ARGUMENTS = (
    *("cache_dir", "force_download", "local_files_only", "token", "revision", "proxies"),
    *("trust_remote_code", "resume_download", "use_auth_token", "subfolder", "code_revision"),
    *("use_fast", "config", "_from_auto", "_commit_hash", "_from_pipeline"),
)
# Keys of a saved configuration that are not arguments of a constructor.
NOT_ARGUMENTS = ("tokenizer_class", "tokenizer_file", "vocab_file", "merges_file", "init_inputs")
NOT_SAVED = (
    *("special_tokens_map_file", "device_map", "from_slow", "extra_special_tokens", "backend"),
    *ATTRIBUTES,
)
# Attributes whose current value is saved: always, and if the constructor was given one.
ALWAYS_SAVED = ("model_max_length", "clean_up_tokenization_spaces")
SAVED_IF_GIVEN = ("padding_side", "truncation_side", "model_input_names", "split_special_tokens")


def find_folder(name: Any, options: Mapping[str, Any]) -> TokenizerFolder:
    """The tokenizer folder for a name and the option ``subfolder``.

    Raises:
        MissingError: there is no such folder.
    """
    path = pretrained_folder(name, options)
    if not path.is_dir():
        raise MissingError(f"no such folder: {path}; a folder with a tokenizer's files is needed")
    return TokenizerFolder(path)


def read_arguments(
    folder: TokenizerFolder, files: Mapping[str, str], changes: Mapping[str, Any], class_name: str
) -> dict[str, Any]:
    """Read the arguments of a tokenizer's constructor from a folder.

    Args:
        files: names of the family's own files, by the argument that takes them.
        changes: arguments that override those in the files.

    Raises:
        InputError: neither the family's files nor tokenizer.json exist.
    """
    arguments = dict(folder.config)
    for key in NOT_ARGUMENTS:
        arguments.pop(key, None)
    if isinstance(arguments.get("extra_special_tokens"), list):
        # The name of additional special tokens in Transformers 5.
        arguments.setdefault(ADDITIONAL, arguments["extra_special_tokens"])
    arguments |= changes
    for key, file in {**files, "tokenizer_file": TOKENIZER}.items():
        if folder.has(file):
            arguments.setdefault(key, str(folder.path / file))
    if not any(key in arguments for key in (*files, "tokenizer_file", "tokenizer_object")):
        needed = " or ".join(filter(None, (TOKENIZER, " and ".join(files.values()))))
        raise MissingError(
            f"{folder.path} contains no tokenizer for {class_name}: {needed} is needed"
        )
    if arguments.get("added_tokens_decoder") is None:
        added = _older_added_tokens(folder, arguments, changes)
    else:
        listed = arguments["added_tokens_decoder"]
        if wrong := [key for key in listed if not str(key).isdecimal() or len(str(key)) > 9]:
            raise InputError(
                f"{folder.path / CONFIG}: added_tokens_decoder has the key {in_short(wrong[0])}; "
                "its keys must be ids"
            )
        added = {int(index): _token(t) for index, t in listed.items()}
    by_text = {_text(token): token for token in reversed(added.values())}
    for key in SPECIAL_NAMES:
        if arguments.get(key) is not None:
            token = _token(arguments[key])
            arguments[key] = by_text.get(_text(token), token)
    if arguments.get(ADDITIONAL) is not None:
        arguments[ADDITIONAL] = [_token(token) for token in arguments[ADDITIONAL]]
    backend = folder.backends.get(str(arguments.get("tokenizer_file")))
    if backend is not None:
        arguments[READ_BACKEND] = backend
    return {**arguments, "added_tokens_decoder": added}


def _older_added_tokens(
    folder: TokenizerFolder, arguments: dict[str, Any], changes: Mapping[str, Any]
) -> "dict[int, AddedToken]":
    """Added tokens by their ids, for a tokenizer_config.json that does not list them.

    They are in special_tokens_map.json (which is added to ``arguments``), added_tokens.json and
    tokenizer.json.
    """
    from tokenizers import AddedToken

    for name, token in folder.special_tokens.items():
        if not changes.get(name):
            is_list = isinstance(token, list)
            arguments[name] = [_token(t) for t in token] if is_list else _token(token, special=True)
    special = {_text(arguments.get(name)) for name in SPECIAL_NAMES}
    special |= {_text(token) for token in arguments.get(ADDITIONAL) or ()}
    added = {
        index: AddedToken(text, special=text in special, normalized=text not in special)
        for text, index in folder.added_tokens.items()
    }
    if "tokenizer_file" in arguments and os.path.isfile(arguments["tokenizer_file"]):
        backend = folder.backend(arguments["tokenizer_file"])
        added |= backend.get_added_tokens_decoder()
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
    """Names and contents of the vocabulary's own files; none for a SentencePiece model without its
    file ``source``, which is copied.
    """
    contents = vocabulary_files(backend)
    if contents or style is None or source is None or not os.path.isfile(source):
        return contents
    return {style.files["vocab_file"]: Path(source).read_bytes()}


def folder_contents(
    backend: "tokenizers.Tokenizer",
    settings: Mapping[str, Any],
    special: Mapping[str, Any],
    vocabulary: Mapping[str, bytes],
    legacy_format: bool | None,
) -> dict[str, bytes]:
    """Names and contents of all files of a tokenizer; ``legacy_format`` is as in
    ``save_pretrained``."""
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
    contents = {CONFIG: _json(config), SPECIAL: _json(bare)}
    if legacy_format is not False:
        size = backend.get_vocab_size(with_added_tokens=False)
        new = {token.content: index for index, token in added.items() if index >= size}
        contents |= {ADDED: _json(new)} if new else {}
        contents |= vocabulary
    if legacy_format is not True:
        backend.no_truncation()
        backend.no_padding()
        contents[TOKENIZER] = (backend.to_str(pretty=True) + "\n").encode("utf-8")
    return contents


def _bare(token: Any) -> Any:
    """A token as in special_tokens_map.json, where all tokens are special."""
    if isinstance(token, str):
        return token
    return {key: value for key, value in token.__getstate__().items() if key != "special"}


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, default=str)
    return (text + "\n").encode("utf-8")


def write_prefixed(
    folder: "str | os.PathLike[str]", contents: Mapping[str, bytes], prefix: str | None
) -> tuple[str, ...]:
    """Write files, with ``prefix`` and a hyphen before their names; returns the paths."""
    start = f"{prefix}-" if prefix else ""
    return tuple(map(str, write_files(folder, {start + n: data for n, data in contents.items()})))
