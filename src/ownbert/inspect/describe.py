"""``describe``: the structure of a model, in more detail than ``print``, and its parameters and
shapes, as tables for a terminal.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import nn

from ownbert import limits
from ownbert.checkpoint import load_tokenizer, new_model
from ownbert.checkpoint.description import Description
from ownbert.checkpoint.description import describe as read_description
from ownbert.checkpoint.weights import FORMS, QUANTIZED
from ownbert.checks import between
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Disentangled
from ownbert.exceptions import InputError, fields_repr
from ownbert.families import all_families
from ownbert.families.mapping.weight_map import Fuse, Heads
from ownbert.hub import model_folder
from ownbert.inspect.internals.observing import core_model, ranges, text_ids
from ownbert.inspect.parameters import (
    HeadColumns,
    ParameterGroup,
    head_columns,
    parameter_groups,
)
from ownbert.inspect.shapes import ForwardShapes, forward_shapes
from ownbert.inspect.terminal_tables import facts_table, open_table, plain_text
from ownbert.language import translated
from ownbert.language.messages import Message, join, sentences
from ownbert.nn.layers import NoNorm
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention
from ownbert.nn.undrawn import shapes_alone
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import has_tokenizer

_GATES = {
    "last": "last: the last layer times its gate, by squeeze and excitation over all layers",
    "sum": "sum: of all layers, each times its gate, by squeeze and excitation over them",
}
_TERMS = {"c2p": "queries", "p2c": "keys"}
_SHOWN_TOKENS, _SHOWN_LABELS = 24, 8


@dataclass(frozen=True)
class Overview:
    """The structure of a model; ``print`` shows the output of ``ownbert describe``.

    Args:
        groups: parameters by module.
        head_columns: attention heads of block 0.
        outputs: heads on top of the encoder.
        shared: one line per shared tensor or block.
        norms, dropouts: number of normalisation layers by class, and of dropout layers by rate
            above 0.
        weights: file names and bytes of a model on disk.
        walk: shapes of a forward pass, if requested.
    """

    model_type: str
    config: EncoderConfig
    groups: tuple[ParameterGroup, ...]
    head_columns: tuple[HeadColumns, ...]
    outputs: tuple[str, ...]
    pooler: bool
    labels: tuple[str, ...]
    shared: tuple[str, ...]
    norms: dict[str, int]
    dropouts: dict[float, int]
    decoder: EncoderConfig | None = None
    folder: str | None = None
    architecture: str | None = None
    weights: dict[str, int] | None = None
    tokenizer: str | None = None
    walk: ForwardShapes | None = None

    def __repr__(self) -> str:
        return fields_repr(self)

    @property
    def parameters(self) -> int:
        """The number of parameters, with tied ones counted once."""
        return sum(group.count for group in self.groups)

    def as_json(self) -> dict[str, Any]:
        """The overview as JSON values."""
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
        return plain_text(partial(show, self), width=100)


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
        kind = Message("{kind}, {vocab_size:,} tokens", tokenizer.kind, tokenizer.vocab_size)
    elif text is not None:
        raise InputError(
            "{folder} contains no tokenizer for the text; give a number of tokens instead", folder
        )
    # The weight file that would be loaded.
    files = [folder / name for name in (*FORMS, QUANTIZED) if (folder / name).is_file()][:1]
    return _overview(
        structure,
        walk=_shapes(structure, text, tokens, tokenizer),
        folder=str(folder),
        architecture=description.architecture,
        weights={path.name: path.stat().st_size for path in files},
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
    tied = ["encoder.embeddings.word.weight", "heads.mlm.decoder.weight"]
    several = [same for same in names.values() if len(same) > 1]
    lines = [
        "MLM decoder = word table (tied, counted once)" if same == tied else " = ".join(same)
        for same in several
    ]
    layers, blocks = model.config.num_hidden_layers, len(model.encoder.blocks)
    if len(model.encoder.schedule()) > blocks:
        runs = "{layers} layers run {blocks} blocks in turn"
        if blocks == 1:
            runs = "{layers} layers run {blocks} block"
        lines.append(Message(runs, layers, blocks))
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
            message = "tokens is {tokens}; the model takes from 1 to {longest:,}"
            raise InputError(message, tokens, longest)
        return forward_shapes(model, [0] * tokens)
    if tokenizer is None:
        raise InputError("a text needs a tokenizer; give one, or a number of tokens")
    assert text is not None
    ids = text_ids(text, tokenizer)
    return forward_shapes(model, ids, tokenizer.tokens(ids))


def show(overview: Overview, console: Console) -> None:
    """Print structure, parameters, columns of the heads and, if requested, shapes."""
    name = overview.architecture or "Model"
    folder = f"{overview.folder}: " if overview.folder else ""
    console.print(Text(f"{folder}{name} ({overview.model_type})", style="bold"))
    console.print()
    console.print(facts_table(_facts(overview)))
    console.print()
    console.print(_parameters(overview))
    if note := _attention_note(overview):
        console.print(Text(translated(note)))
    console.print()
    console.print(_heads(overview))
    console.print(Text(translated(_heads_note(overview))))
    if overview.walk is not None:
        _show_shapes(overview.walk, console)


def _facts(overview: Overview) -> Iterator[tuple[str, str]]:
    config = overview.config
    yield (
        "layers",
        Message(
            "{num_hidden_layers}, hidden size {hidden_size:,}",
            config.num_hidden_layers,
            config.hidden_size,
        ),
    )
    heads, k = config.num_attention_heads, config.head_size
    layer = "{heads} in each layer, of {size} numbers each ({heads} x {size} = {width:,})"
    if config.pruned_heads:
        layer = (
            "{heads} in each layer before pruning, of {size} numbers each ({heads} x {size} = "
            "{width:,})"
        )
    yield "attention heads", Message(layer, heads, k, heads * k)
    if config.pruned_heads:
        pruned = config.pruned_heads.items()
        gone = (Message("block {index} without {heads}", i, ranges(heads)) for i, heads in pruned)
        yield "pruned heads", join(gone, "; ")
    if config.local_attention is not None:
        layers = [i for i in range(config.num_hidden_layers) if config.window_of(i) is None]
        sees = "a token sees {far:,} on each side of it; the whole text in layers {ranges}"
        yield "local attention", Message(sees, config.local_attention // 2, ranges(layers))
    wide = "{size:,} to {inner:,} and back, {activation}"
    if config.gated_feed_forward:
        wide = "{size:,} to {inner:,} and back, {activation}, times a gate"
    sizes = config.attention_size, config.intermediate_size
    yield "feed-forward", Message(wide, *sizes, config.hidden_act)
    if (sigma := config.attention_blur) is not None:
        yield "attention blur", Message("a Gaussian of {sigma:g} over 3 neighbouring tokens", sigma)
    if config.layer_gate is not None:
        yield "layer gate", _GATES[config.layer_gate]
    words = Message(config.positions.explained, f"{config.longest:,}")
    yield "positions", Message("{kind}: {words}", config.position_embedding_type, words)
    if config.disentangled is not None and config.disentangled.terms:
        yield "distances", _distances(config.disentangled)
    if config.disentangled is not None and config.disentangled.conv_kernel_size:
        width = config.disentangled.conv_kernel_size
        yield (
            "convolution",
            Message("of {width} neighbouring embeddings, in parallel with block 0", width),
        )
    tokens = Message("{count:,} tokens", config.vocab_size)
    if config.embedding_size:
        narrow = "{count:,} tokens of {size:,} numbers"
        tokens = Message(narrow, config.vocab_size, config.embedding_size)
    yield "vocabulary", tokens
    if overview.folder is not None:
        yield "tokenizer", overview.tokenizer or "none in the folder"
    if config.is_decoder:
        cross = "a token attends to itself and those before it, and to an encoder"
        own = "a token attends to itself and those before it"
        yield "decoder", cross if config.add_cross_attention else own
    if overview.decoder is not None:
        who = "{layers} layers; a token attends to itself, to those before it and to the encoder"
        yield "decoder", Message(who, overview.decoder.num_hidden_layers)
    yield "shared", join(overview.shared, "; ") if overview.shared else "nothing"
    yield "norms", ", ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in overview.norms.items())
    rates = [Message("{count} of rate {rate}", n, p) for p, n in overview.dropouts.items()]
    yield "dropouts", join(rates) if rates else "none"
    on_top = ["pooler"] * overview.pooler
    on_top += [Message("{name} head", name) for name in overview.outputs]
    yield "on top", join(on_top) if on_top else "nothing: the output is hidden states"
    if overview.labels and {"classification", "tokens"} & {*overview.outputs}:
        more = ", ..." if len(overview.labels) > _SHOWN_LABELS else ""
        shown = ", ".join(overview.labels[:_SHOWN_LABELS])
        yield "labels", f"{len(overview.labels)}: {shown}{more}"
    if overview.weights is not None:
        files = ", ".join(f"{name}, {size(n)}" for name, n in overview.weights.items())
        yield "weights", files or "none in the folder: this is according to config.json"


def _distances(disentangled: Disentangled) -> str:
    """Terms that relative positions add to the attention scores."""
    terms = join((_TERMS[term] for term in sorted(disentangled.terms)), " and ")
    rows = "{count:,} vectors; in the scores of every layer, with {terms}"
    if disentangled.position_buckets:
        rows = (
            "{count:,} vectors, which far distances share; in the scores of every layer, with "
            "{terms}"
        )
    return Message(rows, 2 * disentangled.span, terms)


def _parameters(overview: Overview) -> Table:
    """Parameters by module: in one block, in all blocks, share of the total, and memory."""
    total = overview.parameters
    table = open_table()
    table.add_column(translated("parameters"))
    table.add_column(translated("in x out"), justify="right")
    for heading in ("per block", "total", "share", "float32"):
        table.add_column(translated(heading), justify="right", no_wrap=True)
    for group in overview.groups:
        blocks = group.parts[0].path.startswith(("encoder.blocks", "decoder.blocks"))
        each = f"{group.each:,}" if blocks else ""
        table.add_row(translated(group.name), "", each, *_figures(group.count, total), style="bold")
        if len(group.parts) > 1:
            for part in group.parts:
                shape = " x ".join(map(str, part.shape))
                shape = translated("= word table") if part.tied else shape
                each = f"{part.count:,}" if blocks else ""
                numbers = _figures(part.count * group.times, total)
                table.add_row(f"  {translated(part.name)}", shape, each, *numbers)
    table.add_row(translated("total"), "", "", *_figures(total, total), style="bold")
    return table


def _figures(count: int, total: int) -> tuple[str, str, str]:
    return f"{count:,}", f"{count / total:.1%}", size(4 * count)


def size(count: int) -> str:
    """Bytes in decimal units."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= one:
            return f"{count / one:.{1 if count < 99.95 * one else 0}f} {unit}"
    return f"{count} B"


