"""Copies tensors between checkpoints and models, and reports mismatches."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from torch import Tensor

from ownbert.checkpoint.description import Description
from ownbert.checkpoint.model_files import CONFIG
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.families.mapping.family import OWN_FIELDS
from ownbert.families.mapping.weight_map import (
    MISSING,
    UNEXPECTED,
    WeightMap,
    missing_tensor,
    unexpected_tensor,
)
from ownbert.language.messages import Message
from ownbert.nn.model import Model
from ownbert.nn.prepack import QuantizedLinear
from ownbert.nn.undrawn import materialize

# Prefix of the tensors of ``nn.variants.sesame.LayerGate``.
GATE = "encoder.gate."


@dataclass(frozen=True)
class LoadReport:
    """The result of copying tensors into a model: mismatches, one line each, and the names in the
    checkpoint of tensors that were newly initialised or left out, which only ``lenient`` allows."""

    problems: list[str]
    new: list[str]
    unused: list[str]


def copy_weights(
    model: Model,
    tensors: Mapping[str, Tensor],
    weight_map: WeightMap,
    *,
    description: Description | None = None,
    lenient: bool = False,
    new_heads: Collection[str] = (),
    our_names: bool = False,
) -> LoadReport:
    """Copy a checkpoint's tensors into a model, unless there are any problems.

    Args:
        model: model to fill, preferably created with ``shapes_alone``: memory is allocated here,
            once all tensors fit, and missing parameters are initialised.
        description: description of the checkpoint's config.json; by default it has the model's
            heads.
        lenient: the model may have other heads, and a pooler or none. Heads that the checkpoint
            neither declares nor has tensors of are newly initialised, and its other heads are left
            out.
        new_heads: kinds of heads that are newly initialised even if the checkpoint has them.
        our_names: whether problems use our names of tensors.
    """
    config = model.config
    if description is not None:
        specs = tuple(spec for spec in description.specs if spec.kind not in new_heads)
        description = replace(description, specs=specs)
    declared = [] if description is None else [spec.kind for spec in description.specs]
    kinds = list(dict.fromkeys([*declared, *model.specs]))
    ours, problems = weight_map.to_ours(tensors, config, kinds, other_heads=lenient)
    heads = tuple(f"heads.{kind}." for kind in new_heads)
    ours = {name: tensor for name, tensor in ours.items() if not name.startswith(heads)}
    unused = []
    unshared = {n: t for n, t in ours.items() if n.rpartition(".")[0] not in weight_map.shared}

    def shown(name: str) -> str:
        return (
            Message("{name} (by our name)", name)
            if our_names
            else weight_map.their_name(name, config)
        )

    parameters = dict(model.named_parameters())
    missing = parameters.keys() - ours.keys()
    new = {
        name
        for name in missing
        if lenient and description is not None and _can_reinitialise(name, description, unshared)
    }
    there = set(map(weight_map.full_name, tensors))

    def is_reported(name: str) -> bool:
        """Whether ``to_ours`` has reported the tensors that a parameter is put together from."""
        parts = weight_map.their_name(name, config).split(", ")
        return len(parts) > 1 and not there.isdisjoint(parts)

    problems += [missing_tensor(shown(name)) for name in missing - new if not is_reported(name)]
    tables: list[str] = []  # reported first: config.json has their sizes
    for name, tensor in ours.items():
        if name not in parameters:
            if lenient and name.split(".")[0] in ("heads", "pooler"):
                unused += [shown(name)] if name in unshared else []
            else:
                problems.append(unexpected_tensor(shown(name)))
        elif parameters[name].shape != tensor.shape:
            expected_shape = weight_map.their_shape(name, parameters[name], config)
            of_tables = name.startswith("encoder.embeddings.") and tensor.ndim > 1
            (tables if of_tables else problems).append(
                misshapen(shown(name), tuple(tensor.shape), expected_shape)
            )
        elif not tensor.is_floating_point():
            problems.append(
                Message(
                    "tensor {name} contains {dtype}, not floating point numbers",
                    shown(name),
                    tensor.dtype,
                )
            )
    problems = [*sorted(tables), *sorted(problems)]
    if not problems:
        materialize(model)
        if new:
            model.initialize(new)
        parameters = dict(model.named_parameters())
        for name in ours.keys() & parameters.keys():
            parameters[name].data.copy_(ours[name])
    return LoadReport(problems, sorted(map(shown, new)), sorted(unused))


def require_fit(report: LoadReport, path: Path, description: Description | None = None) -> None:
    """Check that all tensors of a file fit the model; with the ``description`` of the folder, the
    error says how to load it if only heads do not fit."""
    if report.problems:
        advice = "" if description is None else hint(report.problems, description)
        lines = [*first_of(report.problems), *filter(None, [advice])]
        raise InputError(
            "{path} does not match its {config}: {lines}", path, CONFIG, "; ".join(lines)
        )


def require_blocks(
    tensors: Mapping[str, Tensor], weight_map: WeightMap, path: Path, *stacks: EncoderConfig | None
) -> None:
    """Check that a file has the last block stated in config.json, because creating a thousand
    blocks takes seconds before a missing one is noticed."""
    present = set(map(weight_map.full_name, tensors))
    for stack, config in zip(("encoder", "decoder"), stacks, strict=False):
        names = set[str]()
        if config is not None:
            names = weight_map.names_in(f"{stack}.blocks.{config.num_blocks - 1}.", config)
        if names and not names & present:
            require_fit(LoadReport([missing_tensor(min(names))], [], []), path)


def named_tensors(
    model: Model, weight_map: WeightMap, *, bare: bool = False, kinds: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """The model's tensors on the CPU, by a checkpoint's names; see ``WeightMap.to_theirs``."""
    if any(isinstance(module, QuantizedLinear) for module in model.modules()):
        raise InputError("a quantized model cannot be saved; copy its folder, or quantize again")
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    ours = {name: named[name].detach().cpu() for name in model.state_dict() if name in named}
    return weight_map.to_theirs(ours, model.config, bare=bare, kinds=kinds)


def misshapen(names: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """The error for a tensor, or for several that were concatenated, with a wrong shape."""
    parts = names.count(", ") + 1
    got, want = ((s[0] // parts, *s[1:]) if s else () for s in (shape, expected))
    if parts == 1:
        return Message("tensor {name} has shape {shape}, expected {expected}", names, got, want)
    return Message(
        "tensors {names} have shape {shape} each, expected {expected}", *(names, got, want)
    )


def _can_reinitialise(name: str, description: Description, ours: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is part of a head or pooler that the checkpoint neither declares nor
    contains. A base model may lack its pooler: Transformers saves it under the same class name."""
    part, *rest = name.split(".")
    if name.startswith(GATE):
        # Fine-tuning may add this structure to an encoder pretrained without it.
        return description.values.get(OWN_FIELDS["layer_gate"]) is None
    if part == "pooler":
        declared = description.pooler and bool(description.specs)
    else:
        declared = part != "heads" or rest[0] in {spec.kind for spec in description.specs}
    prefix = f"heads.{rest[0]}." if part == "heads" else f"{part}."
    return not declared and not any(other.startswith(prefix) for other in ours)


