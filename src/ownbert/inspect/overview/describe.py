"""``describe``: the structure of a model, in more detail than ``print``, and its parameters."""

from collections import Counter
from pathlib import Path
from typing import Any

from torch import nn

from ownbert import limits
from ownbert.checkpoint import load_tokenizer, new_model
from ownbert.checkpoint.description import Description
from ownbert.checkpoint.description import describe as read_description
from ownbert.checkpoint.weights import FORMS, QUANTIZED
from ownbert.checks import between
from ownbert.exceptions import InputError
from ownbert.hub import model_folder
from ownbert.inspect.observing import core_model, text_ids
from ownbert.inspect.overview.overview import Overview
from ownbert.inspect.overview.parameters import head_columns, parameter_groups
from ownbert.inspect.overview.shapes import ForwardShapes, forward_shapes
from ownbert.nn.layers import NoNorm
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention
from ownbert.nn.undrawn import shapes_alone
from ownbert.text.folder.tokenizer_folder import has_tokenizer
from ownbert.text.tokenizer import Tokenizer


def describe(
    model: nn.Module | str | Path,
    text: str | None = None,
    *,
    tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Overview:
    """Describe a model, or the model of a folder.

    Args:
        model: a model, or a folder; only its config.json and tokenizer are read.
        text: show the shapes of a forward pass of this text.
        tokens: show the shapes for this number of tokens.
        tokenizer: tokenizer of the text; by default the folder's.

    Raises:
        InputError: the folder contains no model, there is no tokenizer for the text, or the text
            is too long.
    """
    if tokens is not None:
        between(0, limits.LENGTH, "[]")("tokens", tokens)
    if text is not None and tokens is not None:
        raise InputError("a text and a number of tokens are both given; give one of them")
    if isinstance(model, nn.Module):
        core = core_model(model)
        return _overview(core, walk=_shapes(core, text, tokens, tokenizer))
    folder = model_folder(model)
    description = read_description(folder, with_decoder=True)
    structure = structure_of(description)
    kind = None
    if tokenizer is None and has_tokenizer(folder):
        try:
            tokenizer = load_tokenizer(description)
        except InputError as error:
            if text is not None:
                raise
            kind = str(error)
    if tokenizer is not None:
        kind = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
    elif text is not None:
        raise InputError(
            f"{folder} contains no tokenizer for the text; give a number of tokens instead"
        )
    return _overview(
        structure,
        walk=_shapes(structure, text, tokens, tokenizer),
        folder=str(folder),
        architecture=description.architecture,
        weights=_weights(folder),
        tokenizer=kind,
    )


def structure_of(description: Description) -> Model:
    """The model of a config.json on PyTorch's meta device: shapes without values."""
    with shapes_alone():
        model = new_model(description, pooler=description.pooler)
    return model.eval()


def _overview(model: Model, **further: Any) -> Overview:
    modules = list(model.modules())
    kinds = nn.LayerNorm | nn.RMSNorm | NoNorm
    norms = Counter(type(m).__name__ for m in modules if isinstance(m, kinds))
    dropouts = Counter(m.p for m in modules if isinstance(m, nn.Dropout) and m.p)
    attention = next(m for m in modules if isinstance(m, MultiHeadAttention))
    return Overview(
        model_type=model.model_type,
        config=model.config,
        groups=parameter_groups(model),
        head_columns=head_columns(attention),
        outputs=tuple(model.heads),
        pooler=model.pooler is not None,
        labels=model.labels,
        shared=_shared(model),
        norms=dict(norms),
        dropouts=dict(sorted(dropouts.items())),
        decoder=None if model.decoder is None else model.decoder.config,
        **further,
    )


def _shared(model: Model) -> tuple[str, ...]:
    """Tensors with several names, and blocks used by several layers."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    known: dict[tuple[str, ...], str] = {
        ("encoder.embeddings.word.weight", "heads.mlm.decoder.weight"): (
            "MLM decoder = word table (tied, counted once)"
        )
    }
    lines = [
        known.get(tuple(several), " = ".join(several))
        for several in names.values()
        if len(several) > 1
    ]
    layers, blocks = model.config.num_hidden_layers, len(model.encoder.blocks)
    if len(model.encoder.schedule()) > blocks:
        runs = f"{blocks} block" if blocks == 1 else f"{blocks} blocks in turn"
        lines.append(f"{layers} layers run {runs}")
    return tuple(lines)


def _shapes(
    model: Model, text: str | None, tokens: int | None, tokenizer: Tokenizer | None
) -> ForwardShapes | None:
    if text is None and tokens is None:
        return None
    if model.config.image is not None:
        raise InputError("the model reads images, not text")
    if model.decoder is not None:
        raise InputError("the model has a decoder: shapes are only shown for models without one")
    if tokens is not None:
        longest = model.config.max_length or limits.LENGTH
        if not 1 <= tokens <= longest:
            raise InputError(f"tokens is {tokens}; the model takes from 1 to {longest:,}")
        return forward_shapes(model, [0] * tokens)
    if tokenizer is None:
        raise InputError("a text needs a tokenizer; give one, or a number of tokens")
    assert text is not None
    ids = text_ids(text, tokenizer)
    return forward_shapes(model, ids, tokenizer.tokens(ids))


def _weights(folder: Path) -> dict[str, int]:
    """The weight file that would be loaded, with its size; empty if there is none."""
    forms = (*FORMS, QUANTIZED)
    path = next((folder / name for name in forms if (folder / name).is_file()), None)
    return {} if path is None else {path.name: path.stat().st_size}
