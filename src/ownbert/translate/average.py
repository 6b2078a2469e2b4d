"""The mean of the weights of the last saved states (Vaswani et al. 2017, section 6.1)."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ownbert.objectives import Learner
from ownbert.train.distributed import World
from ownbert.train.state_files import Damaged, SavedState, read_tensors, saved


def use_average(
    learner: Learner,
    output: Path,
    count: int,
    world: World,
    *,
    evaluate: Callable[[], Mapping[str, float]],
    say: Callable[[str], None],
) -> Mapping[str, float]:
    """Put the mean of the last ``count`` saved states in the place of the last, where its held-out
    loss is lower: early in a run, while all is on the move, it is not. Returns the measures of
    what stays."""
    last = evaluate()
    if count < 2:
        return last
    kept = {name: p.detach().clone() for name, p in learner.named_parameters()}
    found = average(learner, output, count, world)
    mean = evaluate()
    better = mean["loss"] <= last["loss"]
    if not better:
        _take(learner, kept)
    say(
        f"held-out loss {last['loss']:.3f}, of the mean of the last {found} saved states "
        f"{mean['loss']:.3f}: the {'mean' if better else 'last weights'} stay"
    )
    return mean if better else last


def average(learner: Learner, output: Path, count: int, world: World) -> int:
    """Give the model the mean of the weights of the last ``count`` saved states below ``output``
    that are whole; how many there were."""
    paths = [path for path in saved(output)[-count:] if _is_whole(path)]
    parameters = dict(learner.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for path in paths:
        weights = {name: torch.empty_like(p) for name, p in parameters.items()}
        read_tensors(path, weights, world)
        for name, tensor in weights.items():
            total[name] += tensor
    _take(learner, {name: tensor / len(paths) for name, tensor in total.items()})
    return len(paths)


def _is_whole(path: Path) -> bool:
    try:
        SavedState.read(path).verify()
    except Damaged:
        return False
    return True


@torch.no_grad()
def _take(learner: Learner, weights: Mapping[str, torch.Tensor]) -> None:
    for name, parameter in learner.named_parameters():
        parameter.copy_(weights[name])
