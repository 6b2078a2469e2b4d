"""LAMB: Adam with layer-wise scaling of the update to the norm of the weights."""

# torch's foreach functions have names with an underscore.
# pyright: reportPrivateImportUsage=false

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


class Lamb(torch.optim.Optimizer):
    """LAMB for very large batches (You et al. 2020, algorithm 2, with the identity for phi).

    The update of a tensor is Adam's direction plus weight decay, scaled by the trust ratio: the
    norm of the weights divided by the norm of the direction, or 1 if either is 0.

    Args:
        adapt: whether to use the trust ratio; biases and LayerNorms have none in the authors' code.
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
        """Update all parameters with gradients; return the loss of ``closure``, if given."""
        loss = closure_loss(closure)
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        gradients = [cast(Tensor, p.grad) for p in parameters]
        states = [self._state_of(p) for p in parameters]
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
            norms = zip(torch._foreach_norm(parameters), torch._foreach_norm(update), strict=True)
            torch._foreach_mul_(update, [_trust_ratio(*pair) for pair in norms])
        torch._foreach_add_(parameters, update, alpha=-group["lr"])

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)  # on the CPU: it is read in every step
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state


def _trust_ratio(weights: Tensor, update: Tensor) -> Tensor:
    """The ratio of two norms, computed without synchronisation."""
    ratio = weights / update
    return torch.where((weights > 0) & (update > 0), ratio, torch.ones_like(ratio))


def closure_loss(closure: Callable[[], Any] | None) -> Any:
    """The loss of the closure given to an optimiser's step, computed with gradients; None without
    one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