def _attention_note(overview: Overview) -> str:
    """A note that attention has 4 D^2 + 4 D parameters, if it has."""
    config = overview.config
    d = config.hidden_size
    parts = {p.path.split(".", 3)[-1]: p.count for g in overview.groups for p in g.parts}
    count = parts.get("attention.qkv", 0) + parts.get("attention.output", 0)
    if count != 4 * d * d + 4 * d or any(part.startswith("attention.bias.") for part in parts):
        return ""
    return Message(
        "The attention of a block has 4 D² + 4 D = {count:,} parameters (D = {value:,}), whatever "
        "the number of heads.",
        *(count, d),
    )


def _heads(overview: Overview) -> Table:
    """The first heads and the last one, with their columns of the fused matrices."""
    rows = overview.head_columns
    table = open_table()
    table.add_column(translated("columns of block 0"))
    kinds = rows[0].columns
    for kind, (matrix, *_) in kinds.items():
        table.add_column(translated("{kind!t} ({matrix})", kind, matrix), justify="right")
    table.add_column(translated("rows of output"), justify="right")
    shown = rows if len(rows) <= 4 else (*rows[:2], None, rows[-1])
    for row in shown:
        if row is None:
            table.add_row("...")
            continue
        spans = [f"{first}-{last}" for _, first, last in row.columns.values()]
        table.add_row(translated("head {head}", row.head), *spans, f"{row.rows[0]}-{row.rows[1]}")
    return table


