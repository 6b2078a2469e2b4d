"""The parameters of a model by module, each counted once."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import nn

from ownbert.inspect.internals.observing import ranges
from ownbert.language.messages import Message
from ownbert.nn.encoder_stack import Encoder
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention

# Names of modules by their path within embeddings, block or head; the default is the path.
NAMES = {
    "word": "word table",
    "position": "position table",
    "token_type": "type table",
    "task_type": "task table",
    "projection": "change of width",
    "attention.qkv": "queries, keys, values",
    "attention.query_key": "queries, keys",
    "attention.value": "values",
    "attention.output": "attention output",
    "attention.bias.distance": "distance table",
    "attention.bias.key": "keys of distances",
    "attention.bias.query": "queries of distances",
    "attention_norm": "attention norm",
    "cross_attention.query": "cross queries",
    "cross_attention.key_value": "cross keys, values",
    "cross_attention.output": "cross output",
    "cross_attention_norm": "cross norm",
    "feed_forward.up": "feed-forward up",
    "feed_forward.down": "feed-forward down",
    "feed_forward_norm": "feed-forward norm",
    "narrow.dense": "narrow",
    "narrow.norm": "narrow norm",
    "narrow_attention.dense": "narrow for attention",
    "narrow_attention.norm": "its norm",
    "widen": "widen",
    "widen_norm": "widen norm",
    "feed_forwards.#.network.up": "feed-forward # up",
    "feed_forwards.#.network.down": "feed-forward # down",
    "feed_forwards.#.norm": "feed-forward # norm",
    "down": "layers squeezed",
    "up": "gates",
}
# Names of modules that a stack may have besides embeddings and blocks.
_BESIDE = {
    "buckets": "buckets of distances",
    "gate": "layer gate",
    "distances": "distances",
    "convolution": "convolution",
    "norm": "last LayerNorm",
}


@dataclass(frozen=True)
class ModuleParameters:
    """The parameters of a module, without its submodules: shape of its matrix (inputs, outputs),
    number including biases, and whether the matrix is the word embedding table, which is not
    counted again."""

    name: str
    path: str
    shape: tuple[int, ...]
    count: int
    tied: bool = False


@dataclass(frozen=True)
class ParameterGroup:
    """Embeddings, identical blocks (``times``, with the modules of one of them), the pooler or a
    head."""

    name: str
    times: int
    parts: tuple[ModuleParameters, ...]

    @property
    def each(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def count(self) -> int:
        return self.each * self.times


@dataclass(frozen=True)
class HeadColumns:
    """The columns of an attention head in the matrices of its block (for queries, keys and values:
    matrix, first column, last column), and first and last row of the output matrix."""

    head: int
    columns: dict[str, tuple[str, int, int]]
    rows: tuple[int, int]


def parameter_groups(model: Model) -> tuple[ParameterGroup, ...]:
    """All parameters of a model, in the order of the forward pass."""
    counted: set[int] = set()
    table = getattr(model.encoder.embeddings, "word", None)  # image models have none
    word = None if table is None else table.weight

    def parts(module: nn.Module, path: str) -> tuple[ModuleParameters, ...]:
        modules = []
        for name, sub in module.named_modules():
            parameters = dict(sub.named_parameters(recurse=False))
            new = {n: p for n, p in parameters.items() if id(p) not in counted}
            counted.update(id(p) for p in new.values())
            if new:
                weight, where = parameters.get("weight"), f"{path}.{name}".rstrip(".")
                shown = _label(name) or ", ".join(new).replace("_", " ")
                shape = () if weight is None else _shape(sub, weight.shape)
                count = sum(p.numel() for p in new.values())
                tied = word is not None and weight is word and "weight" not in new
                modules.append(ModuleParameters(shown, where, shape, count, tied))
        return tuple(modules)

    def stack_groups(stack: Encoder, path: str) -> Iterator[ParameterGroup]:
        yield ParameterGroup("embeddings", 1, parts(stack.embeddings, f"{path}.embeddings"))
        yield from _group_blocks(
            [parts(b, f"{path}.blocks.{i}") for i, b in enumerate(stack.blocks)]
        )
        for name, shown in _BESIDE.items():
            module = getattr(stack, name)
            if module is not None:
                yield ParameterGroup(shown, 1, parts(module, f"{path}.{name}"))

    groups = [*stack_groups(model.encoder, "encoder")]
    if model.decoder is not None:
        of_decoder = stack_groups(model.decoder, "decoder")
        groups += [
            replace(g, name=Message("decoder: {name}", g.name)) for g in of_decoder if g.parts
        ]
    if model.pooler is not None and (found := parts(model.pooler, "pooler")):
        groups.append(ParameterGroup("pooler", 1, found))
    for name, head in model.heads.items():
        groups.append(ParameterGroup(Message("{name} head", name), 1, parts(head, f"heads.{name}")))
    return tuple(groups)


def head_columns(attention: MultiHeadAttention) -> tuple[HeadColumns, ...]:
    """The columns of the fused matrices for each remaining head."""
    all_columns = []
    for index, head in enumerate(attention.kept):
        first = index * attention.head_size
        last = first + attention.head_size - 1
        kinds = iter(("queries", "keys", "values"))
        columns = {
            next(kinds): (name, first + i * attention.width, last + i * attention.width)
            for name, count in attention.fused.items()
            for i in range(count)
        }
        all_columns.append(HeadColumns(head, columns, (first, last)))
    return tuple(all_columns)


def _group_blocks(blocks: list[tuple[ModuleParameters, ...]]) -> list[ParameterGroup]:
    """Merge identical blocks into groups with the paths of the first block."""
    alike: dict[tuple, list[int]] = {}
    for number, parts in enumerate(blocks):
        alike.setdefault(tuple((p.name, p.shape, p.count) for p in parts), []).append(number)
    if len(alike) == 1 and len(blocks) > 1:
        return [ParameterGroup(Message("{count} blocks", len(blocks)), len(blocks), blocks[0])]
    return [
        ParameterGroup(
            Message("blocks {ranges}" if len(n) > 1 else "block {ranges}", ranges(n)),
            *(len(n), blocks[n[0]]),
        )
        for n in alike.values()
    ]


def _shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    # PyTorch stores the weight of a linear layer as (outputs, inputs).
    return tuple(reversed(shape)) if isinstance(module, nn.Linear) else tuple(shape)


def _label(path: str) -> str:
    numbers, pattern = iter(re.findall(r"\d+", path)), re.sub(r"\d+", "#", path)
    return re.sub("#", lambda _: next(numbers), NAMES.get(pattern, pattern))
