"""Optimisers by name, LAMB among them (Adam with layer-wise scaling of the update to the norm of
the weights), and their parameter groups.
"""

import inspect
import re
from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ownbert.exceptions import InputError
from ownbert.nn.layers import NoNorm
from ownbert.nn.variants.ngram_embeddings import ngram_tables
from ownbert.train.distributed import is_sharded
from ownbert.train.training_settings import OPTIMIZERS, Optim

_NORMS = (nn.LayerNorm, nn.RMSNorm, NoNorm)
# The path of a block of the encoder.
_BLOCK = re.compile(r"encoder\.blocks\.(\d+)\b")
# The depth of other modules. DeBERTa has relative positions for all blocks, and a convolution at
# block 0.
_BESIDE = {".embeddings": 0, ".encoder.distances": 0, ".encoder.convolution": 1}
# Minimum learning rate of a CRF's transition scores.
_CRF_RATE = 5e-3
# These optimisers do not work on sharded parameters (FSDP).
_UNSHARDED = ("adafactor", "muon", "rprop")
# Parameter names that Muon does not suit (Jordan et al. 2024): embeddings and outputs.
_NOT_HIDDEN = ("embeddings", "heads")


def make_optimizer(model: nn.Module, optim: Optim) -> torch.optim.Optimizer:
    """Create the optimiser ``optim.name`` for all parameters of ``model``, two groups per rate.

    "adamw" is AdamW (Loshchilov and Hutter 2019) as one fused kernel, "lamb" is LAMB (You et al.
    2020), "muon" is Muon for hidden matrices and AdamW for the rest; the others are PyTorch's. Each
    uses the settings that it has among betas, eps, momentum and weight_decay. N-gram tables have a
    separate optimiser (``RowAdagrad``) and learning rate.

    Raises:
        InputError: this PyTorch lacks the optimiser, or a setting does not support it.
    """
    groups = decay_groups(model, optim.weight_decay, optim.layer_decay)
    tables = ngram_tables(model)
    if not tables:
        return _make_dense(model, groups, optim)
    weights = {id(table.table.weight) for table in tables}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in weights]
    rate = optim.learning_rate or 1.0
    rows = [{"params": [table.table.weight], "scale": table.rate / rate} for table in tables]
    return JointOptimizer(_make_dense(model, groups, optim), RowAdagrad(rows))


def _make_dense(
    model: nn.Module, groups: list[dict[str, Any]], optim: Optim
) -> torch.optim.Optimizer:
    _raise_crf_rate(model, groups, optim.learning_rate)
    if optim.name in _UNSHARDED and is_sharded(model):
        raise InputError(
            "optim.name {name} cannot be used with sharded parameters (run.shard); use adamw or "
            "lamb",
            optim.name,
        )
    kind = _optimizer_class(optim.name)
    if optim.name == "muon":
        if len(groups) > 2:
            raise InputError(
                "optim.layer_decay and a CRF are not possible with optim.name muon; use adamw"
            )
        return _make_muon(model, groups, _settings(torch.optim.AdamW, optim), optim.momentum)
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
    """Two parameter groups: with ``weight_decay``, and without for biases and norms (as in BERT). A
    shared parameter is in the group of its first occurrence. Frozen parameters are included,
    because a later phase may train them.

    With ``layer_decay`` below 1, there are two groups per layer, from the top; each layer's
    learning rate is this share of that of the layer above (Clark et al. 2020, appendix A), stored
    as the "scale" of its groups.
    """
    by_scale: dict[float, tuple[list, list]] = {1.0: ([], [])}
    seen = set()
    blocks = (_BLOCK.search(path) for path, _ in model.named_modules())
    layers = max((1 + int(block[1]) for block in blocks if block), default=0)
    for path, module in model.named_modules():
        # 0 for embeddings, from 1 for blocks, and above for heads.
        depth = next((at for part, at in _BESIDE.items() if part in f".{path}"), layers + 1)
        if (match := _BLOCK.search(path)) is not None:
            depth = 1 + int(match[1])
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                # Recurrent layers have names such as bias_ih_l0.
                undecayed = name.startswith("bias") or isinstance(module, _NORMS)
                scale = layer_decay ** (layers + 1 - depth)
                by_scale.setdefault(scale, ([], []))[undecayed].append(parameter)
    groups = [
        {"params": parameters, "weight_decay": decay, "scale": scale}
        for scale, pair in sorted(by_scale.items(), reverse=True)
        for parameters, decay in zip(pair, (weight_decay, 0.0), strict=True)
    ]
    check_groups(model, groups)
    return groups


