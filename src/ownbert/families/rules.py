"""Rules that turn the tensors of a Hugging Face checkpoint into ours and back.

Each mapping is written once and works in both directions. A name may hold ``{i}``, the number of
a layer, and may leave out ``.weight`` and ``.bias``: then it stands for both.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Rename:
    """One tensor, another name."""

    ours: str
    theirs: str


@dataclass(frozen=True)
class Fuse:
    """Several of theirs, one after the other along the first dimension, are one of ours."""

    ours: str
    theirs: tuple[str, ...]


@dataclass(frozen=True)
class Tie:
    """Theirs is a second name of the tensor ``to`` (also theirs): not written, and if it is in a
    checkpoint it must be equal."""

    theirs: str
    to: str


@dataclass(frozen=True)
class Drop:
    """Theirs carries nothing that we need."""

    theirs: str
    reason: str


Rule = Rename | Fuse | Tie | Drop


@dataclass(frozen=True)
class Head:
    """What an architecture of theirs consists of."""

    heads: tuple[str, ...] = ()
    pooler: bool = True


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint: names, rules and heads.

    prefix: what stands before the names of the base model when it has a head. required: config
    keys that change the result, with the values that we can do. old_names: ends of names in
    checkpoints of long ago, and what they are called today.
    """

    model_type: str
    prefix: str
    rules: tuple[Rule, ...]
    architectures: Mapping[str, Head]
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    old_names: Mapping[str, str] = field(default_factory=dict)

    def to_ours(self, theirs: Mapping[str, Tensor], layers: int) -> tuple[Tensors, list[str]]:
        """Our tensors out of a checkpoint's, and what is wrong with it, a line each."""
        left = {self._full_name(name): tensor for name, tensor in theirs.items()}
        ours, problems = {}, []
        if len(left) < len(theirs):
            names = Counter(map(self._full_name, theirs))
            problems += [f"tensor {name} is there twice" for name in names if names[name] > 1]
        for rule in self._expanded(layers):
            if isinstance(rule, Rename) and rule.theirs in left:
                ours[rule.ours] = left.pop(rule.theirs)
            elif isinstance(rule, Fuse):
                there = [name for name in rule.theirs if name in left]
                parts = [left.pop(name) for name in there]
                if len({part.shape for part in parts}) > 1 or any(p.ndim == 0 for p in parts):
                    problems.append(f"tensors {', '.join(there)} must be of one shape")
                elif len(there) == len(rule.theirs):
                    ours[rule.ours] = torch.cat(parts)
                elif there:
                    missing = ", ".join(n for n in rule.theirs if n not in there)
                    problems.append(f"missing tensor {missing}")
            elif isinstance(rule, Drop):
                left.pop(rule.theirs, None)
        # A rename may already have taken what a tie points to, so ties are compared in theirs.
        for rule in self._expanded(layers):
            if not isinstance(rule, Tie) or rule.theirs not in left:
                continue
            if not _equal(left.pop(rule.theirs), theirs, self._names(rule.to)):
                problems.append(f"tensor {rule.theirs} differs from {rule.to}; it must be tied")
        problems += [f"unexpected tensor {name}" for name in left]
        return ours, problems

    def to_theirs(self, ours: Mapping[str, Tensor], layers: int, *, bare: bool) -> Tensors:
        """A checkpoint's tensors out of ours; ``bare`` leaves out the prefix."""
        theirs = {}
        for rule in self._expanded(layers):
            if isinstance(rule, Rename) and rule.ours in ours:
                theirs[rule.theirs] = ours[rule.ours]
            elif isinstance(rule, Fuse) and rule.ours in ours:
                parts = ours[rule.ours].chunk(len(rule.theirs))
                theirs.update(zip(rule.theirs, parts, strict=True))
        if bare:
            theirs = {name.removeprefix(self.prefix): tensor for name, tensor in theirs.items()}
        return {name: tensor.contiguous() for name, tensor in theirs.items()}

    def their_name(self, ours: str, layers: int) -> str:
        """Their name of a tensor of ours, for messages."""
        for rule in self._expanded(layers):
            if isinstance(rule, Rename | Fuse) and rule.ours == ours:
                return rule.theirs if isinstance(rule, Rename) else ", ".join(rule.theirs)
        return ours

    def _full_name(self, name: str) -> str:
        """Today's name of a tensor, with the prefix."""
        for old, new in self.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        bare = name.split(".", 1)[0] in self._base_modules()
        return self.prefix + name if bare else name

    def _names(self, name: str) -> tuple[str, str]:
        return name, name.removeprefix(self.prefix)

    def _base_modules(self) -> set[str]:
        """First words of the base model's names: embeddings, encoder, pooler."""
        names = [name for rule in self.rules for name in _theirs(rule)]
        return {
            name.removeprefix(self.prefix).split(".", 1)[0]
            for name in names
            if name.startswith(self.prefix)
        }

    def _expanded(self, layers: int) -> Iterator[Rule]:
        for rule in self.rules:
            numbers = range(layers) if any("{i}" in name for name in _theirs(rule)) else (0,)
            whole = all(name.rsplit(".", 1)[-1] in _LEAVES for name in _theirs(rule))
            for i in numbers:
                for leaf in ("",) if whole else (".weight", ".bias"):
                    yield _written_out(rule, i, leaf)


_LEAVES = ("weight", "bias", "position_ids")


def _theirs(rule: Rule) -> tuple[str, ...]:
    return rule.theirs if isinstance(rule, Fuse) else (rule.theirs,)


def _written_out(rule: Rule, i: int, leaf: str) -> Rule:
    def name(text: str) -> str:
        return text.replace("{i}", str(i)) + leaf

    if isinstance(rule, Rename):
        return Rename(name(rule.ours), name(rule.theirs))
    if isinstance(rule, Fuse):
        return Fuse(name(rule.ours), tuple(name(n) for n in rule.theirs))
    if isinstance(rule, Tie):
        return Tie(name(rule.theirs), name(rule.to))
    return Drop(name(rule.theirs), rule.reason)


def _equal(tensor: Tensor, tensors: Mapping[str, Tensor], names: tuple[str, ...]) -> bool:
    other = next((tensors[name] for name in names if name in tensors), None)
    return other is not None and torch.equal(tensor, other)
