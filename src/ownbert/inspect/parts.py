"""The parameters of a model by part, each counted once. D hidden, H heads, K head size."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention

# Modules by their path in the embeddings, a block or a head; others go by that path.
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
}


@dataclass(frozen=True)
class Part:
    """The parameters of one module.

    shape: of its matrix, inputs before outputs. tied: whether that is the word table, and not
    counted here. count: biases included.
    """

    name: str
    path: str
    shape: tuple[int, ...]
    count: int
    tied: bool = False


@dataclass(frozen=True)
class Group:
    """Embeddings, blocks that are alike, the pooler or a head. ``times``: how many are alike."""

    name: str
    times: int
    parts: tuple[Part, ...]

    @property
    def each(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def count(self) -> int:
        return self.each * self.times


@dataclass(frozen=True)
class HeadColumns:
    """What belongs to one head of a block: its number, and its columns of each matrix.

    columns: queries, keys and values to (matrix, first column, last column). Rows ``first`` to
    ``last`` of the output matrix are its own too.
    """

    head: int
    columns: dict[str, tuple[str, int, int]]
    rows: tuple[int, int]


def groups_of(model: Model) -> tuple[Group, ...]:
    """All parameters of a model, in the order in which data meets them."""
    seen: set[int] = set()
    table = getattr(model.encoder.embeddings, "word", None)  # pictures have none
    word = None if table is None else table.weight

    def parts(module: nn.Module, path: str) -> tuple[Part, ...]:
        found = []
        for name, sub in module.named_modules():
            own = dict(sub.named_parameters(recurse=False))
            new = {n: p for n, p in own.items() if id(p) not in seen}
            seen.update(id(p) for p in new.values())
            if new:
                shape = _shape(sub, own["weight"].shape) if "weight" in own else ()
                count = sum(p.numel() for p in new.values())
                tied = word is not None and own.get("weight") is word and "weight" not in new
                label = _label(name) or ", ".join(new).replace("_", " ")
                found.append(Part(label, f"{path}.{name}".rstrip("."), shape, count, tied))
        return tuple(found)

    groups = [Group("embeddings", 1, parts(model.encoder.embeddings, "encoder.embeddings"))]
    blocks = [parts(b, f"encoder.blocks.{i}") for i, b in enumerate(model.encoder.blocks)]
    groups += _folded(blocks)
    if model.encoder.norm is not None:
        groups.append(Group("last LayerNorm", 1, parts(model.encoder.norm, "encoder.norm")))
    if model.pooler is not None and (found := parts(model.pooler, "pooler")):
        groups.append(Group("pooler", 1, found))
    for name, head in model.heads.items():
        groups.append(Group(f"{name} head", 1, parts(head, f"heads.{name}")))
    return tuple(groups)


def head_columns(attention: MultiHeadAttention) -> tuple[HeadColumns, ...]:
    """Which columns of the fused matrices belong to each head that is left."""
    found = []
    for place, head in enumerate(attention.kept):
        first = place * attention.head_size
        last = first + attention.head_size - 1
        kinds = iter(("queries", "keys", "values"))
        columns = {
            next(kinds): (name, first + i * attention.width, last + i * attention.width)
            for name, count in attention.fused.items()
            for i in range(count)
        }
        found.append(HeadColumns(head, columns, (first, last)))
    return tuple(found)


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5 as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _folded(blocks: list[tuple[Part, ...]]) -> list[Group]:
    """Blocks of the same parts as one group, under the first one's paths."""
    alike: dict[tuple, list[int]] = {}
    for number, parts in enumerate(blocks):
        alike.setdefault(tuple((p.name, p.shape, p.count) for p in parts), []).append(number)
    if len(alike) == 1 and len(blocks) > 1:
        return [Group(f"{len(blocks)} blocks", len(blocks), blocks[0])]
    return [
        Group(f"block{'s' * (len(n) > 1)} {ranges(n)}", len(n), blocks[n[0]])
        for n in alike.values()
    ]


def _shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    # PyTorch keeps a linear layer as outputs x inputs.
    return tuple(reversed(shape)) if isinstance(module, nn.Linear) else tuple(shape)


def _label(path: str) -> str:
    numbers = iter(re.findall(r"\d+", path))
    known = NAMES.get(re.sub(r"\d+", "#", path), re.sub(r"\d+", "#", path))
    return re.sub("#", lambda _: next(numbers), known)