def first_of(problems: list[str]) -> list[str]:
    """The first problems, and the number of others."""
    left = len(problems) - 4
    return problems[:4] + [Message("and {count} more", left)] * (left > 0)


def hint(problems: Sequence[str], description: Description) -> str:
    """How to load the folder if the only problems are extra or missing heads or poolers.

    Google's bert-base-uncased is an example: it declares BertForMaskedLM but has the NSP head, too.
    """
    kinds = [spec.kind for spec in description.specs]
    architecture, weight_map = description.architecture, description.family.weight_map
    poolers = weight_map.tensor_names(description.config, "pooler")
    missing = {p.removeprefix(MISSING) for p in problems if p.startswith(MISSING)}
    extra = {p.removeprefix(UNEXPECTED) for p in problems if p.startswith(UNEXPECTED)}
    if len(missing) + len(extra) < len(problems) or not missing <= poolers:
        return ""
    if not extra:
        alone = missing == poolers and not kinds
        return "the folder has no pooler: load it with pooler=False" if alone else ""
    more = _heads_of(extra - poolers, description, pooler=not missing)
    if more is None:
        return ""
    without = f"heads={_tuple(kinds)}"
    if not more:
        return Message(
            "they are a pooler that {architecture} does not have: load it with {heads} leaves them "
            "out",
            *(architecture, without),
        )
    parts = " and ".join(" or ".join(alike) for alike in more)
    ways = " or ".join(f"heads={_tuple([*kinds, *chosen])}" for chosen in product(*more))
    if missing:  # they cannot be left out with the pooler
        return Message(
            "{architecture} has no {parts}: load it with {ways}", architecture, parts, ways
        )
    return Message(
        "{architecture} has no {parts}: load it with {ways} to have these too; {heads} leaves them "
        "out",
        *(architecture, parts, ways, without),
    )


def _heads_of(names: set[str], description: Description, *, pooler: bool) -> list[list[str]] | None:
    """The heads that tensors belong to, each with alternatives of the same names; None if
    unknown."""
    family = description.family
    specs = [spec for head in family.architectures.values() for spec in head.heads]
    present = {spec.kind for spec in description.specs}
    kinds = [s.kind for s in specs if s.kind not in present and (pooler or not s.needs_pooler)]
    heads = []
    while names:
        tensors_of = {
            k: family.weight_map.tensor_names(description.config, k) & names for k in kinds
        }
        best = max(tensors_of.values(), key=len, default=set())
        if not best:
            return None
        heads.append([kind for kind in tensors_of if tensors_of[kind] == best])
        names = names - best
    return heads


def _tuple(kinds: Sequence[str]) -> str:
    inside = ", ".join(f'"{kind}"' for kind in kinds)
    return f"({inside},)" if len(kinds) == 1 else f"({inside})"
