"""Model folders, and models of the Hugging Face Hub referred to like folders.

Models are downloaded only for names of the form ``hf:org/name``. ``from_pretrained``
accepts bare names as well, like that of Transformers, but never one that looks like a path.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError, MissingError, in_short

PREFIX = "hf:"
# Arguments of ``from_pretrained`` that are passed on to the hub.
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
# Patterns of the files that are downloaded; other files of a model are not used.
_MODEL_FILES = ("*.json", "*.txt", "*.safetensors", "*.model", "pytorch_model*.bin")
_NAME = re.compile(r"[A-Za-z0-9_-][\w.-]*(/[A-Za-z0-9_-][\w.-]*)?", re.ASCII)


def model_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a model: ``name`` itself, or a local copy of the model ``hf:org/name``. It is
    not checked whether the folder exists."""
    if not isinstance(name, str | os.PathLike):
        raise InputError("a model folder is needed, not {name}", in_short(name))
    text = os.fspath(name)
    if not text.startswith(PREFIX):
        return _not_a_file(Path(name))
    hub_name = text.removeprefix(PREFIX)
    if not is_name(hub_name):
        raise InputError(
            "{text} is not the name of a model on the hub; write {prefix}org/name", text, PREFIX
        )
    return _fetched(hub_name)


def is_name(text: str) -> bool:
    """Whether ``text`` is a valid model name of the hub: "name", or "org/name"."""
    return _NAME.fullmatch(text) is not None


def _not_a_file(path: Path) -> Path:
    if path.is_file():
        if (path.parent / "config.json").is_file():
            raise InputError("{path} is a file; give the folder {parent}", path, path.parent)
        raise InputError("{path} is a file, but a folder with a model is needed here", path)
    return path


def pretrained_folder(name: Any, options: Mapping[str, Any], *, or_file: bool = False) -> Path:
    """Resolve the argument of ``from_pretrained``, which may be a hub name without ``hf:``;
    ``or_file``: it may be a file, too. Of the options ``HUB_OPTIONS`` and ``subfolder`` are used.
    """
    if not isinstance(name, str | os.PathLike):
        raise InputError("from_pretrained needs a folder, not {name!r}", name)
    path, text = Path(name), os.fspath(name)
    subfolder = options.get("subfolder") or ""
    if not isinstance(subfolder, str | os.PathLike):
        raise InputError(
            "subfolder is {subfolder}; it must be the name of a folder", in_short(subfolder)
        )
    if path.exists():
        return path if or_file and path.is_file() else _not_a_file(path) / subfolder
    hub_name = text.removeprefix(PREFIX)
    # A name whose parent folder exists is a mistyped path.
    if not is_name(hub_name) or ("/" in text and path.parent.exists()):
        raise MissingError("no such folder: {name}", name)
    given = {key: options[key] for key in HUB_OPTIONS if options.get(key) is not None}
    return _fetched(hub_name, **given) / subfolder


@cache
def _fetched(name: str, **options: Any) -> Path:
    """Download a model of the hub to its local cache, at most once per process."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingError(
            "no such folder: {name}; to fetch a model of that name: pip install 'ownbert[hub]'",
            name,
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(_MODEL_FILES), **options))
    except Exception as error:  # many error types: no network, unknown name
        raise MissingError(
            "no such folder: {name}; nor could it be fetched from the hub: {reason}",
            name,
            reason(error),
        ) from None


def reason(error: Exception) -> str:
    """The first line of the library's error message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
