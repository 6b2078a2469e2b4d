"""Muon for hidden matrices and AdamW for everything else, as one optimiser."""

from typing import Any

import torch
from torch import nn

from ownbert.train.optim.joint import JointOptimizer

# Parameter names that Muon does not suit (Jordan et al. 2024): embeddings and outputs.
_NOT_HIDDEN = ("embeddings", "heads")


def make_muon(
    model: nn.Module, groups: list[dict[str, Any]], adamw: dict[str, Any], momentum: float
) -> JointOptimizer:
    """Create Muon for the hidden matrices and AdamW for all other parameters.

    Muon's updates are scaled to the size of AdamW's (Liu et al. 2025), so that both use the same
    learning rate.

    Args:
        groups: parameters with weight decay, then those without.
    """
    hidden = _hidden_matrices(model)
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


def _hidden_matrices(model: nn.Module) -> set[int]:
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {
        id(p)
        for name, p in model.named_parameters()
        if p.ndim == 2 and id(p) not in tables and not set(name.split(".")) & set(_NOT_HIDDEN)
    }
