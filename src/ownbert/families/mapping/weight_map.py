"""A mapping between the tensors of checkpoints and OwnBERT's, used in both directions."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    Renamed,
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

# Prefix of tensors that the checkpoint's format has no name for.
OWN_TENSOR = "ownbert."
# Beginnings of problem messages; the name of the tensor follows.
UNEXPECTED, MISSING = "unexpected tensor ", "missing tensor "


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
        """Convert the tensors of a checkpoint to OwnBERT's.

        Args:
            kinds: heads that the checkpoint may have, the most likely first, because two heads can
                have the same names.
            other_heads: whether to ignore tensors of other heads of the family.

        Returns:
            OwnBERT's tensors by name, and the problems, one line each.
        """
        theirs = {n: t for n, t in theirs.items() if not n.startswith(self.other_parts)}
        left = {self.full_name(name): tensor for name, tensor in theirs.items()}
        all_theirs, problems = dict(left), []
        if len(left) < len(theirs):
            names = Counter(map(self.full_name, theirs))
            problems += [f"tensor {name} is there twice" for name in names if names[name] > 1]
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
        """Convert OwnBERT's tensors to those of a checkpoint.

        Tensors of heads that are not in ``kinds``, and those without a rule, keep their names after
        the prefix ``OWN_TENSOR``, unless they are in a module that a script has put in place of one
        with a rule.

        Args:
            bare: whether to omit the prefix of the base model.
            kinds: heads that get the checkpoint's names; by default all.
        """
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
        inside = self.names_inside(left, config, heads)
        theirs |= {inside.get(name, OWN_TENSOR + name): tensor for name, tensor in left.items()}
        return {name: tensor.contiguous() for name, tensor in theirs.items()}

    def names_inside(
        self, ours: Iterable[str], config: EncoderConfig, kinds: Collection[str]
    ) -> dict[str, str]:
        """The checkpoint's names of modules and tensors inside modules with a rule for a weight.

        ``classifier.0.weight`` for a ``classifier`` that has been replaced by several layers. Names
        elsewhere are left out.
        """
        single = (r for r in written_out(self.rules, config) if isinstance(r, Rename | Reshape))
        of = {r.ours: r.theirs for r in single if head_of(r) in (None, *kinds)}
        end = ".weight"
        modules = {a.removesuffix(end): b.removesuffix(end) for a, b in of.items() if end in a}
        found = {}
        for name in ours:
            place = name
            while place and place not in modules:
                place = place.rpartition(".")[0]
            if place and name not in of:
                found[name] = modules[place] + name.removeprefix(place)
        return found

    def their_name(self, ours: str, config: EncoderConfig) -> str:
        """The name in the checkpoint of OwnBERT's tensor ``ours``, for messages."""
        for rule in written_out(self.rules, config):
            if isinstance(rule, Renamed) and rule.ours == ours:
                return ", ".join(their_names(rule))
        return ours

    def our_names(
        self, theirs: Collection[str], config: EncoderConfig, kinds: Collection[str]
    ) -> set[str]:
        """OwnBERT's names of tensors of a checkpoint, in a model with heads of these kinds."""
        names = {name.removeprefix(OWN_TENSOR) for name in theirs if name.startswith(OWN_TENSOR)}
        for rule in written_out(self.rules, config):
            named = isinstance(rule, Renamed)
            if named and head_of(rule) in (None, *kinds) and {*their_names(rule)} & {*theirs}:
                names.add(rule.ours)
        return names

    def their_shape(self, ours: str, tensor: "Tensor", config: EncoderConfig) -> tuple[int, ...]:
        """The shape in the checkpoint of OwnBERT's tensor ``ours``, for messages."""
        for rule in self.rules:
            if isinstance(rule, Reshape) and rule.ours == ours:
                return rule.their_shape(config)
        return tuple(tensor.shape)

    def tensor_names(self, config: EncoderConfig, part: str | None = None) -> set[str]:
        """The checkpoint's names of all tensors, or of those of a head or the pooler (``part``)."""
        rules = written_out(self.rules, config)
        return {n for rule in rules if part in (None, part_of(rule)) for n in their_names(rule)}

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
        return [f"tensors {', '.join(shown)} must be of one shape"]
    if len(present) == len(rule.theirs):
        import torch

        if isinstance(rule, Fuse):
            ours[rule.ours] = torch.cat(parts)
        elif parts[0].ndim != 3:
            return [f"tensors {', '.join(present)} must have three dimensions"]
        else:
            ours[rule.ours] = rule.to_ours(parts)
    elif present:
        missing = ", ".join(n for n in rule.theirs if n not in present)
        return [MISSING + missing]
    return []
