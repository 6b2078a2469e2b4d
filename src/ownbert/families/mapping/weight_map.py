"""The mapping between the tensors of checkpoints and OwnBERT's, as rules that work both ways.

Each mapping is written once: ``ours`` is a name in OwnBERT, ``theirs`` a name in the checkpoint. A
name may contain ``{i}``, the index of a block (``{g}`` and ``{j}``: its group and its index in the
group; ``{f}``: each feed-forward network of a block except the last; ``{last}``: the last one). A
name without ``.weight`` or ``.bias`` stands for both.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING

from ownbert.config.encoder import EncoderConfig
from ownbert.language.messages import Message

if TYPE_CHECKING:
    from torch import Tensor

Tensors = dict[str, "Tensor"]

# Prefix of tensors that the checkpoint's format has no name for.
OWN_TENSOR = "ownbert."
# Beginnings of problem messages; the name of the tensor follows.
UNEXPECTED, MISSING = "unexpected tensor ", "missing tensor "


def missing_tensor(name: str) -> Message:
    return Message("missing tensor {name}", name)


def unexpected_tensor(name: str) -> Message:
    return Message("unexpected tensor {name}", name)


@dataclass(frozen=True)
class Rename:
    """A tensor with another name; ``shared`` if several kinds of heads have it under this name in
    checkpoints, and all are initialised with the pretrained one."""

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

    @classmethod
    def of(cls, ours: str, place: str, *names: str) -> "Fuse":
        """A rule for tensors whose names in the checkpoint begin with ``place``."""
        return cls(ours, tuple(place + name for name in names))

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
    """A tensor with another name, with ``.weight`` or ``.bias``, and another shape, but the same
    order of values."""

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
    """A second name of a tensor of the checkpoint, whose first name is ``to``. It is not written.
    If a checkpoint has both, they must be equal; one of them is enough. ``always``: Transformers'
    state dict has both names regardless of the heads."""

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
    """A tensor of the checkpoint that OwnBERT does not have; ``head``: the kind of head that it
    belongs to. It is not read. It is written as returned by ``make``, because Transformers does not
    use it or it can be computed."""

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


@lru_cache(maxsize=16)  # loading a folder needs them several times
def written_out(rules: tuple[Rule, ...], config: EncoderConfig) -> tuple[Rule, ...]:
    """Expand rules for each block of a network, and for weights and biases separately."""
    return tuple(_each(rules, config))


def _each(rules: tuple[Rule, ...], config: EncoderConfig) -> Iterator[Rule]:
    blocks = range(config.num_blocks)
    last = 0 if config.mobile is None else config.mobile.num_feedforward_networks - 1
    for rule in rules:
        when = getattr(rule, "when", None)
        if when is not None and not when(config):
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


@dataclass(frozen=True)
class WeightMap:
    """The mapping between the tensors of a kind of checkpoint ("theirs") and OwnBERT's ("ours").

    Args:
        rules: reversible rules, one for each tensor, or for each kind of tensor in every block.
        prefix: prefix of the base model's names in a model with a head.
        old_names: current endings of names by the endings in old checkpoints.
        other_parts: prefixes of tensors in a part that is not read, such as a decoder.
    """

    rules: tuple[Rule, ...]
    prefix: str = ""
    old_names: Mapping[str, str] = field(default_factory=dict)
    other_parts: tuple[str, ...] = ()

    def to_ours(
        self,
        theirs: "Mapping[str, Tensor]",
        config: EncoderConfig,
        kinds: Sequence[str],
        *,
        other_heads: bool = False,
    ) -> tuple[Tensors, list[str]]:
        """OwnBERT's tensors by name from those of a checkpoint, and the problems, one line each.

        Args:
            kinds: heads that the checkpoint may have, the most likely first, because two heads can
                have the same names.
            other_heads: whether to ignore tensors of other heads of the family.
        """
        theirs = {n: t for n, t in theirs.items() if not n.startswith(self.other_parts)}
        left = {self.full_name(name): tensor for name, tensor in theirs.items()}
        all_theirs, problems = dict(left), []
        if len(left) < len(theirs):
            names = Counter(map(self.full_name, theirs))
            problems += [
                Message("tensor {name} is there twice", name) for name in names if names[name] > 1
            ]
        own = [name for name in left if name.startswith(OWN_TENSOR)]
        ours = {name.removeprefix(OWN_TENSOR): left.pop(name) for name in own}
        rules = written_out(self.rules, config)
        ties = [rule for rule in rules if isinstance(rule, Tie)]
        for tie in ties:
            if tie.theirs in left and tie.to not in left:
                left[tie.to] = left.pop(tie.theirs)
        order = {kind: number for number, kind in enumerate(kinds, 1)}
        applicable = [rule for rule in rules if head_of(rule) is None or head_of(rule) in order]
        for rule in sorted(applicable, key=lambda rule: order.get(head_of(rule) or "", 0)):
            if isinstance(rule, Rename) and rule.ours not in ours:
                source = all_theirs if rule.shared else left
                if rule.theirs in source:
                    ours[rule.ours] = source[rule.theirs]
                    left.pop(rule.theirs, None)
            elif isinstance(rule, Reshape) and rule.theirs in left:
                ours[rule.ours] = rule.to_ours(left.pop(rule.theirs), config)
            elif isinstance(rule, Fuse | Heads):
                problems += _fuse(rule, left, ours)
            elif isinstance(rule, Drop | Make):
                left.pop(rule.theirs, None)
        # A rename may already have consumed the first name of a tied tensor.
        for tie in ties:
            if tie.theirs in left:
                tied = left.pop(tie.theirs)
                import torch

                if tie.to in all_theirs and not torch.equal(tied, all_theirs[tie.to]):
                    problems.append(
                        Message(
                            "tensor {theirs} differs from {to}; it must be tied", tie.theirs, tie.to
                        )
                    )
        if other_heads:
            known = {name for rule in rules if head_of(rule) for name in their_names(rule)}
            left = {name: tensor for name, tensor in left.items() if name not in known}
        problems += [unexpected_tensor(name) for name in left]
        return ours, problems

    def to_theirs(
        self,
        ours: "Mapping[str, Tensor]",
        config: EncoderConfig,
        *,
        bare: bool,
        kinds: Sequence[str] | None = None,
    ) -> Tensors:
        """Convert OwnBERT's tensors to those of a checkpoint, without the prefix of the base model
        if ``bare``. Tensors of heads that are not in ``kinds`` (by default all), and those without
        a rule, keep their names after the prefix ``OWN_TENSOR``."""
        theirs, left = {}, dict(ours)
        heads = {name.split(".")[1] for name in ours if name.startswith("heads.")}
        if kinds is not None:
            heads &= set(kinds)
        for rule in written_out(self.rules, config):
            if head_of(rule) not in (None, *heads):
                continue
            if isinstance(rule, Renamed) and rule.ours in left:
                parts = rule.to_theirs(left.pop(rule.ours), config)
                theirs.update(zip(their_names(rule), parts, strict=True))
            elif isinstance(rule, Make):
                theirs[rule.theirs] = rule.make(config)
        if bare:
            theirs = {name.removeprefix(self.prefix): tensor for name, tensor in theirs.items()}
        theirs |= {OWN_TENSOR + name: tensor for name, tensor in left.items()}
        return {name: tensor.contiguous() for name, tensor in theirs.items()}

    def their_name(self, ours: str, config: EncoderConfig) -> str:
        """The name in the checkpoint of OwnBERT's tensor ``ours``, for messages."""
        for rule in written_out(self.rules, config):
            if isinstance(rule, Renamed) and rule.ours == ours:
                return ", ".join(their_names(rule))
        return ours

    def their_shape(self, ours: str, tensor: "Tensor", config: EncoderConfig) -> tuple[int, ...]:
        """The shape in the checkpoint of OwnBERT's tensor ``ours``, for messages."""
        for rule in self.rules:
            if isinstance(rule, Reshape) and rule.ours == ours:
                return rule.their_shape(config)
        return tuple(tensor.shape)

    def tensor_names(self, config: EncoderConfig, part: str | None = None) -> set[str]:
        """The checkpoint's names of all tensors, or of those of a head or the pooler (``part``)."""
        rules: Sequence[Rule] = written_out(self.rules, config)
        if part == "pooler":
            rules = [r for r in rules if isinstance(r, Renamed) and r.ours.startswith("pooler.")]
        elif part is not None:
            rules = [rule for rule in rules if head_of(rule) == part]
        return {name for rule in rules for name in their_names(rule)}

    def names_in(self, ours: str, config: EncoderConfig) -> set[str]:
        """The checkpoint's names of tensors whose names in OwnBERT begin with ``ours``."""
        rules = written_out(self.rules, config)
        own = (r for r in rules if isinstance(r, Renamed) and r.ours.startswith(ours))
        return {name for rule in own for name in their_names(rule)}

    @cached_property
    def shared(self) -> frozenset[str]:
        """OwnBERT's modules whose tensors have the same name for several kinds of heads."""
        return frozenset(r.ours for r in self.rules if isinstance(r, Rename) and r.shared)

    def full_name(self, name: str) -> str:
        """The current name of a tensor in the checkpoint, with the prefix."""
        for old, new in self.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        bare = name.split(".", 1)[0] in self._base_modules
        return self.prefix + name if bare else name

    @cached_property
    def _base_modules(self) -> set[str]:
        """First components of the base model's names: embeddings, encoder, pooler."""
        names = [name for rule in self.rules for name in their_names(rule)]
        return {
            name.removeprefix(self.prefix).split(".", 1)[0]
            for name in names
            if name.startswith(self.prefix)
        }


def _fuse(rule: Fuse | Heads, left: Tensors, ours: Tensors) -> list[str]:
    """Move tensors of ``left``, concatenated, to ``ours``; return the problems."""
    present = [name for name in rule.theirs if name in left]
    parts = [left.pop(name) for name in present]
    if len({part.shape for part in parts}) > 1 or any(p.ndim == 0 for p in parts):
        shown = (f"{n} {tuple(part.shape)}" for n, part in zip(present, parts, strict=True))
        return [Message("tensors {shown} must be of one shape", ", ".join(shown))]
    if len(present) == len(rule.theirs):
        import torch

        if isinstance(rule, Fuse):
            ours[rule.ours] = torch.cat(parts)
        elif parts[0].ndim != 3:
            return [Message("tensors {present} must have three dimensions", ", ".join(present))]
        else:
            ours[rule.ours] = rule.to_ours(parts)
    elif present:
        missing = ", ".join(n for n in rule.theirs if n not in present)
        return [missing_tensor(missing)]
    return []
