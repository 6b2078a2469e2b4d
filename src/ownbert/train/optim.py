"""Optimisers by name, and their groups of parameters: with weight decay and without."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ownbert.errors import InputError
from ownbert.nn.bottleneck import NoNorm
from ownbert.train.distributed import is_sharded
from ownbert.train.lamb import Lamb
from ownbert.train.muon import make_muon
from ownbert.train.recipe import OPTIMIZERS, Optim

_NORMS = (nn.LayerNorm, nn.RMSNorm, NoNorm)

# These do not work on parameters that are spread over processes (FSDP).
_WHOLE = ("adafactor", "muon", "rprop")


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """The optimiser ``optim.name`` over all parameters of ``model``, in two groups.

    "adamw" is AdamW (Loshchilov and Hutter 2019) in one fused kernel, "lamb" is of You et al. 2020,
    the rest are PyTorch's; each takes of betas, eps, momentum and weight_decay what it knows.
    "muon" is Muon on hidden matrices and AdamW on the rest. Raises ``InputError`` for a name that
    this PyTorch does not have.
    """
    groups = decay_groups(model, optim.weight_decay)
    if optim.name in _WHOLE and is_sharded(model):
        raise InputError(
            f"optim.name {optim.name} needs whole parameters and cannot be used where they are "
            "spread over processes; take adamw or lamb"
        )
    kind = _kind_of(optim.name)
    if optim.name == "muon":
        return make_muon(model, groups, _settings(torch.optim.AdamW, optim), optim.momentum)
    if kind is Lamb:
        groups[1]["adapt"] = False
    if "weight_decay" not in inspect.signature(kind).parameters:
        for group in groups:
            del group["weight_decay"]
    return kind(groups, **_settings(kind, optim))


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: ``weight_decay`` for all but biases and norms (as BERT's), 0 for these.

    A parameter that is shared stands in the group of its first place; frozen ones are there too,
    since a later phase may train them.
    """
    decayed, plain, seen = [], [], set()
    for name, parameter, module in _places(model):
        if id(parameter) not in seen:
            seen.add(id(parameter))
            # A recurrent layer has bias_ih_l0 and the like.
            spared = name.startswith("bias") or isinstance(module, _NORMS)
            (plain if spared else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    check_groups(model, groups)
    return groups


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


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            yield name, parameter, module


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
