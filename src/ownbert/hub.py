"""Model folders, and models of the Hugging Face hub under the names of folders.

One rule: nothing is fetched unless it is written ``hf:org/name``. The classes of ``ownbert.hf``
alone take bare names too, as those of Transformers do, but never one that looks like a path.
"""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ownbert.errors import InputError, MissingError

PREFIX = "hf:"
# Arguments of ``from_pretrained`` that are passed on.
HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "revision", "token")
# The files of a model folder that are used here; only these are fetched.
_MODEL_FILES = ("*.json", "*.txt", "*.safetensors", "*.model", "pytorch_model*.bin")
_NAME = re.compile(r"[A-Za-z0-9_-][\w.-]*(/[A-Za-z0-9_-][\w.-]*)?", re.ASCII)


def model_folder(name: str | os.PathLike[str]) -> Path:
    """The folder of a model: ``name`` itself, or a copy of the hub's model ``hf:org/name``.

    Raises:
        InputError: the model cannot be fetched. That a folder exists is not checked.
    """
    text = os.fspath(name)
    if not text.startswith(PREFIX):
        return Path(name)
    wanted = text.removeprefix(PREFIX)
    if not is_name(wanted):
        raise InputError(f"{text} is no name of a model of the hub; write {PREFIX}org/name")
    return _fetched(wanted)


def is_name(text: str) -> bool:
    """Whether a model of the hub may be called so: "name", or "org/name"."""
    return _NAME.fullmatch(text) is not None


def pretrained_folder(name: str | os.PathLike[str], options: Mapping[str, Any] = {}) -> Path:
    """The folder that ``from_pretrained`` reads, whose names may be of the hub without ``hf:``.

    Args:
        name: a folder, or a name on the hub.
        options: of ``from_pretrained``, of which ``HUB_OPTIONS`` are used.

    Raises:
        InputError: there is neither, or the extra ``hub`` is not installed.
    """
    path, text = Path(name), os.fspath(name)
    if path.exists():
        return path
    wanted = text.removeprefix(PREFIX)
    # What begins in an existing folder is a slip in a path.
    if not is_name(wanted) or ("/" in text and path.parent.exists()):
        raise MissingError(f"no such folder: {name}")
    given = {key: options[key] for key in HUB_OPTIONS if options.get(key) is not None}
    return _fetched(wanted, **given)


@cache
def _fetched(name: str, **options: Any) -> Path:
    """A model of the hub in its local cache; once per process."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingError(
            f"no such folder: {name}; to fetch a model of that name: pip install 'ownbert[hub]'"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(_MODEL_FILES), **options))
    except Exception as error:  # the library's errors are of many kinds: no network, no such name
        raise MissingError(
            f"no such folder: {name}; nor could it be fetched from the hub: {reason(error)}"
        ) from None


def reason(error: Exception) -> str:
    """The first line of what the library says."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
