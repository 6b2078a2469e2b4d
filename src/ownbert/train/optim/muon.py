"""Muon for the matrices of hidden layers and AdamW for everything else, as one optimiser."""

from typing import Any

import torch
from torch import nn

# Parts of names of what Muon is not meant for (Jordan et al. 2024): embeddings and outputs.
_NOT_HIDDEN = ("embeddings", "heads")


class MuonAndAdamW(torch.optim.Optimizer):
    """Two optimisers that share groups and state, so that a schedule and a saved state see one."""

    def __init__(self, muon: torch.optim.Optimizer, adamw: torch.optim.Optimizer) -> None:
        self.parts = (muon, adamw)
        super().__init__([*muon.param_groups, *adamw.param_groups], {})
        self._share()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()  # load_state_dict has replaced the groups and the state

    def _share(self) -> None:
        for part, is_muon in zip(self.parts, (True, False), strict=True):
            part.state = self.state
            part.param_groups = [g for g in self.param_groups if ("ns_steps" in g) == is_muon]

    def step(self, closure: Any = None) -> Any:
        """Update with both; returns the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss


def make_muon(
    model: nn.Module, groups: list[dict[str, Any]], adamw: dict[str, Any], momentum: float
) -> MuonAndAdamW:
    """Muon for the matrices of hidden layers and AdamW for all other parameters.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025), so that both use one learning
    rate.

    Args:
        groups: parameters with weight decay, then those without.
        adamw: the settings of AdamW.
        momentum: of Muon.
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
    return MuonAndAdamW(first, second)


def _hidden_matrices(model: nn.Module) -> set[int]:
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {
        id(p)
        for name, p in model.named_parameters()
        if p.ndim == 2 and id(p) not in tables and not set(name.split(".")) & set(_NOT_HIDDEN)
    }
