"""An optimiser for large tables with few updated rows per step."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT


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
        """Update the rows with gradients; return the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(group, parameter, parameter.grad.coalesce())
        return loss

    def _update(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        state, rows, values = self.state[parameter], gradient.indices()[0], gradient.values()
        if not state:
            state["sum"] = parameter.new_zeros(len(parameter), 1)
        state["sum"].index_add_(0, rows, values.square().mean(1, keepdim=True))
        deviation = state["sum"][rows].sqrt_().add_(group["eps"])
        parameter.index_add_(0, rows, values / deviation, alpha=-group["lr"])
