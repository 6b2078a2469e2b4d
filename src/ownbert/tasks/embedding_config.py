"""The settings of a sentence-transformers folder: pooling, length, prompts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ownbert import limits
from ownbert.checks import dict_of, either, list_of, maybe, record, text, truth, whole
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json, write_json

POOLINGS = ("mean", "first", "max")
_MODES = {"cls": "first", "mean": "mean", "max": "max"}
_OLD_MODE = "pooling_mode_"
_MODULES = list_of(record({"type": text, "path": text}), most=100)
_POOLING = record(
    {
        "pooling_mode": maybe(either(text, list_of(text), wanted="a name, or a list of them")),
        "include_prompt": maybe(truth),
    }
)
_INPUT, _PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
_INPUT_KEYS = record({"max_seq_length": maybe(whole(1, 1 << 20)), "do_lower_case": maybe(truth)})
_PROMPTS_KEYS = record(
    {
        "prompts": maybe(dict_of(text)),
        "default_prompt_name": maybe(text),
        "similarity_fn_name": maybe(text),
        "truncate_dim": maybe(whole(1, limits.WIDTH)),
    }
)


@dataclass(frozen=True)
class EmbeddingConfig:
    """How texts are embedded."""

    pooling: str = "mean"  # one of ``POOLINGS``, or an unsupported one of sentence-transformers
    normalize: bool = False  # whether vectors are scaled to unit length
    max_length: int | None = None  # maximum tokens including special tokens
    prompts: Mapping[str, str] = field(default_factory=dict)  # prompts by name
    default_prompt_name: str | None = None  # name of the prompt for texts without one
    similarity: str | None = None  # name of the similarity function, if the folder has one
    lowercase: bool = False  # whether texts are lower-cased
    pools_prompt: bool = True  # whether the pooling includes the tokens of the prompt
    truncate_dim: int | None = None  # number of leading dimensions of each vector to keep

    @property
    def prompt(self) -> str:
        """The default prompt, prepended to texts without one."""
        return self.prompts.get(self.default_prompt_name or "", "")

    def texts(self, texts: Iterable[str], prompt: str) -> list[str]:
        """The texts as the model reads them: after a prompt, and lower-cased if it requires that;
        raise ``InputError`` if the pooling would have to exclude the prompt."""
        if prompt and not self.pools_prompt:
            raise InputError(
                "the folder excludes the tokens of a prompt from pooling (include_prompt), which "
                "is not supported; use an empty prompt"
            )
        prompted = (prompt + text for text in texts)
        return [text.lower() for text in prompted] if self.lowercase else list(prompted)


def read_embedding_config(folder: Path) -> EmbeddingConfig:
    """The settings saved by sentence-transformers, with defaults for missing ones; raise
    ``InputError`` for an unsupported module, which would change the vectors."""
    pooling, normalize, pools_prompt = "mean", False, True
    for kind, path in _modules(folder):
        if kind == "Transformer":
            continue
        if kind == "Pooling":
            pooling = _pooling_in(path)
            pools_prompt = _pooling_file(path).get("include_prompt") is not False
        elif kind == "Normalize":
            normalize = True
        else:
            raise InputError(
                "{folder}: module {kind!r} is not supported", folder / "modules.json", kind
            )
    lengths = read_json(_inner(folder) / _INPUT, missing={}, check=_INPUT_KEYS)
    prompts = read_json(folder / _PROMPTS, missing={}, check=_PROMPTS_KEYS)
    return EmbeddingConfig(
        pooling=pooling,
        normalize=normalize,
        max_length=lengths.get("max_seq_length"),
        prompts=prompts.get("prompts") or {},
        default_prompt_name=prompts.get("default_prompt_name"),
        similarity=prompts.get("similarity_fn_name"),
        lowercase=bool(lengths.get("do_lower_case")),
        pools_prompt=pools_prompt,
        truncate_dim=prompts.get("truncate_dim"),
    )


def write_changes(folder: Path, config: EmbeddingConfig) -> None:
    """Write changed prompts, similarity, vector size and maximum length into a copy of the folder
    that ``config`` was read from."""
    old = read_embedding_config(folder)
    settings = (config.prompts, config.default_prompt_name, config.similarity)
    if settings != (old.prompts, old.default_prompt_name, old.similarity):
        names = ("prompts", "default_prompt_name", "similarity_fn_name")
        _update(folder / _PROMPTS, dict(zip(names, settings, strict=True)))
    if config.truncate_dim != old.truncate_dim:
        _update(folder / _PROMPTS, {"truncate_dim": config.truncate_dim})
    if config.max_length != old.max_length:
        _update(_inner(folder) / _INPUT, {"max_seq_length": config.max_length})


def _update(path: Path, values: Mapping[str, Any]) -> None:
    write_json(path, {**read_json(path, missing={}), **values})


def _inner(folder: Path) -> Path:
    """The folder of the Transformer module."""
    return next((path for kind, path in _modules(folder) if kind == "Transformer"), folder)


def read_pooling(folder: Path) -> str | None:
    """The pooling saved by sentence-transformers; None unless it is one of ``POOLINGS``."""
    for kind, path in _modules(folder):
        if kind == "Pooling":
            pooling = _pooling_in(path)
            return pooling if pooling in POOLINGS else None
    return None


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the kind and the folder of each module."""
    source = folder / "modules.json"
    for module in read_json(source, list, missing=[], check=_MODULES):
        path = inside(folder, module.get("path", ""), source)
        yield module.get("type", "").rpartition(".")[2], path


def _pooling_in(folder: Path) -> str:
    """The pooling of a module's folder; several are joined by "+"."""
    config = _pooling_file(folder)
    modes = config.get("pooling_mode") or [
        name.removeprefix(_OLD_MODE).removesuffix("_token").removesuffix("_tokens")
        for name, value in config.items()
        if name.startswith(_OLD_MODE) and value
    ]
    names = [modes] if isinstance(modes, str) else list(modes)
    return "+".join(_MODES.get(name, name) for name in names) or "mean"


def _pooling_file(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json", missing={}, check=_POOLING)
