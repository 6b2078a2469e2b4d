"""``load`` and ``save``: a model on disk is an ordinary Hugging Face folder."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ownbert.checkpoint.config_file import read_config
from ownbert.checkpoint.copying import LoadReport as LoadReport
from ownbert.checkpoint.copying import copy_weights as copy_weights
from ownbert.checkpoint.copying import first_of as first_of
from ownbert.checkpoint.copying import named_tensors as named_tensors
from ownbert.checkpoint.copying import require_fit
from ownbert.checkpoint.description import CONFIG as CONFIG
from ownbert.checkpoint.description import Description, config_json, kinds_of, without_rates
from ownbert.checkpoint.description import architecture_of as architecture_of
from ownbert.checkpoint.description import describe as describe
from ownbert.checkpoint.quantized import is_quantized, quantize_model, read_quantized
from ownbert.checkpoint.quantized import require_float as require_float
from ownbert.checkpoint.sizes import require_sizes
from ownbert.checkpoint.weights import read_weights, require_finite, write_model
from ownbert.config import EncoderConfig, HeadSpec
from ownbert.errors import InputError
from ownbert.families import family_of
from ownbert.hub import model_folder
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

# In config.json, to detect that a folder's tokenizer was replaced: the number of tokens and a hash
# of them. Tokens may be appended later.
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
    """Write a model folder that Transformers loads: config.json and model.safetensors.

    Heads that Transformers does not know are kept under names of our own, beside an encoder that
    it can read. If writing fails, the old files stay as they were.

    Args:
        model: a packed encoder or decoder.
        folder: is made if it does not exist.
        tokenizer: its files are written too.
        architecture: Transformers' class; by default the one with the model's heads.
        values: further keys of config.json.
        more: further tensors by their names, those of a custom class.

    Raises:
        InputError: the folder cannot be written, or the family's format cannot express the model.
    """
    family = family_of(model.model_type, "the model")
    name = architecture or architecture_of(model)
    config = config_json(model, name, values or {})
    if tokenizer is not None:
        config[_VOCABULARY] = vocabulary_fingerprint(tokenizer)
    kinds = kinds_of(model, name)
    bare = not family.architectures[name].heads
    tensors = named_tensors(model, family.weight_map, bare=bare, kinds=kinds)
    if more:  # a custom class, which ``values`` names
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

    That of a quantized folder has ``QuantizedLinear`` in its blocks, and cannot be trained.

    Args:
        folder: with config.json and weights.
        heads: instead of those of the folder. Heads (and a pooler) that it lacks are newly
            initialised; its other heads are left out.
        pooler: whether there is one; by default as the folder or the heads need it.
        labels: names of the classes, instead of the folder's.
        dropout: rate of all layers, instead of the folder's.
        description: of the folder, from ``describe``, so that config.json is not read again.

    Raises:
        InputError: a file is missing, a tensor is missing, unexpected or of the wrong shape, or
            the config has a value that is not supported.
    """
    folder = model_folder(folder)
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
    smooth = None
    if is_quantized(description.values):
        tensors, smooth, path = read_quantized(folder)
    else:
        tensors, path = read_weights(folder)
    require_finite(tensors, path)
    require_sizes(tensors, description if heads is None else replace(description, specs=()), path)
    model = Model(
        config,
        specs,
        pooler=_has_pooler(description, heads) if pooler is None else pooler,
        labels=labels or description.labels,
        model_type=family.model_type,
    )
    other = heads is not None or pooler is not None
    report = copy_weights(model, tensors, family.weight_map, description=description, lenient=other)
    require_fit(report, path, None if other else description)
    if smooth is not None:
        quantize_model(model, smooth, path)
    return model.eval()


def _has_pooler(description: Description, heads: Sequence[str | HeadSpec] | None) -> bool | None:
    """Whether a model has a pooler; None: if its heads need one."""
    if heads is None:
        return description.pooler
    base = next(iter(description.family.architectures.values()))
    return None if heads else base.pooler


def load_tokenizer(folder: str | Path, *, config: EncoderConfig | None = None) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises:
        InputError: it has more tokens than ``config``, or is not the one that was saved.
    """
    folder = model_folder(folder)
    tokenizer = Tokenizer.load(folder)
    if config is not None and tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"{config.vocab_size}; they are not of one model"
        )
    if (folder / CONFIG).exists():
        saved = read_config(folder / CONFIG).get(_VOCABULARY)
        if isinstance(saved, str) and saved != _fingerprint(tokenizer, _counted(saved)):
            raise InputError(
                f"{folder}: the vocabulary is not the one that the model was trained with; put "
                "the original tokenizer files back"
            )
    return tokenizer


def vocabulary_fingerprint(tokenizer: Tokenizer) -> str:
    """The number of tokens, and a hash of them in the order of their ids."""
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