def _raise_crf_rate(model: nn.Module, groups: list[dict[str, Any]], rate: float | None) -> None:
    """Raise the learning rate of a CRF's transition scores to a minimum: they start at zero, and
    would hardly change at the rates of a large encoder."""
    crf_ids = {id(p) for name, p in model.named_parameters() if ".crf." in name}
    scale = max(1.0, _CRF_RATE / (rate or _CRF_RATE))
    if not crf_ids or scale == 1.0:
        return
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in crf_ids]
    crf = [p for p in model.parameters() if id(p) in crf_ids]
    groups.append({"params": crf, "weight_decay": 0.0, "scale": scale})
    groups.append({"params": [], "weight_decay": 0.0, "scale": scale})  # groups come in pairs


def check_groups(model: nn.Module, groups: list[dict[str, Any]]) -> None:
    """Raise ``ValueError`` unless every trained parameter of ``model`` is in exactly one group."""
    occurrences = Counter(id(parameter) for group in groups for parameter in group["params"])
    counts = [(n, occurrences[id(p)]) for n, p in model.named_parameters() if p.requires_grad]
    if missing := [name for name, count in counts if count == 0]:
        raise ValueError(f"these parameters are in no group of the optimiser: {', '.join(missing)}")
    if twice := [name for name, count in counts if count > 1]:
        raise ValueError(f"these parameters are in several groups: {', '.join(twice)}")


def describe_groups(optimizer: torch.optim.Optimizer) -> str:
    """The numbers of parameters with and without weight decay, as text."""
    counts = [0, 0]
    for group in optimizer.param_groups:
        counts[group.get("weight_decay", 0.0) > 0] += sum(p.numel() for p in group["params"])
    return f"{counts[1]:,} parameters with decay, {counts[0]:,} without"


def _optimizer_class(name: str) -> type[torch.optim.Optimizer]:
    if name == "lamb":
        return Lamb
    # Names here are PyTorch's in lower case.
    kinds: dict[str, Any] = {
        n.lower(): k for n, k in vars(torch.optim).items() if inspect.isclass(k)
    }
    if name not in OPTIMIZERS or name not in kinds:
        options = [n for n in OPTIMIZERS if n == "lamb" or n in kinds]
        raise InputError(
            "optim.name is {name!r}; with PyTorch {version} it must be one of {options}",
            name,
            torch.__version__,
            ", ".join(options),
        )
    return kinds[name]


