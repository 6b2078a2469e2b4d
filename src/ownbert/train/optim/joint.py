"""Combines several optimisers for different parameters into one."""

from typing import Any

import torch


class JointOptimizer(torch.optim.Optimizer):
    """Optimisers with shared groups and state, so that schedules and saved states see only one.

    Args:
        parts: optimisers with disjoint parameters; their groups are concatenated.
    """

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
        """Update with all optimisers; return the loss of ``closure``, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss
