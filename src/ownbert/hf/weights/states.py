"""Tensors of models with Transformers' API: loading from folders, and Transformers' names.

``model`` is a model of ``ownbert.hf`` and ``model.model``, or ``core``, the packed model inside.
"""

import copy
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ownbert import checkpoint
from ownbert.checkpoint.copying import copy_weights, first_of
from ownbert.checkpoint.description import Description
from ownbert.exceptions import InputError
from ownbert.families.mapping.weight_map import MISSING, UNEXPECTED
from ownbert.hf.weights.names import their_tensors, with_second_names
from ownbert.nn.undrawn import materialize
from ownbert.text.tokenizer import Tokenizer


def fill(
    model: Any,
    description: Description,
    read: dict[str, Tensor],
    path: Path,
    *,
    mismatched: bool = False,
) -> dict[str, list[Any]]:
    """Copy a folder's tensors into the model, and initialise missing ones.

    Returns:
        Transformers' loading info (missing_keys, unexpected_keys, ...).

    Raises:
        InputError: tensors do not fit.
    """
    core, weight_map = model.model, model.weight_map
    tensors, info = _select(model, description, read, mismatched)
    # A head whose tensors are all in the folder is loaded by name, whatever the folder's
    # architecture.
    names = {kind: weight_map.tensor_names(core.config, kind) for kind in core.specs}
    whole = (core.specs[kind] for kind, known in names.items() if known <= tensors.keys())
    specs = (*whole, *description.specs)
    description = replace(description, specs=specs)
    report = copy_weights(core, tensors, weight_map, description=description, lenient=True)
    if report.problems:
        shown = "; ".join(first_of(report.problems))
        wrong = other_shapes(tensors, _own(model))
        advice = "; ignore_mismatched_sizes=True reinitialises them" * bool(wrong)
        raise InputError(f"{path} does not fit: {shown}{advice}")
    info["missing_keys"] += report.new
    info["unexpected_keys"] += report.unused
    new = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    if initialised := ", ".join(new):
        warnings.warn(
            f"{type(model).__name__} from {path.parent}: {initialised} are not in it, or of "
            "another shape, and are newly initialised; train the model before using it",
            stacklevel=5,
        )
    return {**info, "error_msgs": []}


def _select(
    model: Any, description: Description, read: dict[str, Tensor], mismatched: bool
) -> tuple[dict[str, Tensor], dict[str, list[Any]]]:
    """The tensors for the model by Transformers' names, and Transformers' loading info.

    Layers beyond the model's and those added by a custom class are not included; missing
    cross-attention is newly initialised.
    """
    core, weight_map = model.model, model.weight_map
    theirs = {weight_map.full_name(name): tensor for name, tensor in read.items()}
    theirs = theirs if len(theirs) == len(read) else dict(read)
    own_layers = added_tensors(model)
    new = sorted(own_layers.keys() - theirs.keys())
    for name in own_layers.keys() & theirs.keys():
        own_layers[name].copy_(theirs.pop(name))
    known = weight_map.tensor_names(description.config)
    unused = set(theirs) & (known - weight_map.tensor_names(core.config))
    named = description.values.get("architectures") or [description.architecture]
    if description.architecture not in named:
        unused |= theirs.keys() - known
    theirs = {name: tensor for name, tensor in theirs.items() if name not in unused}
    crossing = core.config.add_cross_attention and not description.config.add_cross_attention
    ours = _own(model) if crossing or mismatched else {}
    wrong = other_shapes(theirs, ours) if mismatched else []
    lacking = [n for n in ours if crossing and ".crossattention." in n and n not in theirs]
    if initialised := [*lacking, *(name for name, *_ in wrong)]:
        materialize(core)
        initialise(model, initialised)
        ours = _own(model)
        theirs |= {name: ours[name] for name in initialised}
    info = {"missing_keys": [*new, *lacking], "unexpected_keys": sorted(unused)}
    return theirs, {**info, "mismatched_keys": wrong}


def other_shapes(
    theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]
) -> list[tuple[str, torch.Size, torch.Size]]:
    """The tensors with another shape in the model: name, and both shapes."""
    both = ((name, theirs[name].shape, ours[name].shape) for name in ours if name in theirs)
    return [(name, their, our) for name, their, our in both if their != our]


