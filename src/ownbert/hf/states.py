"""Tensors of the familiar face: read out of a folder, and named as Transformers names them."""

import copy
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ownbert import checkpoint
from ownbert.checkpoint.copying import copy_weights, first_of
from ownbert.checkpoint.description import Description
from ownbert.checkpoint.weights import read_weights
from ownbert.errors import InputError
from ownbert.families.weight_map import MISSING, UNEXPECTED
from ownbert.hf.names import second_names, their_tensors, with_second_names
from ownbert.text.tokenizer import Tokenizer


@dataclass
class Chosen:
    """What of a folder goes into a model, by their names, and what does not.

    tensors: the folder's, or the model's own at what starts anew (``new``, and ``mismatched``, of
    which there are the shape in the folder and that in the model). misfits: names of all tensors
    of another shape.
    """

    tensors: dict[str, Tensor]
    new: list[str]
    unused: list[str]
    mismatched: list[tuple[str, torch.Size, torch.Size]]
    misfits: list[str]


def fill(face: Any, folder: Path, *, mismatched: bool = False) -> dict[str, list[Any]]:
    """Read the folder's tensors into the model; what is new and what was left out.

    mismatched: tensors of another shape start anew.
    """
    description, model, weight_map = _describe(face, folder), face.model, face.weight_map
    read, path = read_weights(folder)
    chosen = _choose(face, description, read, mismatched)
    # A head whose tensors are all there is read by their names, whatever architecture it was of.
    kinds = (
        kind
        for kind in model.specs
        if weight_map.tensor_names(model.config, kind) <= chosen.tensors.keys()
    )
    specs = (*(model.specs[kind] for kind in kinds), *description.specs)
    report = copy_weights(
        model,
        chosen.tensors,
        weight_map,
        description=replace(description, specs=specs),
        lenient=True,
    )
    if report.problems:
        shown = "; ".join(first_of(report.problems))
        hint = "; ignore_mismatched_sizes=True starts them anew" * bool(chosen.misfits)
        raise InputError(f"{path} does not fit: {shown}{hint}")
    new = [*chosen.new, *report.new]
    anew = [*new, *(name for name, *_ in chosen.mismatched)]
    if anew:
        warnings.warn(
            f"{type(face).__name__} from {folder}: {', '.join(anew)} are not in it, or of another "
            "shape, and start anew; train the model before it is used",
            stacklevel=3,
        )
    return {
        "missing_keys": new,
        "unexpected_keys": [*chosen.unused, *report.unused],
        "mismatched_keys": chosen.mismatched,
        "dtype": [next(t.dtype for t in read.values() if t.is_floating_point())],
        "error_msgs": [],
    }


def _describe(face: Any, folder: Path) -> Description:
    description = checkpoint.describe(folder, any_architecture=True)
    if description.family is not face.family:
        raise InputError(
            f"{folder} holds a {description.family.model_type} model; {type(face).__name__} reads "
            f"{face.family.model_type}"
        )
    return description


def _choose(
    face: Any, description: Description, read: dict[str, Tensor], mismatched: bool
) -> Chosen:
    """Of a folder's tensors those for the model: without layers beyond those of the model, and
    without those of somebody's own layers; cross attentions that it lacks start anew."""
    model, weight_map = face.model, face.weight_map
    theirs = {weight_map.full_name(name): tensor for name, tensor in read.items()}
    theirs = theirs if len(theirs) == len(read) else dict(read)
    extra = added(face)
    new = sorted(extra.keys() - theirs.keys())
    for name in extra.keys() & theirs.keys():
        extra[name].copy_(theirs.pop(name))
    known = weight_map.tensor_names(description.config)
    unused = set(theirs) & (known - weight_map.tensor_names(model.config))
    named = description.values.get("architectures") or [description.architecture]
    if description.architecture not in named:
        unused |= theirs.keys() - known
    theirs = {name: tensor for name, tensor in theirs.items() if name not in unused}
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    own = their_tensors(model, weight_map, parameters)
    misfits = [name for name in own if name in theirs and theirs[name].shape != own[name].shape]
    wrong = [(n, theirs[n].shape, own[n].shape) for n in misfits] if mismatched else []
    crossing = model.config.add_cross_attention and not description.config.add_cross_attention
    anew = [n for n in own if crossing and ".crossattention." in n and n not in theirs]
    theirs |= {name: own[name] for name in [*anew, *(name for name, *_ in wrong)]}
    return Chosen(theirs, [*new, *anew], sorted(unused), wrong, misfits)


def write(face: Any, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> None:
    """The folder of a model, with the tensors of what a subclass has added to it."""
    model = face.model
    if not face.kinds and model.heads:  # the base of a model with heads
        model = copy.copy(model)
        model._modules = {**model._modules, "heads": nn.ModuleDict()}
        model.specs, model.labels = {}, ()
    values = {**face.config.to_dict(), "dtype": str(face.dtype).removeprefix("torch.")}
    values["architectures"] = [type(face).__name__]
    checkpoint.save(
        model,
        folder,
        tokenizer=tokenizer,
        architecture=face.architecture,
        values=values,
        more=added(face),
    )


def added(face: Any) -> dict[str, Tensor]:
    """Tensors of the modules that a subclass has beside ``model``, by name."""
    mine = (n for n, module in face._modules.items() if n != "model" and module is not None)
    starts = tuple(f"{name}." for name in mine)
    state = face.state_dict() if starts else {}
    return {name: tensor for name, tensor in state.items() if name.startswith(starts)}


def to_theirs(face: Any, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """Turn the names of a state dict into Transformers'."""
    start = prefix + "model."
    ours = {n.removeprefix(start): state.pop(n) for n in list(state) if n.startswith(start)}
    if not face.kinds:  # a base model may stand on the model of one with heads
        ours = {name: tensor for name, tensor in ours.items() if not name.startswith("heads.")}
    for name, tensor in their_tensors(face.model, face.weight_map, ours).items():
        state[prefix + (name if face.kinds else name.removeprefix(face.weight_map.prefix))] = tensor


def to_ours(
    face: Any,
    state: dict[str, Tensor],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Turn the names of a state dict in Transformers' names into ours."""
    more = tuple(f"{prefix}{name}." for name in face._modules if name != "model")
    own = [n for n in state if n.startswith(prefix) and not (more and n.startswith(more))]
    theirs = {name.removeprefix(prefix): state.pop(name) for name in own}
    ours, problems = face.weight_map.to_ours(theirs, face.model.config, face.kinds)
    if face.kinds:
        ours = with_second_names(face.model, ours)
    for problem in problems:
        if problem.startswith(UNEXPECTED):
            unexpected.append(prefix + problem.removeprefix(UNEXPECTED))
        elif not problem.startswith(MISSING):
            errors.append(problem)
    cut = "" if face.kinds else face.weight_map.prefix
    for name, now in face.model.named_parameters(remove_duplicate=False):
        if name in ours:
            continue
        ours[name] = now.detach()  # What is missing stays as it is, and is named in their words.
        if name not in second_names(face.model) and (face.kinds or not name.startswith("heads.")):
            names = face.weight_map.their_name(name, face.model.config).split(", ")
            missing += [prefix + their.removeprefix(cut) for their in names]
    state.update({f"{prefix}model.{name}": tensor for name, tensor in ours.items()})
