"""What a model is made of: the structure that a printed model usually hides, and its parameters."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ownbert.checkpoint import load_tokenizer
from ownbert.checkpoint.description import Description
from ownbert.checkpoint.description import describe as read_description
from ownbert.checkpoint.weights import FORMS
from ownbert.config import EncoderConfig
from ownbert.errors import InputError
from ownbert.inspect.parts import Group, HeadColumns, groups_of, head_columns
from ownbert.inspect.shapes import Walk, walk
from ownbert.nn.bottleneck import NoNorm
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention
from ownbert.text.files import has_tokenizer
from ownbert.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Overview:
    """A model in words and numbers; printed, it is what ``ownbert describe`` shows.

    folder, architecture and weights (file names and bytes on disk) are of a described folder.
    outputs: its heads; shared: what layers or parts have in common, a line each. norms: how many
    of each class; dropouts: how many of each rate above 0. head_columns: what belongs to each
    attention head of block 0. ``walk``: shapes through one text, if asked for.
    """

    model_type: str
    config: EncoderConfig
    groups: tuple[Group, ...]
    head_columns: tuple[HeadColumns, ...]
    outputs: tuple[str, ...]
    pooler: bool
    labels: tuple[str, ...]
    shared: tuple[str, ...]
    norms: dict[str, int]
    dropouts: dict[float, int]
    folder: str | None = None
    architecture: str | None = None
    weights: dict[str, int] | None = None
    tokenizer: str | None = None
    walk: Walk | None = None

    @property
    def parameters(self) -> int:
        """All of them, tied ones once."""
        return sum(group.count for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        values = asdict(self)
        for row, group in zip(values["groups"], self.groups, strict=True):
            row |= {"each": group.each, "count": group.count}
        values["dropouts"] = {str(rate): count for rate, count in self.dropouts.items()}
        values["config"]["pruned_heads"] = {
            str(block): list(heads) for block, heads in self.config.pruned_heads.items()
        }
        config = self.config
        derived = {
            "parameters": self.parameters,
            "float32_bytes": 4 * self.parameters,
            "layers": config.num_hidden_layers,
            "blocks": config.num_blocks,
            "heads": [len(config.kept_heads(i)) for i in range(config.num_blocks)],
            "head_size": config.head_size,
            "longest": config.longest,
        }
        return {**derived, **values}

    def __str__(self) -> str:
        from ownbert.inspect.render import as_text

        return as_text(self)


def describe(
    model: nn.Module | str | Path,
    text: str | None = None,
    *,
    tokens: int | None = None,
    tokenizer: Tokenizer | None = None,
) -> Overview:
    """What a model, or the model of a folder, is made of.

    Of a folder only config.json is read, and the tokenizer where there is a ``text``: weights
    need not be there. With ``text``, or a number of ``tokens``, the shape of everything on the
    way through the model. ``InputError`` for a folder that is no model, a text without a
    tokenizer, and one that is longer than the model takes.
    """
    if text is not None and tokens is not None:
        raise InputError("a text and a number of tokens are both given; give one of them")
    if isinstance(model, nn.Module):
        # The models of ``ownbert.hf`` keep ours under this name.
        core = model if isinstance(model, Model) else getattr(model, "model", None)
        if not isinstance(core, Model):
            raise InputError(f"{type(model).__name__} is no model of ours; give one, or a folder")
        return _overview(core, walk=_walk(core, text, tokens, tokenizer))
    folder = Path(model)
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    said = read_description(folder)
    built = structure_of(said)
    kind = None
    if tokenizer is None and has_tokenizer(folder):
        try:
            tokenizer = load_tokenizer(folder, config=said.config)
        except InputError as error:
            if text is not None:
                raise
            kind = str(error)
    if tokenizer is not None:
        kind = f"{tokenizer.kind}, {tokenizer.vocab_size:,} tokens"
    elif text is not None:
        raise InputError(
            f"{folder} holds no tokenizer to cut the text with; give a number of tokens instead"
        )
    return _overview(
        built,
        walk=_walk(built, text, tokens, tokenizer),
        folder=str(folder),
        architecture=said.architecture,
        weights=_weights(folder),
        tokenizer=kind,
    )


def structure_of(said: Description) -> Model:
    """The model that a config.json describes, shapes without numbers (on PyTorch's meta device)."""
    with torch.device("meta"):
        model = Model(
            said.config,
            said.specs,
            pooler=said.pooler,
            labels=said.labels,
            model_type=said.family.model_type,
        )
    return model.eval()


def _overview(model: Model, **further: Any) -> Overview:
    modules = list(model.modules())
    norms = Counter(type(m).__name__ for m in modules if isinstance(m, nn.LayerNorm | NoNorm))
    dropouts = Counter(m.p for m in modules if isinstance(m, nn.Dropout) and m.p)
    attention = next(m for m in modules if isinstance(m, MultiHeadAttention))
    return Overview(
        model_type=model.model_type,
        config=model.config,
        groups=groups_of(model),
        head_columns=head_columns(attention),
        outputs=tuple(model.heads),
        pooler=model.pooler is not None,
        labels=model.labels,
        shared=_shared(model),
        norms=dict(norms),
        dropouts=dict(sorted(dropouts.items())),
        **further,
    )


def _shared(model: Model) -> tuple[str, ...]:
    """Tensors with several names, and blocks that several layers run."""
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


def _walk(
    model: Model, text: str | None, tokens: int | None, tokenizer: Tokenizer | None
) -> Walk | None:
    if model.config.image is not None and (tokens is not None or text is not None):
        raise InputError("the model reads pictures: there are no words to follow through it")
    if tokens is not None:
        return walk(model, [0] * max(0, tokens))
    if text is None:
        return None
    if tokenizer is None:
        raise InputError("a text needs a tokenizer to cut it; give one, or a number of tokens")
    ids = _ids(text, tokenizer)
    return walk(model, ids, tokenizer.tokens(ids))


def _ids(text: str, tokenizer: Tokenizer) -> Sequence[int]:
    (inner,) = tokenizer.encode_batch([text])
    return [tokenizer.cls_id, *inner, tokenizer.sep_id]


def _weights(folder: Path) -> dict[str, int]:
    """The file that would be loaded, and its size; {} where there is none."""
    path = next((folder / name for name in FORMS if (folder / name).is_file()), None)
    return {} if path is None else {path.name: path.stat().st_size}