def _own(model: Any) -> dict[str, Tensor]:
    parameters = {name: parameter.detach() for name, parameter in model.model.named_parameters()}
    return their_tensors(model.model, model.weight_map, parameters)


def initialise(model: Any, names: Collection[str]) -> None:
    """Initialise the parameters that contain these tensors, given by full names."""
    core = model.model
    core.initialize(model.weight_map.our_names(names, core.config, core.specs))


def write(model: Any, folder: str | Path, *, tokenizer: Tokenizer | None = None) -> None:
    """Write the folder of a model, including tensors of layers added by a subclass."""
    core = model.model
    if not model.kinds and core.heads:  # the base of a model with heads
        core = copy.copy(core)
        core._modules = {**core._modules, "heads": nn.ModuleDict()}
        core.specs, core.labels = {}, ()
    values = {**model.config.to_dict(), "dtype": str(model.dtype).removeprefix("torch.")}
    values["architectures"] = [type(model).__name__]
    checkpoint.save(
        core,
        folder,
        tokenizer=tokenizer,
        architecture=model.architecture,
        values=values,
        more=added_tensors(model),
    )


def added_tensors(model: Any) -> dict[str, Tensor]:
    """Tensors of the modules that a subclass has added beside ``model``, by name."""
    names = (n for n, module in model._modules.items() if n != "model" and module is not None)
    starts = tuple(f"{name}." for name in names)
    state = model.state_dict() if starts else {}
    return {name: tensor for name, tensor in state.items() if name.startswith(starts)}


def to_theirs(model: Any, state: dict[str, Tensor], prefix: str, metadata: Any) -> None:
    """State dict hook: convert our names to Transformers'."""
    start = prefix + "model."
    ours = {n.removeprefix(start): state.pop(n) for n in list(state) if n.startswith(start)}
    if not model.kinds:  # a base model may share the core of a full model
        ours = {name: tensor for name, tensor in ours.items() if not name.startswith("heads.")}
    for name, tensor in their_tensors(model.model, model.weight_map, ours).items():
        if tensor.device.type == "cpu" and tensor.nbytes < tensor.untyped_storage().nbytes():
            # The same memory as a separate storage, because safetensors does not save views.
            tensor = torch.from_dlpack(tensor.detach())
        state[prefix + model.own_name(name)] = tensor


def to_ours(
    model: Any,
    state: dict[str, Tensor],
    prefix: str,
    metadata: Any,
    strict: bool,
    missing: list[str],
    unexpected: list[str],
    errors: list[str],
) -> None:
    """Hook before loading a state dict: convert Transformers' names to ours."""
    more = tuple(f"{prefix}{name}." for name in model._modules if name != "model")
    names = [n for n in state if n.startswith(prefix) and not (more and n.startswith(more))]
    theirs = {name.removeprefix(prefix): state.pop(name) for name in names}
    core, given = model.model, {model.weight_map.full_name(name): name for name in theirs}
    tensors = core.state_dict()
    inside = model.weight_map.names_inside(tensors, core.config, model.kinds)
    inside = {our: theirs.pop(given[their]) for our, their in inside.items() if their in given}
    ours, problems = model.weight_map.to_ours(theirs, core.config, model.kinds)
    ours |= inside
    if model.kinds:
        ours = with_second_names(model.model, ours)
    for problem in problems:
        if problem.startswith(UNEXPECTED):
            unexpected.append(prefix + problem.removeprefix(UNEXPECTED))
        elif not problem.startswith(MISSING):
            errors.append(problem)
    expected = {n: t for n, t in tensors.items() if model.kinds or not n.startswith("heads.")}
    # Second names of tied tensors are required, too, as in PyTorch, for safetensors' load_model.
    expected = their_tensors(core, model.weight_map, expected)
    missing += [prefix + model.own_name(name) for name in expected if name not in given]
    ours = {**tensors, **ours}  # Missing tensors keep their values.
    state.update({f"{prefix}model.{name}": tensor for name, tensor in ours.items()})