def _uncompiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """The optimiser without decorators that exclude it from ``torch.compile``: they import the
    compiler, which takes longer than everything else before the first step."""
    marked = (torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad)
    bare: dict[str, Any] = {method.__name__: inspect.unwrap(method) for method in marked}
    bare["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), bare)


def _settings(kind: type[torch.optim.Optimizer], optim: Optim) -> dict[str, Any]:
    parameters = inspect.signature(kind).parameters
    values: dict[str, Any] = {
        "lr": optim.learning_rate or 0.0,
        "betas": (optim.betas[0], optim.betas[1]),
        "eps": optim.eps,
        "momentum": optim.momentum,
        "fused": True,
    }
    if optim.name not in ("adam", "adamw"):
        del values["fused"]  # not supported everywhere
    if optim.name == "adafactor":
        del values["eps"]  # Adafactor has two with another meaning
    return {name: value for name, value in values.items() if name in parameters}


class JointOptimizer(torch.optim.Optimizer):
    """Optimisers with disjoint parameters as one, with shared groups and state, so that schedules
    and saved states see only one."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        for number, part in enumerate(parts):
            for group in part.param_groups:
                group["part"] = number
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()  # load_state_dict has replaced the groups and the state

    def _share(self) -> None:
        for number, part in enumerate(self.parts):
            part.state = self.state
            part.param_groups = [g for g in self.param_groups if g["part"] == number]

    def step(self, closure: Any = None) -> Any:
        for part in self.parts:
            part.step()


def _make_muon(
    model: nn.Module, groups: list[dict[str, Any]], adamw: dict[str, Any], momentum: float
) -> JointOptimizer:
    """Create Muon for the hidden matrices and AdamW for all other parameters (``groups``: with
    weight decay, then without). Muon's updates are scaled to the size of AdamW's (Liu et al. 2025),
    so that both use the same learning rate."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    hidden = {
        id(p)
        for name, p in model.named_parameters()
        if p.ndim == 2 and id(p) not in tables and not set(name.split(".")) & set(_NOT_HIDDEN)
    }
    decayed, plain = groups
    matrices = [p for p in decayed["params"] if id(p) in hidden]
    rest = [p for p in decayed["params"] if id(p) not in hidden]
    first = torch.optim.Muon(
        [{**decayed, "params": matrices}],
        lr=adamw["lr"],
        momentum=momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    second = torch.optim.AdamW([{**decayed, "params": rest}, plain], **adamw)
    return JointOptimizer(first, second)


class RowAdagrad(torch.optim.Optimizer):
    """Adagrad (Duchi et al. 2011, section 1.1) for sparse gradients, with one step size per row.

    A row's step is divided by the square root of the sum, over its updates, of its mean squared
    gradient; rows without gradient are unchanged. So rare rows move as far in few updates as
    frequent rows in many, and the state is one number per row.
    """

    def __init__(self, params: ParamsT, lr: float = 0.1, *, eps: float = 1e-10) -> None:
        # describe_groups reads weight_decay.
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, parameter.grad.coalesce())

    def _update(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state, rows, values = self.state[parameter], gradient.indices()[0], gradient.values()
        if not state:
            state["sum"] = parameter.new_zeros(len(parameter), 1)
        state["sum"].index_add_(0, rows, values.square().mean(1, keepdim=True))
        deviation = state["sum"][rows].sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, values / deviation, alpha=-group["lr"])


# torch's foreach functions have names with an underscore.
# pyright: reportPrivateImportUsage=false


class Lamb(torch.optim.Optimizer):
    """LAMB for very large batches (You et al. 2020, algorithm 2, with the identity for phi).

    The update of a tensor is Adam's direction plus weight decay, scaled by the trust ratio: the
    norm of the weights divided by the norm of the direction, or 1 if either is 0. Groups with
    ``adapt`` false have no trust ratio: biases and LayerNorms, as in the authors' code.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        adapt: bool = True,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults | {"adapt": adapt})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(group, parameters)

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        gradients = [cast(Tensor, p.grad) for p in parameters]
        states = [self.state[p] for p in parameters]
        for state, parameter in zip(states, parameters, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)  # on the CPU: it is read in every step
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        first = [state["exp_avg"] for state in states]
        second = [state["exp_avg_sq"] for state in states]
        beta1, beta2 = group["betas"]
        for state in states:
            state["step"] += 1
        # A head may be added later, so each tensor counts its own steps.
        steps = [int(state["step"]) for state in states]
        torch._foreach_lerp_(first, gradients, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
        deviation = torch._foreach_div(second, [1 - beta2**step for step in steps])
        torch._foreach_sqrt_(deviation)
        torch._foreach_add_(deviation, group["eps"])
        update = torch._foreach_div(first, [1 - beta1**step for step in steps])
        torch._foreach_div_(update, deviation)
        if group["weight_decay"]:
            torch._foreach_add_(update, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            # Trust ratios, without synchronisation.
            norms = zip(torch._foreach_norm(parameters), torch._foreach_norm(update), strict=True)
            ratios = [torch.where((a > 0) & (b > 0), a / b, torch.ones_like(a)) for a, b in norms]
            torch._foreach_mul_(update, ratios)
        torch._foreach_add_(parameters, update, alpha=-group["lr"])
