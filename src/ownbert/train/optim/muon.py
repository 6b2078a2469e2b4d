"""Muon for the matrices of hidden layers and AdamW for everything else, as one optimiser."""

# torch's functions on lists of tensors are only available with an underscore.
# pyright: reportPrivateImportUsage=false

import math
from typing import Any, cast

import torch
from torch import Tensor, nn

from ownbert.train.optim.joint import JointOptimizer

# Parts of names of what Muon is not meant for (Jordan et al. 2024): embeddings and outputs.
_NOT_HIDDEN = ("embeddings", "heads")


class StackedMuon(torch.optim.Muon):
    """PyTorch's Muon on all matrices of one shape at once, with its settings and its states.

    A matrix that is taller than wide is turned, so that those into a wide layer and those out of it
    are stacked, too. Steps are scaled to the size of AdamW's (Liu et al. 2025), so that both use
    one learning rate.

    Source: Jordan et al. 2024; Liu et al. 2025, section 2.2.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update every matrix that has a gradient; returns the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape.setdefault(tuple(sorted(matrix.shape)), []).append(matrix)
            for matrices in by_shape.values():
                self._update(group, matrices)
        return loss

    def _update(self, group: dict[str, Any], matrices: list[Tensor]) -> None:
        gradients = [cast(Tensor, matrix.grad) for matrix in matrices]
        means = [self._mean_of(matrix) for matrix in matrices]
        torch._foreach_lerp_(means, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, means, group["momentum"])  # Nesterov's
        stacked = torch.stack([u.T if u.shape[0] > u.shape[1] else u for u in updates])
        directions = orthogonalize(
            stacked.bfloat16(), group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        turned = [
            direction.T if matrix.shape[0] > matrix.shape[1] else direction
            for direction, matrix in zip(directions.to(stacked.dtype), matrices, strict=True)
        ]
        rate = group["lr"]
        torch._foreach_mul_(matrices, 1 - rate * group["weight_decay"])
        scale = 0.2 * math.sqrt(max(matrices[0].shape))
        torch._foreach_add_(matrices, turned, alpha=-rate * scale)

    def _mean_of(self, matrix: Tensor) -> Tensor:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        return state["momentum_buffer"]


def orthogonalize(
    x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """About the nearest matrices with equal singular values, by Newton-Schulz iterations.

    Args:
        x: (matrices, rows, columns), of no more rows than columns.
        coefficients: of x, of its cube and of its fifth power in an iteration.
        steps: how many iterations.
        eps: the smallest norm that a matrix is divided by.

    Returns:
        Tensor of the same shape.

    Source: Jordan et al. 2024.
    """
    a, b, c = coefficients
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def make_muon(
    model: nn.Module, groups: list[dict[str, Any]], adamw: dict[str, Any], momentum: float
) -> JointOptimizer:
    """Muon for the matrices of hidden layers and AdamW for all other parameters.

    Args:
        groups: parameters with weight decay, then those without.
        adamw: the settings of AdamW.
        momentum: of Muon.
    """
    hidden = _hidden_matrices(model)
    decayed, plain = groups
    matrices = [p for p in decayed["params"] if id(p) in hidden]
    rest = [p for p in decayed["params"] if id(p) not in hidden]
    first = StackedMuon([{**decayed, "params": matrices}], lr=adamw["lr"], momentum=momentum)
    second = torch.optim.AdamW([{**decayed, "params": rest}, plain], **adamw)
    return JointOptimizer(first, second)


def _hidden_matrices(model: nn.Module) -> set[int]:
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    return {
        id(p)
        for name, p in model.named_parameters()
        if p.ndim == 2 and id(p) not in tables and not set(name.split(".")) & set(_NOT_HIDDEN)
    }
