"""A family: names, rules, heads and config keys of one kind of checkpoint."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from ownbert.config import ACTIVATIONS, EncoderConfig, HeadSpec
from ownbert.errors import InputError
from ownbert.families.rules import (
    Drop,
    Fuse,
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

# A position kind that Transformers does not know is kept under this key.
POSITIONS = "ownbert_position_embedding_type"
# The families of these are told apart by their model_type, so that Transformers refuses them.
OWN = "ownbert-"
_OWN_POSITIONS = ("rotary", "alibi")
# Before the name of a tensor that Transformers has no place for.
OWN_TENSOR = "ownbert."
# How the problems of a tensor that has no place, or is not there, begin; its name follows.
UNEXPECTED, MISSING = "unexpected tensor ", "missing tensor "


@dataclass(frozen=True)
class Head:
    """What an architecture of theirs consists of. decoder: its class is for generating text."""

    heads: tuple[HeadSpec, ...] = ()
    pooler: bool = True
    decoder: bool = False


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint.

    prefix: what stands before the names of the base model when it has a head. defaults: the keys
    of its ``config.json`` and what they are when not there. names: their key for ours where it
    is another. fixed: what ours must be and theirs has no key for. reads and writes: further
    values of ours out of theirs, and back. required: keys that change the result, with the values
    that we can do. dropouts, activations: keys of the dropout rate of a kind of head, and of the
    activation of its dense layer. old_names: ends of names in checkpoints of long ago, and what
    they are called today.
    """

    model_type: str
    prefix: str
    rules: tuple[Rule, ...]
    architectures: Mapping[str, Head]
    defaults: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reads: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda values: {}
    writes: Callable[[EncoderConfig], dict[str, Any]] = lambda config: {}
    required: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    dropouts: Mapping[str, str] = field(default_factory=dict)
    activations: Mapping[str, str] = field(default_factory=dict)
    old_names: Mapping[str, str] = field(default_factory=dict)

    def read_config(self, theirs: Mapping[str, Any]) -> EncoderConfig:
        """Structure out of a ``config.json``. ``InputError`` for a value that we cannot do."""
        if "vocab_size" in self.defaults and "vocab_size" not in theirs:
            raise InputError("vocab_size is missing")
        values = {**self.defaults, **theirs}
        for key, allowed in self.required.items():
            if key in values and values[key] not in allowed:
                shown = " or ".join(map(repr, allowed))
                raise InputError(f"{key} is {values[key]!r}; supported is {shown}")
        ours = {}
        for f in fields(EncoderConfig):
            key = self.names.get(f.name, f.name)
            # Transformers does not look at keys of other families.
            if key in self.defaults and values.get(key) is not None:
                ours[f.name] = values[key]
        ours |= self.fixed
        ours |= self.reads(values)
        if theirs.get(POSITIONS) is not None:
            ours["position_embedding_type"] = theirs[POSITIONS]
        return EncoderConfig(**ours)

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """The keys of a ``config.json`` that say what ``config`` says, model_type among them.

        ``InputError`` where Transformers' format has no word for it.
        """
        theirs: dict[str, Any] = {"model_type": self.model_type}
        for name, value in asdict(config).items():
            key = self.names.get(name, name)
            if key in self.defaults and name not in self.fixed:
                theirs[key] = value
        theirs["pruned_heads"] = {str(i): list(h) for i, h in config.pruned_heads.items()}
        theirs |= self.writes(config)
        for key, value in theirs.items():
            if value is None and self.defaults[key] is not None:
                raise InputError(f"{self.model_type} needs {key}")
        kind = config.position_embedding_type
        if kind == "sinusoidal" or kind in _OWN_POSITIONS:
            theirs["position_embedding_type"] = "absolute"
            theirs[POSITIONS] = kind
        if kind in _OWN_POSITIONS:
            theirs["model_type"] = OWN + self.model_type
        again = self.read_config(theirs)
        if again != config:
            name = next(n for n, v in asdict(config).items() if v != asdict(again)[n])
            raise InputError(f"{self.model_type} has no way to say {name} {getattr(config, name)}")
        return theirs

    def specs(self, architecture: str, values: Mapping[str, Any]) -> tuple[HeadSpec, ...]:
        """The heads of an architecture, with the rates and activations of a ``config.json``."""
        return tuple(self.adapted(spec, values) for spec in self.architectures[architecture].heads)

    def spec_of(self, kind: str, values: Mapping[str, Any]) -> HeadSpec:
        """The head of a kind as this family has it; BERT's where it has none."""
        heads = (spec for head in self.architectures.values() for spec in head.heads)
        found = next((spec for spec in heads if spec.kind == kind), HeadSpec(kind))
        return self.adapted(found, values)

    def adapted(self, spec: HeadSpec, values: Mapping[str, Any]) -> HeadSpec:
        """The head with the rate and the activation that a ``config.json`` gives it."""
        values = {**self.defaults, **values}
        rate = values.get(self.dropouts.get(spec.kind, ""))
        if rate is not None:
            spec = replace(spec, dropout=rate)
        if spec.kind in self.activations:
            key = self.activations[spec.kind]
            name = values.get(key) or "linear"
            if name not in ACTIVATIONS:
                raise InputError(f"{key} {name!r} is not known; one of {', '.join(ACTIVATIONS)}")
            spec = replace(spec, dense=name)
        return spec

    def to_ours(
        self,
        theirs: Mapping[str, Tensor],
        config: EncoderConfig,
        kinds: Sequence[str],
        *,
        other_heads: bool = False,
    ) -> tuple[Tensors, list[str]]:
        """Our tensors out of a checkpoint's, and what is wrong with it, a line each.

        kinds: the heads that may be in it, the likeliest first, as two heads can have the same
        names. With ``other_heads`` tensors of any other head of the family are let be.
        """
        left = {self.full_name(name): tensor for name, tensor in theirs.items()}
        whole, problems = dict(left), []
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
        order = {kind: place for place, kind in enumerate(kinds, 1)}
        wanted = [rule for rule in rules if head_of(rule) is None or head_of(rule) in order]
        for rule in sorted(wanted, key=lambda rule: order.get(head_of(rule) or "", 0)):
            if isinstance(rule, Rename) and rule.theirs in left and rule.ours not in ours:
                ours[rule.ours] = left.pop(rule.theirs)
            elif isinstance(rule, Reshape) and rule.theirs in left:
                ours[rule.ours] = rule.to_ours(left.pop(rule.theirs), config)
            elif isinstance(rule, Fuse):
                problems += _fuse(rule, left, ours)
            elif isinstance(rule, Drop) or (isinstance(rule, Make) and rule.when(config)):
                left.pop(rule.theirs, None)
        # A rename may already have taken what a tie points to, so ties look at all of theirs.
        for tie in ties:
            if tie.theirs in left:
                tied = left.pop(tie.theirs)
                if tie.to in whole and not torch.equal(tied, whole[tie.to]):
                    problems.append(f"tensor {tie.theirs} differs from {tie.to}; it must be tied")
        if other_heads:
            known = {name for rule in rules if head_of(rule) for name in their_names(rule)}
            left = {name: tensor for name, tensor in left.items() if name not in known}
        problems += [UNEXPECTED + name for name in left]
        return ours, problems

    def to_theirs(
        self,
        ours: Mapping[str, Tensor],
        config: EncoderConfig,
        *,
        bare: bool,
        kinds: Sequence[str] | None = None,
    ) -> Tensors:
        """A checkpoint's tensors out of ours; ``bare`` leaves out the prefix.

        Heads that are not of ``kinds`` (by default all are), and what no rule is about, keep our
        names after ``OWN_TENSOR``.
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
            elif isinstance(rule, Make) and rule.when(config):
                theirs[rule.theirs] = rule.make(config)
        if bare:
            theirs = {name.removeprefix(self.prefix): tensor for name, tensor in theirs.items()}
        theirs |= {OWN_TENSOR + name: tensor for name, tensor in left.items()}
        return {name: tensor.contiguous() for name, tensor in theirs.items()}

    def their_name(self, ours: str, config: EncoderConfig) -> str:
        """Their name of a tensor of ours, for messages."""
        for rule in written_out(self.rules, config):
            if isinstance(rule, Rename | Fuse | Reshape) and rule.ours == ours:
                return ", ".join(their_names(rule))
        return ours

    def their_shape(self, ours: str, tensor: Tensor, config: EncoderConfig) -> tuple[int, ...]:
        """The shape that a tensor of ours has in their checkpoint, for messages."""
        for rule in self.rules:
            if isinstance(rule, Reshape) and rule.ours == ours:
                return rule.their_shape(config)
        return tuple(tensor.shape)

    def tensor_names(self, config: EncoderConfig, part: str | None = None) -> set[str]:
        """Their names of all tensors, or of those of a head or of the pooler."""
        rules = written_out(self.rules, config)
        return {n for rule in rules if part in (None, part_of(rule)) for n in their_names(rule)}

    def full_name(self, name: str) -> str:
        """Today's name of a tensor, with the prefix."""
        for old, new in self.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        bare = name.split(".", 1)[0] in self._base_modules()
        return self.prefix + name if bare else name

    def _base_modules(self) -> set[str]:
        """First words of the base model's names: embeddings, encoder, pooler."""
        names = [name for rule in self.rules for name in their_names(rule)]
        return {
            name.removeprefix(self.prefix).split(".", 1)[0]
            for name in names
            if name.startswith(self.prefix)
        }


def _fuse(rule: Fuse, left: Tensors, ours: Tensors) -> list[str]:
    """Join tensors of ``left`` into one of ``ours``; what is wrong with them."""
    there = [name for name in rule.theirs if name in left]
    parts = [left.pop(name) for name in there]
    if len({part.shape for part in parts}) > 1 or any(p.ndim == 0 for p in parts):
        return [f"tensors {', '.join(there)} must be of one shape"]
    if len(there) == len(rule.theirs):
        ours[rule.ours] = torch.cat(parts)
    elif there:
        missing = ", ".join(n for n in rule.theirs if n not in there)
        return [MISSING + missing]
    return []
