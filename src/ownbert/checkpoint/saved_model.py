"""Models from folders, and back."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ownbert.checkpoint.copying import copy_weights, named_tensors, require_fit
from ownbert.checkpoint.description import (
    Description,
    architecture_of,
    config_json,
    describe,
    kinds_of,
    without_rates,
)
from ownbert.checkpoint.model_files import is_quantized
from ownbert.checkpoint.quantized import quantize_model, read_quantized
from ownbert.checkpoint.saved_tokenizer import VOCABULARY, vocabulary_fingerprint
from ownbert.checkpoint.sizes import require_sizes
from ownbert.checkpoint.weights import read_weights, require_finite, write_model
from ownbert.config import HeadSpec
from ownbert.families import family_of
from ownbert.hub import model_folder
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer


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
        config[VOCABULARY] = vocabulary_fingerprint(tokenizer)
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
    anew: Collection[str] = (),
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
        anew: kinds of ``heads`` that are newly initialised even if the folder has them.

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
    given: Any = {"description": description, "lenient": other, "anew": anew}
    report = copy_weights(model, tensors, family.weight_map, **given)
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
