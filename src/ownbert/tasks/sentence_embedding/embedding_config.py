"""The settings of a sentence-transformers folder: pooling, length, prompt."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.files import read_json

POOLINGS = ("mean", "first", "max")
_MODES = {"cls": "first", "mean": "mean", "max": "max"}
_OLD_MODE = "pooling_mode_"


@dataclass(frozen=True)
class EmbeddingConfig:
    """How texts are to be embedded.

    Args:
        pooling: one of ``POOLINGS``, or another one of sentence-transformers, which is not
            supported.
        normalize: whether vectors are scaled to unit length.
        max_length: in tokens, including special tokens.
        prompt: prepended to every text.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    prompt: str = ""


def read_embedding_config(folder: Path) -> EmbeddingConfig:
    """The settings that sentence-transformers saved with a model; defaults for those it did not.

    Raises:
        InputError: there is an unsupported module, which would change the vectors.
    """
    pooling, normalize, inner = "mean", False, folder
    for kind, path in _modules(folder):
        if kind == "Transformer":
            inner = path
        elif kind == "Pooling":
            pooling = _pooling_of(read_json(path / "config.json", missing={}))
        elif kind == "Normalize":
            normalize = True
        else:
            raise InputError(f"{folder / 'modules.json'}: module {kind!r} is not supported")
    limit = read_json(inner / "sentence_bert_config.json", missing={}).get("max_seq_length")
    described = read_json(folder / "config_sentence_transformers.json", missing={})
    prompts, name = described.get("prompts") or {}, described.get("default_prompt_name")
    return EmbeddingConfig(pooling, normalize, limit, prompts.get(name) or "")


def read_pooling(folder: Path) -> str | None:
    """The pooling that sentence-transformers saved with a model; None without one of ``POOLINGS``.

    Raises:
        InputError: a file of sentence-transformers is damaged.
    """
    for kind, path in _modules(folder):
        if kind == "Pooling":
            pooling = _pooling_of(read_json(path / "config.json", missing={}))
            return pooling if pooling in POOLINGS else None
    return None


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """The kind and the folder of each module."""
    listed = read_json(folder / "modules.json", list, missing=[])
    if not all(isinstance(module, dict) for module in listed):
        raise InputError(f"{folder / 'modules.json'} must hold a list of objects")
    for module in listed:
        yield str(module.get("type", "")).rpartition(".")[2], folder / module.get("path", "")


def _pooling_of(config: dict[str, Any]) -> str:
    modes = config.get("pooling_mode") or [
        name.removeprefix(_OLD_MODE).removesuffix("_token").removesuffix("_tokens")
        for name, value in config.items()
        if name.startswith(_OLD_MODE) and value
    ]
    names = [modes] if isinstance(modes, str) else list(modes)
    return "+".join(_MODES.get(name, name) for name in names) or "mean"
