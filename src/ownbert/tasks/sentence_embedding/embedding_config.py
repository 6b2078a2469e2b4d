"""The settings of a sentence-transformers folder: pooling, length, prompt."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.files import inside, read_json
from ownbert.schema import dict_of, either, list_of, maybe, record, text, whole

POOLINGS = ("mean", "first", "max")
_MODES = {"cls": "first", "mean": "mean", "max": "max"}
_OLD_MODE = "pooling_mode_"
_MODULES = list_of(record({"type": text, "path": text}), most=100)
_POOLING = record(
    {"pooling_mode": maybe(either(text, list_of(text), wanted="a name, or a list of them"))}
)
_LIMIT = record({"max_seq_length": maybe(whole(1, 1 << 20))})
_PROMPTS = record({"prompts": maybe(dict_of(text)), "default_prompt_name": maybe(text)})


@dataclass(frozen=True)
class EmbeddingConfig:
    """How texts are to be embedded.

    Args:
        pooling: one of ``POOLINGS``, or another one of sentence-transformers, which is not
            supported.
        normalize: whether vectors are scaled to unit length.
        max_length: in tokens, including special tokens.
        prompt: prepended to every text.
        prompts: those for some kinds of texts, by name.
    """

    pooling: str = "mean"
    normalize: bool = False
    max_length: int | None = None
    prompt: str = ""
    prompts: Mapping[str, str] = field(default_factory=dict)


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
            pooling = _pooling_in(path)
        elif kind == "Normalize":
            normalize = True
        else:
            raise InputError(f"{folder / 'modules.json'}: module {kind!r} is not supported")
    limit = read_json(inner / "sentence_bert_config.json", missing={}, check=_LIMIT)
    described = read_json(folder / "config_sentence_transformers.json", missing={}, check=_PROMPTS)
    prompts, name = described.get("prompts") or {}, described.get("default_prompt_name")
    prompt = prompts.get(name) or ""
    return EmbeddingConfig(pooling, normalize, limit.get("max_seq_length"), prompt, prompts)


def read_pooling(folder: Path) -> str | None:
    """The pooling that sentence-transformers saved with a model; None without one of ``POOLINGS``.

    Raises:
        InputError: a file of sentence-transformers is damaged.
    """
    for kind, path in _modules(folder):
        if kind == "Pooling":
            pooling = _pooling_in(path)
            return pooling if pooling in POOLINGS else None
    return None


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """The kind and the folder of each module."""
    source = folder / "modules.json"
    for module in read_json(source, list, missing=[], check=_MODULES):
        path = inside(folder, module.get("path", ""), source)
        yield module.get("type", "").rpartition(".")[2], path


def _pooling_in(folder: Path) -> str:
    """The pooling of a module's folder, several with + between them."""
    config: dict[str, Any] = read_json(folder / "config.json", missing={}, check=_POOLING)
    modes = config.get("pooling_mode") or [
        name.removeprefix(_OLD_MODE).removesuffix("_token").removesuffix("_tokens")
        for name, value in config.items()
        if name.startswith(_OLD_MODE) and value
    ]
    names = [modes] if isinstance(modes, str) else list(modes)
    return "+".join(_MODES.get(name, name) for name in names) or "mean"
