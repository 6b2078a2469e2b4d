"""Tokenizers of Transformers' names from a folder and into one."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ownbert.files
from ownbert.errors import InputError
from ownbert.files import atomic_path
from ownbert.hf.tokenizers.special import ADDITIONAL
from ownbert.text.files import CONFIG, SPECIAL, TOKENIZER, read_json
from ownbert.text.styles import SPECIAL_NAMES
from ownbert.text.writing import vocabulary_files

if TYPE_CHECKING:
    from tokenizers import AddedToken

    from ownbert.hf.tokenizers.tokenizer import PreTrainedTokenizerFast

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
    "special_tokens_map_file",
    "device_map",
    "from_slow",
    "extra_special_tokens",
    "backend",
)


def folder_of(name: Any, subfolder: str = "") -> Path:
    """The folder of a model; ``InputError`` for a name that is none."""
    find = getattr(ownbert.files, "model_folder", Path)
    folder = Path(find(name)) / (subfolder or "")
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}; a folder with a tokenizer's files is needed")
    return folder


def from_folder(
    cls: "type[PreTrainedTokenizerFast]", name: Any, args: tuple[Any, ...], given: dict[str, Any]
) -> "PreTrainedTokenizerFast":
    """``cls`` with the files and the tokenizer_config.json of a folder."""
    changes = {key: value for key, value in given.items() if key not in HUB_ARGUMENTS}
    files = cls.style.files if cls.style else {}
    if len(files) == 1 and os.path.isfile(name):
        return cls(name, *args, **changes)
    folder = folder_of(name, given.get("subfolder") or "")
    kwargs = read_json(folder / CONFIG)
    for key in NOT_ARGUMENTS:
        kwargs.pop(key, None)
    if isinstance(kwargs.get("extra_special_tokens"), list):
        # The name that Transformers 5 gives them.
        kwargs.setdefault(ADDITIONAL, kwargs["extra_special_tokens"])
    kwargs |= changes
    for key, file in {**files, "tokenizer_file": TOKENIZER}.items():
        if (folder / file).is_file():
            kwargs.setdefault(key, str(folder / file))
    if not any(key in kwargs for key in (*files, "tokenizer_file", "tokenizer_object")):
        needed = " and ".join(files.values())
        raise InputError(
            f"{folder} holds no tokenizer for {cls.__name__}: {TOKENIZER}"
            + (f" or {needed} is needed" if needed else " is needed")
        )
    listed = _listed(folder, kwargs, changes)
    for key in SPECIAL_NAMES:
        if kwargs.get(key) is not None:
            kwargs[key] = _special(kwargs[key], listed)
    if kwargs.get(ADDITIONAL) is not None:
        kwargs[ADDITIONAL] = [_token(token) for token in kwargs[ADDITIONAL]]
    return cls(*args, **{**kwargs, "added_tokens_decoder": listed, "name_or_path": str(name)})


def _listed(
    folder: Path, kwargs: dict[str, Any], changes: Mapping[str, Any]
) -> "dict[int, AddedToken]":
    """The added tokens by their ids, as the folder lists them in one of its four ways."""
    from tokenizers import AddedToken

    if kwargs.get("added_tokens_decoder") is not None:
        listed = kwargs["added_tokens_decoder"]
        return {int(index): _token(token) for index, token in listed.items()}
    for name, token in read_json(folder / SPECIAL).items():
        if not changes.get(name):
            many = isinstance(token, list)
            kwargs[name] = [_token(t) for t in token] if many else _token(token, special=True)
    special = {text for name in SPECIAL_NAMES if (text := _text(kwargs.get(name)))}
    special |= {_text(token) for token in kwargs.get(ADDITIONAL) or ()}
    found = {
        index: AddedToken(text, special=text in special, normalized=text not in special)
        for text, index in read_json(folder / ADDED).items()
    }
    if "tokenizer_file" in kwargs:
        for token in read_json(Path(kwargs["tokenizer_file"])).get("added_tokens", []):
            found[token["id"]] = _token({k: v for k, v in token.items() if k != "id"})
    return found


def _token(value: Any, **more: Any) -> Any:
    from tokenizers import AddedToken

    if not isinstance(value, dict):
        return value
    known = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(**{key: value[key] for key in known if key in value} | more)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else getattr(value, "content", None)


def _special(value: Any, listed: "Mapping[int, AddedToken]") -> Any:
    token = _token(value)
    return next((known for known in listed.values() if known.content == _text(token)), token)


def save(
    tokenizer: "PreTrainedTokenizerFast",
    folder: "str | os.PathLike[str]",
    legacy_format: bool | None,
    prefix: str | None,
) -> tuple[str, ...]:
    """Write configuration, tokenizer.json and vocabulary; nothing takes its place unless all do."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    special = {
        name: [_bare(token) for token in value] if isinstance(value, list) else _bare(value)
        for name, value in tokenizer.special_tokens_map_extended.items()
    }
    contents = {CONFIG: _json(_config_of(tokenizer)), SPECIAL: _json(special)}
    if legacy_format is not False:
        size = tokenizer.vocab_size
        added = {t: i for t, i in tokenizer.added_tokens_encoder.items() if i >= size}
        contents |= {ADDED: _json(added)} if added else {}
        contents |= _vocabulary(tokenizer)
    if legacy_format is not True:
        contents[TOKENIZER] = (backend.to_str(pretty=True) + "\n").encode("utf-8")
    return _write(folder, contents, prefix)


