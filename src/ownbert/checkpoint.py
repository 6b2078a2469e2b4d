"""``load`` and ``save``: a model on disk is an ordinary Hugging Face folder."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_bytes

from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.families import FAMILIES, family_of
from ownbert.families.rules import Family, Head
from ownbert.files import atomic_path, make_folder
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

WEIGHTS = "model.safetensors"
CONFIG = "config.json"

# How Transformers keeps weights elsewhere: in parts, or pickled.
_OTHER_WEIGHTS = (f"{WEIGHTS}.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

# Said in config.json so that a folder whose tokenizer was exchanged is noticed.
_VOCABULARY = "ownbert_vocabulary"


def save(model: Model, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> None:
    """Write config.json and model.safetensors (and the tokenizer's files) that Transformers loads.

    All files are written before the first takes its place: what was there stays if writing fails.
    """
    family, layers = FAMILIES["bert"], model.config.num_hidden_layers
    name = _architecture(family, model)
    weights = {n: p.detach().cpu() for n, p in model.state_dict().items()}
    theirs = family.to_theirs(weights, layers, bare=not model.heads)
    config = _config_json(model, family.model_type, name)
    if tokenizer is not None:
        config[_VOCABULARY] = vocabulary_fingerprint(tokenizer)
    folder = make_folder(folder)
    with atomic_path(folder / CONFIG) as config_path, atomic_path(folder / WEIGHTS) as path:
        path.write_bytes(to_bytes(theirs, metadata={"format": "pt"}))
        config_path.write_bytes(json.dumps(config, ensure_ascii=False, indent=2).encode())
        if tokenizer is not None:
            tokenizer.save(folder)


def load(
    folder: str | Path,
    *,
    heads: Sequence[str] | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
) -> Model:
    """The model of a Hugging Face folder, in evaluation mode.

    With ``heads`` the encoder gets these instead of those of the folder: heads (and a pooler)
    that it lacks start anew, those not asked for are left out. Raises ``InputError`` for a
    missing file, any tensor that is missing, unexpected or of the wrong shape, and a config that
    asks for what we cannot do.
    """
    folder = Path(folder)
    config, family, head, names = read_config(folder)
    if dropout is not None:
        config = _with_dropout(config, dropout)
    chosen = head.heads if heads is None else tuple(heads)
    model = Model(
        config,
        chosen,
        pooler=head.pooler if heads is None else None,
        labels=labels or names,
    )
    theirs = _read_weights(folder / WEIGHTS)
    ours, problems = family.to_ours(theirs, config.num_hidden_layers)
    problems += _account(model, ours, family, config, known=None if heads is None else head)
    if problems:
        shown = "; ".join(problems[:4]) + (f"; and {len(problems) - 4} more" * (len(problems) > 4))
        raise InputError(f"{folder / WEIGHTS} does not fit its {CONFIG}: {shown}")
    return model.eval()


def load_tokenizer(folder: str | Path, *, config: EncoderConfig | None = None) -> Tokenizer:
    """The tokenizer of a model folder, checked against ``config`` and against what was saved."""
    folder = Path(folder)
    tokenizer = Tokenizer.load(folder)
    if config is not None and tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"{config.vocab_size}; they are not of one model"
        )
    if (folder / CONFIG).exists():
        saved = _read_json(folder / CONFIG).get(_VOCABULARY)
        if saved not in (None, vocabulary_fingerprint(tokenizer)):
            raise InputError(
                f"{folder}: the vocabulary is not the one that the model was trained with; put "
                "the original tokenizer files back"
            )
    return tokenizer


def vocabulary_fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of the tokens in the order of their ids."""
    tokens = "\n".join(tokenizer.tokens(range(tokenizer.vocab_size)))
    return hashlib.sha256(tokens.encode()).hexdigest()[:32]


def read_config(folder: str | Path) -> tuple[EncoderConfig, Family, Head, tuple[str, ...]]:
    """Structure, family, heads and labels of a model folder."""
    path = Path(folder) / CONFIG
    values = _read_json(path)
    family = family_of(values.get("model_type", ""), str(path))
    for key, allowed in family.required.items():
        if key in values and values[key] not in allowed:
            raise InputError(
                f"{path}: {key} is {values[key]!r}, which is not supported; only {allowed[0]!r}"
            )
    known = {f.name for f in fields(EncoderConfig)}
    if "vocab_size" not in values:
        raise InputError(f"{path}: vocab_size is missing")
    try:
        config = EncoderConfig(**{k: v for k, v in values.items() if k in known})
    except (InputError, TypeError) as error:
        raise InputError(f"{path}: {error}") from None
    architecture = (values.get("architectures") or ["BertModel"])[0]
    if architecture not in family.architectures:
        raise InputError(
            f"{path}: architecture {architecture!r} is not supported; one of "
            + ", ".join(family.architectures)
        )
    return config, family, family.architectures[architecture], _labels(values, path)


def _labels(values: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """The labels in the order of their numbers; Transformers' two where none are named."""
    id2label = values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    try:
        return tuple(str(id2label[str(i)]) for i in range(len(id2label)))
    except (KeyError, TypeError):
        raise InputError(f"{path}: id2label must name the labels 0, 1, 2, ...") from None


def _with_dropout(config: EncoderConfig, dropout: float) -> EncoderConfig:
    values: dict[str, Any] = asdict(config) | {
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    return EncoderConfig(**values)


def _account(
    model: Model, ours: dict, family: Family, config: EncoderConfig, known: Head | None
) -> list[str]:
    """Copy tensors into the model; every one that is left over or lacking is a problem.

    known: the heads of the checkpoint, when the model was asked for others.
    """
    layers, problems = config.num_hidden_layers, []
    targets = dict(model.named_parameters())
    for name, tensor in ours.items():
        if name not in targets:
            part = name.split(".")[0]
            if known is None or part not in ("heads", "pooler"):
                problems.append(f"unexpected tensor {family.their_name(name, layers)}")
        elif targets[name].shape != tensor.shape:
            want, got = tuple(targets[name].shape), tuple(tensor.shape)
            their = family.their_name(name, layers)
            problems.append(f"tensor {their} has shape {got}, expected {want}")
        elif not tensor.is_floating_point():
            their = family.their_name(name, layers)
            problems.append(f"tensor {their} holds {tensor.dtype}, not floating point numbers")
        else:
            targets[name].data.copy_(tensor)
    for name in targets.keys() - ours.keys():
        if known is None or not _may_start_anew(name, known):
            problems.append(f"missing tensor {family.their_name(name, layers)}")
    return sorted(problems)


def _may_start_anew(name: str, known: Head) -> bool:
    part, *rest = name.split(".")
    return (part == "pooler" and not known.pooler) or (
        part == "heads" and rest[0] not in known.heads
    )


def _architecture(family: Family, model: Model) -> str:
    want = set(model.heads)
    for name, head in family.architectures.items():
        if set(head.heads) == want:
            return name
    raise ValueError(f"no architecture of Transformers has the heads {', '.join(sorted(want))}")


def _config_json(model: Model, model_type: str, architecture: str) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": [architecture], "model_type": model_type}
    config |= asdict(model.config)
    config["position_embedding_type"] = "absolute"
    if model.labels:
        config["id2label"] = {str(i): label for i, label in enumerate(model.labels)}
        config["label2id"] = {label: i for i, label in enumerate(model.labels)}
        config["problem_type"] = "single_label_classification"
    return config


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no such file: {path}; is {path.parent} a model folder?") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold a JSON object")
    return values


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    if not path.exists():
        others = [name for name in _OTHER_WEIGHTS if (path.parent / name).exists()]
        advice = "train a model there first"
        if others:
            advice = f"{others[0]} is not read, save the model as one safetensors file"
        raise InputError(f"no such file: {path}; {advice}")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}; it is damaged or cut off") from None
