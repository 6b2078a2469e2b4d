"""Optimisers by name, and their groups of parameters: with weight decay and without."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ownbert.errors import InputError
from ownbert.nn.bottleneck import NoNorm
from ownbert.train.distributed import is_sharded
from ownbert.train.optim.lamb import Lamb
from ownbert.train.optim.muon import make_muon
from ownbert.train.recipe import OPTIMIZERS, Optim

_NORMS = (nn.LayerNorm, nn.RMSNorm, NoNorm)

# A block of the encoder, and what is in one.
_BLOCK, _BLOCK_OF = re.compile(r"encoder\.blocks\.\d+$"), re.compile(r"encoder\.blocks\.(\d+)\.")

_CRF_RATE = 5e-3

# These do not work on parameters that are spread over processes (FSDP).
_WHOLE = ("adafactor", "muon", "rprop")


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """The optimiser ``optim.name`` over all parameters of ``model``, in two groups a rate.

    "adamw" is AdamW (Loshchilov and Hutter 2019) in one fused kernel, "lamb" is of You et al. 2020,
    the rest are PyTorch's; each takes of betas, eps, momentum and weight_decay what it knows.
    "muon" is Muon on hidden matrices and AdamW on the rest. Raises ``InputError`` for a name that
    this PyTorch does not have.
    """
    groups = decay_groups(model, optim.weight_decay, optim.layer_decay)
    _hasten(model, groups, optim.learning_rate)
    if optim.name in _WHOLE and is_sharded(model):
        raise InputError(
            f"optim.name {optim.name} needs whole parameters and cannot be used where they are "
            "spread over processes; take adamw or lamb"
        )
    kind = _kind_of(optim.name)
    if optim.name == "muon":
        if len(groups) > 2:
            raise InputError(
                "optim.layer_decay is not possible with optim.name muon, nor is a CRF; take adamw"
            )
        return make_muon(model, groups, _settings(torch.optim.AdamW, optim), optim.momentum)
    if kind is Lamb:
        for group in groups[1::2]:
            group["adapt"] = False
    if "weight_decay" not in inspect.signature(kind).parameters:
        for group in groups:
            del group["weight_decay"]
    return _uncompiled(kind)(groups, **_settings(kind, optim))


def decay_groups(
    model: nn.Module, weight_decay: float, layer_decay: float = 1.0
) -> list[dict[str, Any]]:
    """Two groups: ``weight_decay`` for all but biases and norms (as BERT's), 0 for these.

    With ``layer_decay`` below 1 there are two for each layer, which learn at that share of the rate
    of the layer above (Clark et al. 2020, appendix A): ``scale`` in a group; the highest first. A
    parameter that is shared stands in the group of its first place; frozen ones are there too,
    since a later phase may train them.
    """
    found: dict[float, tuple[list, list]] = {1.0: ([], [])}
    seen = set()
    layers = sum(1 for name, _ in model.named_modules() if _BLOCK.search(name))
    for path, name, parameter, module in _places(model):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            # A recurrent layer has bias_ih_l0 and the like.
            spared = name.startswith("bias") or isinstance(module, _NORMS)
            scale = layer_decay ** (layers + 1 - _depth(path, layers))
            found.setdefault(scale, ([], []))[spared].append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for scale, pair in sorted(found.items(), reverse=True)
        for parameters, decay in zip(pair, (weight_decay, 0.0), strict=True)
    ]
    check_groups(model, groups)
    return groups


def _hasten(model: nn.Module, groups: list[dict[str, Any]], rate: float | None) -> None:
    """Give what a CRF knows of neighbouring tags a rate of its own, where the run's is lower: it
    starts from nothing, and at the rates of a large encoder it would stay there."""
    own = {id(p) for name, p in model.named_parameters() if ".crf." in name}
    scale = max(1.0, _CRF_RATE / (rate or _CRF_RATE))
    if not own or scale == 1.0:
        return
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in own]
    crf = [p for p in model.parameters() if id(p) in own]
    groups.append({"params": crf, "weight_decay": 0.0, "scale": scale})
    groups.append({"params": [], "weight_decay": 0.0, "scale": scale})  # they come in pairs


def _depth(path: str, layers: int) -> int:
    """0: embeddings; from 1: blocks, by their number; above them what stands on the encoder."""
    if (found := _BLOCK_OF.search(path)) is not None:
        return 1 + int(found[1])
    return 0 if ".embeddings" in path else layers + 1


def check_groups(model: nn.Module, groups: list[dict[str, Any]]) -> None:
    """Raise ``ValueError``, with names, unless each parameter of ``model`` that is trained is in
    exactly one group."""
    found: dict[int, int] = {}
    for group in groups:
        for parameter in group["params"]:
            found[id(parameter)] = found.get(id(parameter), 0) + 1
    counts = [(n, found.get(id(p), 0)) for n, p in model.named_parameters() if p.requires_grad]
    if lost := [name for name, count in counts if count == 0]:
        raise ValueError(f"these parameters are in no group of the optimiser: {', '.join(lost)}")
    if twice := [name for name, count in counts if count > 1]:
        raise ValueError(f"these parameters are in several groups: {', '.join(twice)}")


def describe_groups(optimizer: torch.optim.Optimizer) -> str:
    """How many numbers decay and how many do not, for people."""
    counts = [0, 0]
    for group in optimizer.param_groups:
        counts[group.get("weight_decay", 0.0) > 0] += sum(p.numel() for p in group["params"])
    return f"{counts[1]:,} parameters with decay, {counts[0]:,} without"


def _places(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter, nn.Module]]:
    """The path of each module, and the names of its own parameters."""
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            yield f".{path}", name, parameter, module


def _kind_of(name: str) -> type[torch.optim.Optimizer]:
    if name == "lamb":
        return Lamb
    # Their names differ from ours by capitals only.
    kinds: dict[str, Any] = {
        n.lower(): k for n, k in vars(torch.optim).items() if inspect.isclass(k)
    }
    if name not in OPTIMIZERS or name not in kinds:
        known = [n for n in OPTIMIZERS if n == "lamb" or n in kinds]
        raise InputError(
            f"optim.name is {name!r}; with PyTorch {torch.__version__} one of {', '.join(known)}"
        )
    return kinds[name]


def _uncompiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The same optimiser without what keeps its methods out of ``torch.compile``: for that PyTorch
    imports its compiler, which takes longer than all else before the first step."""
    marked = (torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad)
    bare: dict[str, Any] = {method.__name__: inspect.unwrap(method) for method in marked}
    bare["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), bare)


def _settings(kind: type[torch.optim.Optimizer], optim: Optim) -> dict[str, Any]:
    known = inspect.signature(kind).parameters
    values: dict[str, Any] = {
        "lr": optim.learning_rate or 0.0,
        "betas": (optim.betas[0], optim.betas[1]),
        "eps": optim.eps,
        "momentum": optim.momentum,
        "fused": True,
    }
    if optim.name not in ("adam", "adamw"):
        del values["fused"]  # elsewhere not on every device, and not on spread parameters
    if optim.name == "adafactor":
        del values["eps"]  # its two are of another kind
    return {name: value for name, value in values.items() if name in known}