def _heads_note(overview: Overview) -> str:
    k = overview.config.head_size
    matrices = {matrix for matrix, *_ in overview.head_columns[0].columns.values()}
    if matrices != {"qkv"}:
        return Message("The heads lie side by side in the matrices, {name} columns each.", k)
    heads, d = len(overview.head_columns), overview.config.hidden_size
    family = all_families().get(overview.model_type)
    kinds = {Fuse} if family is None else {type(rule) for rule in family.weight_map.rules}
    note = Message(
        "The heads lie side by side in one matrix of {size} x {width}.", d, 3 * k * heads
    )
    if Heads in kinds:  # an axis of heads
        stored = (
            "Transformers stores q, k and v, {size} x {heads} x {width} each: a matrix for each "
            "head."
        )
        return sentences((note, Message(stored, d, heads, k)))
    stored = Message(
        "Transformers stores its thirds as query, key and value, {size} x {width} each, the heads "
        "side by side there too.",
        *(d, k * heads),
    )
    return sentences((note, stored)) if Fuse in kinds else note


def _show_shapes(shapes: ForwardShapes, console: Console) -> None:
    legend = ", ".join(
        f"{k} = {n:,} {translated(words)}" for k, (n, words) in shapes.legend.items()
    )
    console.print()
    if shapes.tokens is not None:
        pairs = [f"{token} {i}" for token, i in zip(shapes.tokens, shapes.ids, strict=True)]
        more = Message(" ... ({count} in all)", len(pairs)) if len(pairs) > _SHOWN_TOKENS else ""
        words = " | ".join(pairs[:_SHOWN_TOKENS]) + translated(more)
        console.print(Text(translated("tokens and ids"), style="bold"))
        console.print(Padding(Text(words), (0, 0, 1, 2)))
    table = open_table()
    for heading in ("step", "shape", "sizes"):
        table.add_column(translated(heading), no_wrap=True)
    table.add_column(translated("what it is"))
    for step in shapes.steps:
        numbers = " x ".join(str(n) for n in step.sizes)
        name, meaning = translated(step.name), Text(translated(step.meaning))
        table.add_row(name, step.letters.replace(" ", " x "), numbers, meaning)
    console.print(Text(f"{legend}\n"))
    console.print(table)
