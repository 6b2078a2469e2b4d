"""Tensors of a checkpoint into a model: every one of both has its place, or is named."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from ownbert.checkpoint.description import Description
from ownbert.families.family import MISSING, UNEXPECTED
from ownbert.nn.model import Model


@dataclass(frozen=True)
class Filled:
    """What came of copying tensors into a model: what does not fit, and, if lenient, the parts
    that start anew and those that were left out."""

    problems: list[str]
    new: list[str]
    unused: list[str]


def fill(model: Model, theirs: Mapping[str, Tensor], said: Description, *, lenient: bool) -> Filled:
    """Copy a checkpoint's tensors into the model; every one that does not fit is a problem.

    lenient: the model was asked for other heads than the checkpoint has.
    """
    family, config = said.family, model.config
    kinds = dict.fromkeys([*(spec.kind for spec in said.specs), *model.specs])
    ours, problems = family.to_ours(theirs, config, list(kinds), other_heads=lenient)
    new, unused = [], []
    targets = dict(model.named_parameters())
    for name, tensor in ours.items():
        if name not in targets:
            if lenient and name.split(".")[0] in ("heads", "pooler"):
                unused.append(family.their_name(name, config))
            else:
                problems.append(UNEXPECTED + family.their_name(name, config))
        elif targets[name].shape != tensor.shape:
            their = family.their_name(name, config)
            wanted = family.their_shape(name, targets[name], config)
            problems.append(_misshapen(their, tuple(tensor.shape), wanted))
        elif not tensor.is_floating_point():
            their = family.their_name(name, config)
            problems.append(f"tensor {their} holds {tensor.dtype}, not floating point numbers")
        else:
            targets[name].data.copy_(tensor)
    for name in targets.keys() - ours.keys():
        their = family.their_name(name, config)
        if lenient and _may_start_anew(name, said, ours):
            new.append(their)
        else:
            problems.append(MISSING + their)
    return Filled(sorted(problems), sorted(new), sorted(unused))


def _misshapen(their: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> str:
    """What is wrong with a tensor, or with several that were joined along the first dimension."""
    parts = their.count(", ") + 1
    got, want = ((s[0] // parts, *s[1:]) if s else () for s in (shape, wanted))
    has = "tensor {} has shape {}" if parts == 1 else "tensors {} have shape {} each"
    return f"{has.format(their, got)}, expected {want}"


def _may_start_anew(name: str, said: Description, ours: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is of a part that the checkpoint neither promises nor has a piece of.

    The pooler of a base model is no promise: Transformers saves one without it just so.
    """
    part, *rest = name.split(".")
    if part == "pooler":
        promised = said.pooler and bool(said.specs)
    else:
        promised = part != "heads" or rest[0] in {spec.kind for spec in said.specs}
    prefix = f"heads.{rest[0]}." if part == "heads" else f"{part}."
    return not promised and not any(other.startswith(prefix) for other in ours)


def first_of(problems: list[str]) -> list[str]:
    """The first problems, and how many more there are."""
    return problems[:4] + [f"and {len(problems) - 4} more"] * (len(problems) > 4)


def hint(problems: Sequence[str], said: Description) -> str:
    """How to go on where all that is wrong are heads, or a pooler, too many or too few.

    Google's bert-base-uncased is such a folder: it says BertForMaskedLM and has the head of next
    sentences too.
    """
    asked = [spec.kind for spec in said.specs]
    poolers = said.family.tensor_names(said.config, "pooler")
    missing = {p.removeprefix(MISSING) for p in problems if p.startswith(MISSING)}
    extra = {p.removeprefix(UNEXPECTED) for p in problems if p.startswith(UNEXPECTED)}
    if len(missing) + len(extra) < len(problems) or not missing <= poolers:
        return ""
    if not extra:
        alone = missing == poolers and not asked
        return "the folder has no pooler: load it with pooler=False" if alone else ""
    more = _heads_of(extra - poolers, said, pooler=not missing)
    if more is None:
        return ""
    without = f"heads={_tuple(asked)} leaves them out"
    if not more:
        return f"they are a pooler that {said.architecture} does not have: load it with {without}"
    parts = " and ".join(" or ".join(kinds) for kinds in more)
    ways = " or ".join(f"heads={_tuple([*asked, *kinds])}" for kinds in product(*more))
    if missing:  # there is no pooler to leave them out with
        return f"{said.architecture} has no {parts}: load it with {ways}"
    return f"{said.architecture} has no {parts}: load it with {ways} to have these too; {without}"


def _heads_of(names: set[str], said: Description, *, pooler: bool) -> list[list[str]] | None:
    """The heads that tensors are of, each with others of the same names; None if of no head."""
    specs = [spec for head in said.family.architectures.values() for spec in head.heads]
    there = {spec.kind for spec in said.specs}
    kinds = [s.kind for s in specs if s.kind not in there and (pooler or not s.needs_pooler)]
    found = []
    while names:
        of = {kind: said.family.tensor_names(said.config, kind) & names for kind in kinds}
        best = max(of.values(), key=len, default=set())
        if not best:
            return None
        found.append([kind for kind in of if of[kind] == best])
        names = names - best
    return found


def _tuple(kinds: Sequence[str]) -> str:
    inside = ", ".join(f'"{kind}"' for kind in kinds)
    return f"({inside},)" if len(kinds) == 1 else f"({inside})"
