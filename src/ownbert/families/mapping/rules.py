"""Rules that map the tensors of a Hugging Face checkpoint to OwnBERT's and back.

Each mapping is written once and works in both directions: ``ours`` is a name in OwnBERT, ``theirs``
a name in the checkpoint. A name may contain ``{i}``, the index of a block (``{g}`` and ``{j}``: its
group and its index in the group; ``{f}``: each feed-forward network of a block except the last;
``{last}``: the last one). A name without ``.weight`` or ``.bias`` stands for both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

from ownbert.config.encoder import EncoderConfig

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]


@dataclass(frozen=True)
class Rename:
    """A tensor with another name.

    Args:
        shared: whether several kinds of heads have the tensor under this name in checkpoints, and
            all are initialised with the pretrained one.
    """

    ours: str
    theirs: str
    shared: bool = False
    when: Callable[[EncoderConfig], bool] | None = None

    def to_theirs(self, tensor: "Tensor", config: EncoderConfig) -> "Sequence[Tensor]":
        return (tensor,)


@dataclass(frozen=True)
class Fuse:
    """Several tensors of the checkpoint, concatenated along the first dimension."""

    ours: str
    theirs: tuple[str, ...]
    when: Callable[[EncoderConfig], bool] | None = None

    def to_theirs(self, tensor: "Tensor", config: EncoderConfig) -> "Sequence[Tensor]":
        return tensor.chunk(len(self.theirs))


@dataclass(frozen=True)
class Heads:
    """Several tensors (D, H, K) of the checkpoint as one matrix (tensors x HK, D).

    The matrix is that of a ``Linear``, (out, in); the checkpoint has a matrix (D, K) for each head.
    """

    ours: str
    theirs: tuple[str, ...]

    def to_ours(self, parts: "list[Tensor]") -> "Tensor":
        """(D, H, K) each -> (parts x HK, D)"""
        import torch

        return torch.cat([part.flatten(1).T for part in parts])

    def to_theirs(self, tensor: "Tensor", config: EncoderConfig) -> "Sequence[Tensor]":
        """(parts x HK, D) -> (D, H, K) each"""
        sizes = (config.num_attention_heads, -1)
        return [part.T.unflatten(1, sizes) for part in tensor.chunk(len(self.theirs))]


@dataclass(frozen=True)
class Reshape:
    """A tensor with another name and shape, but the same order of values.

    Args:
        ours: name in OwnBERT, with ``.weight`` or ``.bias``.
        theirs: name in the checkpoint, likewise.
    """

    ours: str
    theirs: str
    shape: Callable[[EncoderConfig], tuple[int, ...]]
    their_shape: Callable[[EncoderConfig], tuple[int, ...]]

    def to_ours(self, tensor: "Tensor", config: EncoderConfig) -> "Tensor":
        """Reshape a tensor; one with an unexpected shape is unchanged, and copying it will fail."""
        fits = tuple(tensor.shape) == self.their_shape(config)
        return tensor.reshape(self.shape(config)) if fits else tensor

    def to_theirs(self, tensor: "Tensor", config: EncoderConfig) -> "Sequence[Tensor]":
        return (tensor.reshape(self.their_shape(config)),)


@dataclass(frozen=True)
class Tie:
    """A second name of a tensor of the checkpoint, whose first name is ``to``.

    It is not written. If a checkpoint has both, they must be equal; one of them is enough.

    Args:
        always: whether Transformers' state dict has both names regardless of the heads.
    """

    theirs: str
    to: str
    always: bool = False


@dataclass(frozen=True)
class Drop:
    """A tensor of the checkpoint that OwnBERT does not need."""

    theirs: str
    reason: str
    when: Callable[[EncoderConfig], bool] | None = None


@dataclass(frozen=True)
class Make:
    """A tensor of the checkpoint that OwnBERT does not have.

    It is not read. It is written as returned by ``make``, because Transformers does not use it or
    it can be computed.

    Args:
        head: kind of head that it belongs to; None: the encoder.
    """

    theirs: str
    when: Callable[[EncoderConfig], bool]
    make: Callable[[EncoderConfig], "Tensor"]
    head: str | None = None


def constant(
    value: float, shape: Callable[[EncoderConfig], tuple[int, ...]]
) -> Callable[[EncoderConfig], "Tensor"]:
    """A function for ``Make``: a tensor whose elements are all ``value``."""

    def make(config: EncoderConfig) -> "Tensor":
        import torch

        return torch.full(shape(config), value)

    return make


# Rules for tensors that OwnBERT has.
Renamed = Rename | Fuse | Heads | Reshape
Rule = Renamed | Tie | Drop | Make

_LEAVES = ("weight", "bias", "position_ids", "token_type_ids", "_weight")


def their_names(rule: Rule) -> tuple[str, ...]:
    return rule.theirs if isinstance(rule, Fuse | Heads) else (rule.theirs,)


def head_of(rule: Rule) -> str | None:
    """The kind of head that a rule's tensor belongs to; None for the encoder and the pooler."""
    if isinstance(rule, Make):
        return rule.head
    if isinstance(rule, Rename | Fuse) and rule.ours.startswith("heads."):
        return rule.ours.split(".")[1]
    return None


def part_of(rule: Rule) -> str | None:
    """Same as ``head_of``, but "pooler" for the pooler's tensors."""
    if isinstance(rule, Rename | Fuse) and rule.ours.startswith("pooler."):
        return "pooler"
    return head_of(rule)


def holds(rule: Rule, config: EncoderConfig) -> bool:
    """Whether a rule applies to a config."""
    when = rule.when if isinstance(rule, Rename | Fuse | Drop | Make) else None
    return when is None or when(config)


@lru_cache(maxsize=16)  # loading a folder needs them several times
def written_out(rules: tuple[Rule, ...], config: EncoderConfig) -> tuple[Rule, ...]:
    """Expand rules for each block of a network, and for weights and biases separately."""
    return tuple(_each(rules, config))


def _each(rules: tuple[Rule, ...], config: EncoderConfig) -> Iterator[Rule]:
    blocks = range(config.num_blocks)
    last = 0 if config.mobile is None else config.mobile.num_feedforward_networks - 1
    for rule in rules:
        if not holds(rule, config):
            continue
        names = their_names(rule)
        places = [
            values if any(sign in name for name in names for sign in signs) else (0,)
            for signs, values in ((("{i}", "{g}", "{j}"), blocks), (("{f}",), range(last)))
        ]
        full = isinstance(rule, Reshape | Heads)
        full = full or all(name.rsplit(".", 1)[-1] in _LEAVES for name in names)
        for block, network in product(*places):
            group, index = divmod(block, config.inner_group_num)
            numbers = {"i": block, "g": group, "j": index, "f": network, "last": last}
            numbered = [("{" + sign + "}", str(number)) for sign, number in numbers.items()]
            for leaf in ("",) if full else (".weight", ".bias"):
                yield _with_numbers(rule, numbered, leaf)


def _with_numbers(rule: Rule, numbers: Sequence[tuple[str, str]], leaf: str) -> Rule:
    def name(text: str) -> str:
        if "{" in text:
            for sign, number in numbers:
                text = text.replace(sign, number)
        return text + leaf

    theirs = tuple(map(name, their_names(rule)))
    changes = {"theirs": theirs if isinstance(rule, Fuse | Heads) else theirs[0]}
    if isinstance(rule, Tie):
        changes["to"] = name(rule.to)
    elif not isinstance(rule, Drop | Make):
        changes["ours"] = name(rule.ours)
    return replace(rule, **changes)
