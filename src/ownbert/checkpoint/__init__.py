"""``load`` and ``save``: a model on disk is an ordinary Hugging Face folder."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ownbert.checkpoint.copying import LoadReport as LoadReport
from ownbert.checkpoint.copying import copy_weights as copy_weights
from ownbert.checkpoint.copying import first_of, hint
from ownbert.checkpoint.copying import named_tensors as named_tensors
from ownbert.checkpoint.description import CONFIG as CONFIG
from ownbert.checkpoint.description import Description, describing, kinds_of, without_rates
from ownbert.checkpoint.description import architecture_of as architecture_of
from ownbert.checkpoint.description import describe as describe
from ownbert.checkpoint.weights import read_model_json, read_weights, write_model
from ownbert.config import EncoderConfig, HeadSpec
from ownbert.errors import InputError
from ownbert.families import family_of
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

# In config.json, so that a folder whose tokenizer was exchanged is noticed: how many tokens,
# and a hash of them. Tokens that were added behind them later are no exchange.
_VOCABULARY = "ownbert_vocabulary"


def save(
    model: Model,
    folder: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    architecture: str | None = None,
    values: Mapping[str, Any] | None = None,
    more: Mapping[str, Tensor] | None = None,
) -> None:
    """Write config.json and model.safetensors (and the tokenizer's files) that Transformers loads.

    All files are written before the first takes its place: what was there stays if writing fails.
    ``architecture`` is found from the heads if not given; ``values`` are further keys of
    config.json, ``more`` further tensors by their names. Heads that Transformers does not know are
    kept under names of our own, beside an encoder that it can read.
    """
    family = family_of(model.model_type, "the model")
    name = architecture or architecture_of(model)
    config = describing(model, name, values or {})
    if tokenizer is not None:
        config[_VOCABULARY] = vocabulary_fingerprint(tokenizer)
    kinds = kinds_of(model, name)
    bare = not family.architectures[name].heads
    tensors = named_tensors(model, family.weight_map, bare=bare, kinds=kinds)
    if more:  # Somebody's own class, which the values name.
        config |= {"architectures": (values or config)["architectures"]}
    tensors |= {name: tensor.cpu().contiguous() for name, tensor in (more or {}).items()}
    write_model(Path(folder), config, tensors, tokenizer=tokenizer)


def load(
    folder: str | Path,
    *,
    heads: Sequence[str | HeadSpec] | None = None,
    pooler: bool | None = None,
    labels: Sequence[str] = (),
    dropout: float | None = None,
    description: Description | None = None,
) -> Model:
    """The packed model of a Hugging Face folder, in evaluation mode.

    With ``heads`` or ``pooler`` the encoder gets these instead of those of the folder: heads (and
    a pooler) that it lacks start anew, those not asked for are left out. Raises ``InputError`` for
    a missing file, any tensor that is missing, unexpected or of the wrong shape, and a config that
    asks for what we cannot do. ``description`` is what ``describe`` returned for the folder, whose
    config.json is then not read again.
    """
    folder = Path(folder)
    description = describe(folder) if description is None else description
    family, config, specs = description.family, description.config, description.specs
    if heads is not None:
        specs = tuple(
            family.spec_of(head, description.values) if isinstance(head, str) else head
            for head in heads
        )
    if dropout is not None:
        config = replace(config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        specs = without_rates(specs)
    model = Model(
        config,
        specs,
        pooler=_has_pooler(description, heads) if pooler is None else pooler,
        labels=labels or description.labels,
        model_type=family.model_type,
    )
    tensors, path = read_weights(folder)
    other = heads is not None or pooler is not None
    report = copy_weights(model, tensors, family.weight_map, description=description, lenient=other)
    if report.problems:
        advice = "" if other else hint(report.problems, description)
        lines = [*first_of(report.problems), *filter(None, [advice])]
        raise InputError(f"{path} does not fit its {CONFIG}: {'; '.join(lines)}")
    return model.eval()


def _has_pooler(description: Description, heads: Sequence[str | HeadSpec] | None) -> bool | None:
    """Whether a model has a pooler; None: if its heads need one."""
    if heads is None:
        return description.pooler
    base = next(iter(description.family.architectures.values()))
    return None if heads else base.pooler


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
        saved = read_model_json(folder / CONFIG).get(_VOCABULARY)
        if isinstance(saved, str) and saved != _fingerprint(tokenizer, _counted(saved)):
            raise InputError(
                f"{folder}: the vocabulary is not the one that the model was trained with; put "
                "the original tokenizer files back"
            )
    return tokenizer


def vocabulary_fingerprint(tokenizer: Tokenizer) -> str:
    """How many tokens, and a hash of them in the order of their ids."""
    return _fingerprint(tokenizer, tokenizer.vocab_size)


def _fingerprint(tokenizer: Tokenizer, count: int | None) -> str:
    size = tokenizer.vocab_size if count is None else min(count, tokenizer.vocab_size)
    tokens = "\n".join(tokenizer.tokens(range(size)))
    digest = hashlib.sha256(tokens.encode()).hexdigest()[:32]
    return digest if count is None else f"{size}:{digest}"


def _counted(saved: str) -> int | None:
    """The number before the hash; folders of version 0.1 have the hash alone."""
    count, sign, _ = saved.partition(":")
    return int(count) if sign and count.isdecimal() else None
