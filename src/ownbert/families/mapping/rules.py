"""Rules that turn the tensors of a Hugging Face checkpoint into ours and back.

Each mapping is written once and works in both directions. A name may contain ``{i}``, the number
of a block (``{g}`` and ``{j}``: its group and its index in the group; ``{f}``: each feed-forward
network of a block but the last, ``{last}``: the last). A name without ``.weight`` or ``.bias``
means both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from ownbert.config.encoder import EncoderConfig

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]


@dataclass(frozen=True)
class Rename:
    """One tensor, another name.

    Args:
        shared: several heads of theirs have the tensor under this name and start from the one that
            pretraining has made: each of ours takes it.
        when: of which configs; None: of all.
    """

    ours: str
    theirs: str
    shared: bool = False
    when: Callable[[EncoderConfig], bool] | None = None


@dataclass(frozen=True)
class Fuse:
    """Several of theirs, concatenated along the first dimension, are one of ours.

    Args:
        when: of which configs; None: of all.
    """

    ours: str
    theirs: tuple[str, ...]
    when: Callable[[EncoderConfig], bool] | None = None


@dataclass(frozen=True)
class Heads:
    """Several of theirs of shape (D, H, K) are one matrix of ours of their number times HK rows.

    Ours are those of ``Linear``, (out, in); theirs have a matrix (D, K) for each head.

    Args:
        ours, theirs: the names, ours with ``.weight``.
    """

    ours: str
    theirs: tuple[str, ...]

    def to_ours(self, parts: "list[Tensor]") -> "Tensor":
        """(D, H, K) each -> (parts x HK, D)"""
        import torch

        return torch.cat([part.flatten(1).T for part in parts])

    def to_theirs(self, tensor: "Tensor", config: EncoderConfig) -> "list[Tensor]":
        """(parts x HK, D) -> (D, H, K) each"""
        sizes = (config.num_attention_heads, -1)
        return [part.T.unflatten(1, sizes) for part in tensor.chunk(len(self.theirs))]


@dataclass(frozen=True)
class Reshape:
    """One tensor, another name and another shape; its numbers stay in their order.

    Args:
        ours, theirs: the names, with ``.weight`` or ``.bias``.
        shape, their_shape: give both shapes for a config.
    """

    ours: str
    theirs: str
    shape: Callable[[EncoderConfig], tuple[int, ...]]
    their_shape: Callable[[EncoderConfig], tuple[int, ...]]

    def to_ours(self, tensor: "Tensor", config: EncoderConfig) -> "Tensor":
        """A tensor of any other shape is returned as it is; copying it will fail."""
        fits = tuple(tensor.shape) == self.their_shape(config)
        return tensor.reshape(self.shape(config)) if fits else tensor


@dataclass(frozen=True)
class Tie:
    """Theirs is a second name of the tensor ``to`` (also theirs).

    Not written. If a checkpoint has both, they must be equal; one of them is enough.

    Args:
        always: a state dict of theirs has it whatever the heads are.
    """

    theirs: str
    to: str
    always: bool = False


@dataclass(frozen=True)
class Drop:
    """Theirs holds nothing that we need, for configs for which ``when`` is true."""

    theirs: str
    reason: str
    when: Callable[[EncoderConfig], bool] | None = None


@dataclass(frozen=True)
class Make:
    """Theirs has a tensor that ours lacks for configs for which ``when`` is true.

    Not read; written as ``make`` returns it: theirs never uses it, or it can be computed.

    Args:
        head: the kind of head that it belongs to, if it is not the encoder's.
    """

    theirs: str
    when: Callable[[EncoderConfig], bool]
    make: Callable[[EncoderConfig], "Tensor"]
    head: str | None = None


Rule = Rename | Fuse | Heads | Reshape | Tie | Drop | Make

_LEAVES = ("weight", "bias", "position_ids", "token_type_ids", "_weight")


def their_names(rule: Rule) -> tuple[str, ...]:
    return rule.theirs if isinstance(rule, Fuse | Heads) else (rule.theirs,)


def head_of(rule: Rule) -> str | None:
    """The kind of head that a rule's tensor is of; None for the encoder and the pooler."""
    if isinstance(rule, Make):
        return rule.head
    if isinstance(rule, Rename | Fuse) and rule.ours.startswith("heads."):
        return rule.ours.split(".")[1]
    return None


def part_of(rule: Rule) -> str | None:
    """As ``head_of``, and "pooler" for the pooler's tensors."""
    if isinstance(rule, Rename | Fuse) and rule.ours.startswith("pooler."):
        return "pooler"
    return head_of(rule)


def holds(rule: Rule, config: EncoderConfig) -> bool:
    """Whether a rule is one of this config."""
    when = rule.when if isinstance(rule, Rename | Fuse | Drop) else None
    return when is None or when(config)


def written_out(rules: tuple[Rule, ...], config: EncoderConfig) -> Iterator[Rule]:
    """The rules for each block of a network, and for weights and biases separately."""
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

    if isinstance(rule, Rename):
        return Rename(name(rule.ours), name(rule.theirs), rule.shared, rule.when)
    if isinstance(rule, Fuse):
        return Fuse(name(rule.ours), tuple(name(n) for n in rule.theirs))
    if isinstance(rule, Heads):
        return Heads(name(rule.ours), tuple(name(n) for n in rule.theirs))
    if isinstance(rule, Reshape):
        return Reshape(name(rule.ours), name(rule.theirs), rule.shape, rule.their_shape)
    if isinstance(rule, Tie):
        return Tie(name(rule.theirs), name(rule.to), rule.always)
    if isinstance(rule, Make):
        return Make(name(rule.theirs), rule.when, rule.make, rule.head)
    return Drop(name(rule.theirs), rule.reason, rule.when)
