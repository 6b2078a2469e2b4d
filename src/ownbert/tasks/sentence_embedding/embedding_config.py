"""How a folder wants its texts embedded, as sentence-transformers writes it."""

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
    """How a folder wants its texts embedded.

    pooling: one of ``POOLINGS``, or another name that sentence-transformers knows and we do not.
    max_length: in tokens, special ones included. prompt: stands before every text.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    prompt: str = ""


def read_embedding_config(folder: Path) -> EmbeddingConfig:
    """What sentence-transformers wrote beside a model; the defaults where it wrote nothing.

    Raises ``InputError`` for a module that would change the vectors and is not supported.
    """
    listed = read_json(folder / "modules.json", list, missing=[])
    if not all(isinstance(module, dict) for module in listed):
        raise InputError(f"{folder / 'modules.json'} must hold a list of objects")
    pooling, normalize, inner = "mean", False, folder
    for module in listed:
        kind, path = str(module.get("type", "")).rpartition(".")[2], folder / module.get("path", "")
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


def _pooling_of(config: dict[str, Any]) -> str:
    modes = config.get("pooling_mode") or [
        name.removeprefix(_OLD_MODE).removesuffix("_token").removesuffix("_tokens")
        for name, value in config.items()
        if name.startswith(_OLD_MODE) and value
    ]
    names = [modes] if isinstance(modes, str) else list(modes)
    return "+".join(_MODES.get(name, name) for name in names) or "mean"
