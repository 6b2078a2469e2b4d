"""Tensor names of a checkpoint and ours: one mapping, used in both directions."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from ownbert.config.encoder import EncoderConfig
from ownbert.families.mapping.rules import (
    Drop,
    Fuse,
    Heads,
    Make,
    Rename,
    Reshape,
    Rule,
    Tensors,
    Tie,
    head_of,
    part_of,
    their_names,
    written_out,
)

if TYPE_CHECKING:
    from torch import Tensor

# Prefix of a tensor that the checkpoint's format has no name for.
OWN_TENSOR = "ownbert."
# How these problems begin; the name of the tensor follows.
UNEXPECTED, MISSING = "unexpected tensor ", "missing tensor "

# Rules with a tensor of ours.
_RENAMED = Rename | Fuse | Heads | Reshape


@dataclass(frozen=True)
class WeightMap:
    """How the tensors of one kind of checkpoint become ours, and ours theirs.

    Args:
        rules: one for each tensor, or each kind of tensor in every block; reversible.
        prefix: of the base model's names in a model with a head.
        old_names: endings of names in old checkpoints, and today's.
        other_parts: how names of tensors begin that belong to a part which is not read (a decoder).
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
        """Our tensors from a checkpoint's, and its problems, one line each.

        Args:
            theirs: the checkpoint's tensors.
            config: structure of the encoder.
            kinds: the heads that may be in it, the most likely first: two heads can have the same
                names.
            other_heads: ignore tensors of other heads of the family.
        """
        theirs = {n: t for n, t in theirs.items() if not n.startswith(self.other_parts)}
        left = {self.full_name(name): tensor for name, tensor in theirs.items()}
        all_theirs, problems = dict(left), []
        if len(left) < len(theirs):
            names = Counter(map(self.full_name, theirs))
            problems += [f"tensor {name} is there twice" for name in names if names[name] > 1]
        own = [name for name in left if name.startswith(OWN_TENSOR)]
        ours = {name.removeprefix(OWN_TENSOR): left.pop(name) for name in own}
        rules = list(written_out(self.rules, config))
        ties = [rule for rule in rules if isinstance(rule, Tie)]
        for tie in ties:
            if tie.theirs in left and tie.to not in left:
                left[tie.to] = left.pop(tie.theirs)
        order = {kind: number for number, kind in enumerate(kinds, 1)}
        wanted = [rule for rule in rules if head_of(rule) is None or head_of(rule) in order]
        for rule in sorted(wanted, key=lambda rule: order.get(head_of(rule) or "", 0)):
            if isinstance(rule, Rename) and rule.ours not in ours:
                source = all_theirs if rule.shared else left
                if rule.theirs in source:
                    ours[rule.ours] = source[rule.theirs]
                    left.pop(rule.theirs, None)
            elif isinstance(rule, Reshape) and rule.theirs in left:
                ours[rule.ours] = rule.to_ours(left.pop(rule.theirs), config)
            elif isinstance(rule, Fuse | Heads):
                problems += _fuse(rule, left, ours)
            elif isinstance(rule, Drop) or (isinstance(rule, Make) and rule.when(config)):
                left.pop(rule.theirs, None)
        # A rename may already have taken the tensor that a tie points to.
        for tie in ties:
            if tie.theirs in left:
                tied = left.pop(tie.theirs)
                import torch

                if tie.to in all_theirs and not torch.equal(tied, all_theirs[tie.to]):
                    problems.append(f"tensor {tie.theirs} differs from {tie.to}; it must be tied")
        if other_heads:
            known = {name for rule in rules if head_of(rule) for name in their_names(rule)}
            left = {name: tensor for name, tensor in left.items() if name not in known}
        problems += [UNEXPECTED + name for name in left]
        return ours, problems

    def to_theirs(
        self,
        ours: "Mapping[str, Tensor]",
        config: EncoderConfig,
        *,
        bare: bool,
        kinds: Sequence[str] | None = None,
    ) -> Tensors:
        """A checkpoint's tensors from ours.

        Tensors of heads that are not in ``kinds``, and those without a rule, keep our names after
        ``OWN_TENSOR``.

        Args:
            bare: leave out the prefix.
            kinds: heads that get the checkpoint's names; by default all.
        """
        theirs, left = {}, dict(ours)
        there = {name.split(".")[1] for name in ours if name.startswith("heads.")}
        if kinds is not None:
            there &= set(kinds)
        for rule in written_out(self.rules, config):
            if head_of(rule) not in (None, *there):
                continue
            if isinstance(rule, Rename) and rule.ours in left:
                theirs[rule.theirs] = left.pop(rule.ours)
            elif isinstance(rule, Reshape) and rule.ours in left:
                theirs[rule.theirs] = left.pop(rule.ours).reshape(rule.their_shape(config))
            elif isinstance(rule, Fuse) and rule.ours in left:
                parts = left.pop(rule.ours).chunk(len(rule.theirs))
                theirs.update(zip(rule.theirs, parts, strict=True))
            elif isinstance(rule, Heads) and rule.ours in left:
                parts = rule.to_theirs(left.pop(rule.ours), config)
                theirs.update(zip(rule.theirs, parts, strict=True))
            elif isinstance(rule, Make) and rule.when(config):
                theirs[rule.theirs] = rule.make(config)
        if bare:
            theirs = {name.removeprefix(self.prefix): tensor for name, tensor in theirs.items()}
        theirs |= {OWN_TENSOR + name: tensor for name, tensor in left.items()}
        return {name: tensor.contiguous() for name, tensor in theirs.items()}

    def their_name(self, ours: str, config: EncoderConfig) -> str:
        """The checkpoint's name of a tensor of ours, for messages."""
        for rule in written_out(self.rules, config):
            if isinstance(rule, _RENAMED) and rule.ours == ours:
                return ", ".join(their_names(rule))
        return ours

    def our_names(
        self, theirs: Collection[str], config: EncoderConfig, kinds: Collection[str]
    ) -> set[str]:
        """Our names of the tensors that have any of theirs, in a model with these heads."""
        found = {name.removeprefix(OWN_TENSOR) for name in theirs if name.startswith(OWN_TENSOR)}
        for rule in written_out(self.rules, config):
            named = isinstance(rule, _RENAMED)
            if named and head_of(rule) in (None, *kinds) and {*their_names(rule)} & {*theirs}:
                found.add(rule.ours)
        return found

    def their_shape(self, ours: str, tensor: "Tensor", config: EncoderConfig) -> tuple[int, ...]:
        """The shape of a tensor of ours in the checkpoint, for messages."""
        for rule in self.rules:
            if isinstance(rule, Reshape) and rule.ours == ours:
                return rule.their_shape(config)
        return tuple(tensor.shape)

    def tensor_names(self, config: EncoderConfig, part: str | None = None) -> set[str]:
        """Their names of all tensors, or of those of a head or of the pooler."""
        rules = written_out(self.rules, config)
        return {n for rule in rules if part in (None, part_of(rule)) for n in their_names(rule)}

    def names_in(self, ours: str, config: EncoderConfig) -> set[str]:
        """Their names of the tensors whose names begin so here."""
        rules = written_out(self.rules, config)
        own = (r for r in rules if isinstance(r, _RENAMED) and r.ours.startswith(ours))
        return {name for rule in own for name in their_names(rule)}

    @cached_property
    def shared(self) -> frozenset[str]:
        """Our modules whose tensors several of theirs have under one name."""
        return frozenset(r.ours for r in self.rules if isinstance(r, Rename) and r.shared)

    def full_name(self, name: str) -> str:
        """The current name of a tensor, with the prefix."""
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
    """Concatenate tensors of ``left`` to one of ``ours``; returns the problems."""
    there = [name for name in rule.theirs if name in left]
    parts = [left.pop(name) for name in there]
    if len({part.shape for part in parts}) > 1 or any(p.ndim == 0 for p in parts):
        return [f"tensors {', '.join(there)} must be of one shape"]
    if len(there) == len(rule.theirs):
        import torch

        if isinstance(rule, Fuse):
            ours[rule.ours] = torch.cat(parts)
        elif parts[0].ndim != 3:
            return [f"tensors {', '.join(there)} must have three dimensions"]
        else:
            ours[rule.ours] = rule.to_ours(parts)
    elif there:
        missing = ", ".join(n for n in rule.theirs if n not in there)
        return [MISSING + missing]
    return []