def save_vocabulary(
    tokenizer: "PreTrainedTokenizerFast", folder: "str | os.PathLike[str]", prefix: str | None
) -> tuple[str, ...]:
    contents = _vocabulary(tokenizer)
    if not contents:
        raise InputError("the SentencePiece model is not at hand; save_pretrained needs none")
    return _write(folder, contents, prefix)


def _vocabulary(tokenizer: "PreTrainedTokenizerFast") -> dict[str, bytes]:
    """Names and contents; SentencePiece's file only where it is still where it was read from."""
    found = vocabulary_files(tokenizer.backend_tokenizer)
    if found:
        return {name: text.encode("utf-8") for name, text in found.items()}
    source, style = tokenizer.vocab_file, tokenizer.style
    if style is None or source is None or not os.path.isfile(source):
        return {}
    return {style.files["vocab_file"]: Path(source).read_bytes()}


def _config_of(tokenizer: "PreTrainedTokenizerFast") -> dict[str, Any]:
    config = {k: v for k, v in tokenizer.init_kwargs.items() if k not in NOT_SAVED}
    for name in ("padding_side", "truncation_side", "model_input_names", "split_special_tokens"):
        if name in config:
            config[name] = getattr(tokenizer, name)
    config["model_max_length"] = tokenizer.model_max_length
    config["clean_up_tokenization_spaces"] = tokenizer.clean_up_tokenization_spaces
    for name in (*SPECIAL_NAMES, ADDITIONAL):
        config.pop(name, None)
    config |= tokenizer.special_tokens_map
    if config.get("never_split") is not None:
        config["never_split"] = sorted(config["never_split"])
    config["added_tokens_decoder"] = {
        str(index): _plain(token) for index, token in sorted(tokenizer.added_tokens_decoder.items())
    }
    config["tokenizer_class"] = type(tokenizer).__name__
    return config


def _plain(token: Any) -> Any:
    return token if isinstance(token, str) else token.__getstate__()


def _bare(token: Any) -> Any:
    """As ``_plain``, for a file whose tokens are all special."""
    value = _plain(token)
    return value if isinstance(value, str) else {k: v for k, v in value.items() if k != "special"}


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, default=str)
    return (text + "\n").encode("utf-8")


def _write(
    folder: "str | os.PathLike[str]", contents: Mapping[str, bytes], prefix: str | None
) -> tuple[str, ...]:
    start = f"{prefix}-" if prefix else ""
    paths = {name: Path(folder, start + name) for name in contents}
    with ExitStack() as stack:
        for name, data in contents.items():
            stack.enter_context(atomic_path(paths[name])).write_bytes(data)
    return tuple(str(path) for path in paths.values())
