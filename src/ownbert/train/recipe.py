"""Settings: dataclasses that a recipe file, dotted overrides and options fill in, in this order."""

import difflib
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from ownbert.config import SIZES
from ownbert.errors import InputError

T = TypeVar("T")

SCHEDULES = ("linear", "wsd", "constant")
_RUN_COUNTS = (
    "max_steps",
    "max_minutes",
    "accumulate",
    "log_every",
    "eval_every",
    "save_every",
)


def _choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise InputError(f"{name} is {value!r}; one of {', '.join(allowed)}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not value > 0:
        raise InputError(f"{name} is {value}; it must be more than 0")


@dataclass(frozen=True, kw_only=True)
class Optim:
    """learning_rate: by the size of the model if not set. warmup, decay: shares of the run.
    schedule: "linear" falls from the warm-up to the end, "wsd" stays and falls in ``decay``."""

    learning_rate: float | None = None
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-6
    weight_decay: float = 0.01
    clip: float = 1.0
    schedule: str = "wsd"
    warmup: float = 0.05
    decay: float = 0.2

    def __post_init__(self) -> None:
        _choice("optim.schedule", self.schedule, SCHEDULES)
        _positive("optim.learning_rate", self.learning_rate)
        _positive("optim.clip", self.clip)
        for name in ("warmup", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"optim.{name} is {getattr(self, name)}; it must be in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class Run:
    """How long, how, and how often to log, evaluate and save; steps, or None for by the clock
    (a save every five minutes, ten evaluations a run)."""

    max_steps: int | None = None
    max_minutes: float | None = None
    accumulate: int = 1
    precision: str = "auto"
    device: str = "auto"
    log_every: int = 20
    eval_every: int | None = None
    save_every: int | None = None

    def __post_init__(self) -> None:
        _choice("run.precision", self.precision, ("auto", "float32", "bfloat16"))
        _choice("run.device", self.device, ("auto", "cpu", "cuda"))
        for name in _RUN_COUNTS:
            _positive(f"run.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class PretrainData:
    tokens: str = ""
    max_length: int = 128
    batch_tokens: int = 2048
    held_out: float = 0.02

    def __post_init__(self) -> None:
        _positive("data.batch_tokens", self.batch_tokens)
        if not 0 <= self.held_out < 1:
            raise InputError(f"data.held_out is {self.held_out}; it must be in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class PretrainModel:
    """size: one of config.SIZES. init_embeddings: "cooccurrence" or "random"."""

    size: str = "tiny"
    dropout: float = 0.0
    init_embeddings: str = "cooccurrence"

    def __post_init__(self) -> None:
        _choice("model.size", self.size, tuple(SIZES))
        _choice("model.init_embeddings", self.init_embeddings, ("cooccurrence", "random"))


@dataclass(frozen=True, kw_only=True)
class PretrainTask:
    objectives: tuple[str, ...] = ("mlm", "nsp")
    mask_rate: float = 0.3

    def __post_init__(self) -> None:
        for name in self.objectives:
            _choice("task.objectives", name, ("mlm", "nsp"))
        if "mlm" not in self.objectives:
            raise InputError("task.objectives must have mlm; nsp can stand beside it")


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe:
    """Everything that ``ownbert pretrain`` can be told."""

    seed: int = 0
    data: PretrainData = field(default_factory=PretrainData)
    model: PretrainModel = field(default_factory=PretrainModel)
    task: PretrainTask = field(default_factory=PretrainTask)
    optim: Optim = field(default_factory=Optim)
    run: Run = field(default_factory=Run)


@dataclass(frozen=True, kw_only=True)
class FinetuneData:
    """labels_per_class: how many training rows of each label to use; all if not set."""

    train: str = ""
    dev: str = ""
    text_column: str | None = None
    label_column: str | None = None
    labels_per_class: int | None = None
    max_length: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("labels_per_class", "max_length", "batch_size"):
            _positive(f"data.{name}", getattr(self, name))


@dataclass(frozen=True, kw_only=True)
class FinetuneModel:
    """folder: what to start from. from_scratch: take its size and vocabulary, not its weights."""

    folder: str = ""
    from_scratch: bool = False
    dropout: float = 0.1


@dataclass(frozen=True, kw_only=True)
class FinetuneRun(Run):
    """epochs, and how many without a better dev macro-F1 end the run early."""

    epochs: int | None = None
    patience: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive("run.epochs", self.epochs)
        _positive("run.patience", self.patience)


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe:
    """Everything that ``ownbert finetune classify`` can be told."""

    seed: int = 0
    data: FinetuneData = field(default_factory=FinetuneData)
    model: FinetuneModel = field(default_factory=FinetuneModel)
    optim: Optim = field(
        default_factory=lambda: Optim(betas=(0.9, 0.999), schedule="linear", warmup=0.1)
    )
    run: FinetuneRun = field(default_factory=FinetuneRun)


def resolve(
    kind: type[T],
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> T:
    """A recipe out of a YAML file, ``section.name=value`` overrides, and options.

    options: by the last part of their name (``learning_rate``) or dotted; None is "not given".
    Raises ``InputError`` for a name that does not exist and for a value of the wrong type.
    """
    values: dict[str, Any] = {}
    if config is not None:
        values = _read(Path(config))
    for override in overrides:
        name, sign, text = override.partition("=")
        if not sign:
            raise InputError(f"{override!r} is not an override; write section.name=value")
        _put(values, _dotted(kind, name.strip()), yaml.safe_load(text))
    for name, value in (options or {}).items():
        if value is not None:
            _put(values, _dotted(kind, name), value)
    return _apply(kind(), values)


def dump(recipe: Any) -> str:
    """YAML that ``resolve`` reads back to an equal recipe."""
    return yaml.safe_dump(_plain(asdict(recipe)), sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold sections such as optim: and run:")
    return values


def _names(kind: Any, prefix: str = "") -> dict[str, str]:
    """Short and dotted names of all settings -> dotted name."""
    names = {}
    hints = get_type_hints(kind)
    for f in fields(kind):
        if is_dataclass(hints[f.name]):
            names |= _names(hints[f.name], f"{prefix}{f.name}.")
        else:
            names[prefix + f.name] = prefix + f.name
            names.setdefault(f.name, prefix + f.name)
    return names


def _dotted(kind: Any, name: str) -> str:
    names = _names(kind)
    if name not in names:
        dotted = sorted(set(names.values()))
        near = difflib.get_close_matches(name, dotted, n=3, cutoff=0.5) or dotted
        raise InputError(f"there is no setting {name!r}; did you mean {', '.join(near)}?")
    return names[name]


def _put(values: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    for section in sections:
        values = values.setdefault(section, {})
    values[last] = value


def _apply(settings: Any, values: Any, prefix: str = "") -> Any:
    """``settings`` with ``values`` in place of the defaults, section by section."""
    if not isinstance(values, Mapping):
        raise InputError(f"{prefix.rstrip('.')} must be a section, not {values!r}")
    hints = get_type_hints(type(settings))
    changes = {}
    for name, value in values.items():
        if name not in hints:
            there = f"{prefix.rstrip('.')} has" if prefix else "a recipe has"
            raise InputError(f"there is no setting {prefix}{name}; {there} {', '.join(hints)}")
        current = getattr(settings, name)
        if is_dataclass(current):
            changes[name] = _apply(current, value or {}, f"{prefix}{name}.")
        else:
            changes[name] = _checked(value, hints[name], prefix + name)
    return replace(settings, **changes)


def _checked(value: Any, hint: Any, name: str) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        origin = get_origin(kind)
        if kind is type(None) and value is None:
            return None
        if kind is bool and isinstance(value, bool):
            return value
        if kind is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if kind is float and isinstance(value, int | float | str) and not isinstance(value, bool):
            try:
                return float(value)  # YAML reads 1e-4 as text
            except ValueError:
                continue
        if kind is str and isinstance(value, str | Path):
            return str(value)
        if origin is tuple and isinstance(value, list | tuple):
            return tuple(_checked(v, get_args(kind)[0], name) for v in value)
        if origin is tuple and isinstance(value, str):
            return tuple(_checked(v.strip(), get_args(kind)[0], name) for v in value.split(","))
    wanted = " or ".join("none" if k is type(None) else getattr(k, "__name__", str(k)) for k in kinds)
    raise InputError(f"{name} must be {wanted}, not {value!r}")
