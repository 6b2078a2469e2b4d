"""One update of the weights from the micro-batches of a step."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch
from ownbert.exceptions import InputError
from ownbert.nn.accumulation import one_update
from ownbert.nn.model import Model
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Loss, Objective
from ownbert.train.device import autocast
from ownbert.train.distributed import ALONE, World, full_tensor, gradient_sync, is_sharded
from ownbert.train.training_settings import Optim


@dataclass(frozen=True)
class StepStats:
    """Statistics of a step in this process: (sum of losses, correct, count) by objective, and the
    gradient norm before clipping."""

    sums: Mapping[str, Sequence]
    norm: Tensor


def step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[Batch],
    counts: Mapping[str, int],
    *,
    objectives: Sequence[Objective],
    optim: Optim,
    rate: float,
    precision: str,
    world: World = ALONE,
) -> StepStats:
    """Update with the mean gradient over micro-batches and processes, at learning rate ``rate``.

    Args:
        module: a ``Learner``, or the result of ``distributed.data_parallel``.
        counts: number of targets of each objective in all micro-batches of all processes; each loss
            is divided by its count, so the gradient does not depend on the split of the step.

    Raises:
        NotANumber: the loss or the gradient is not finite; no weight has been changed.
    """
    learner = module if isinstance(module, Learner) else module.module
    assert isinstance(learner, Learner)
    weights = {o.name: o.weight for o in objectives}
    device = learner.model.device
    sums: dict[str, list] = {}
    learner.train()

    def backward(batch: Batch) -> dict[str, Loss]:
        with autocast(device, precision):
            losses = module(batch.to(device), objectives)
        total = torch.zeros((), device=device)
        for name, loss in losses.items():
            total = total + weights[name] * loss.total / max(1, counts[name])
        # Gradients are averaged over the processes, but the counts are totals.
        (total * world.size).backward()
        return losses

    # Sharded weights are gathered for each batch and must not be cached. A wrapper around the
    # learner waits for the gradients.
    alone = is_sharded(module) or len(micro_batches) == 1
    with nullcontext() if alone else one_update(adds=module is learner):
        for number, batch in enumerate(micro_batches, 1):
            with gradient_sync(module, last=number == len(micro_batches) and not optim.adversarial):
                for name, loss in backward(batch).items():
                    add(sums, name, (loss.total.detach(), loss.correct, loss.count))
    if optim.adversarial:
        with moved_words(learner.model, optim.adversarial):
            for number, batch in enumerate(micro_batches, 1):
                with gradient_sync(module, last=number == len(micro_batches)):
                    backward(batch)
    norm = _clip(learner, optim.clip)
    values = torch.stack([norm, *(total for total, _, _ in sums.values())])
    if world.total([not torch.isfinite(values).all()])[0]:  # in any process
        raise NotANumber
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("scale", 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return StepStats(sums, norm)


@contextmanager
def moved_words(model: Model, length: float) -> Iterator[None]:
    """A context in which the word embeddings are shifted by ``length`` along their gradient, the
    direction of the steepest increase of the loss (Miyato et al. 2017, equation 5, applied to the
    table instead of a text)."""
    table = model.encoder.embeddings.word.weight
    if table.grad is None:
        raise InputError("optim.adversarial perturbs word vectors, but these are frozen")
    before = table.detach().clone()
    norm = table.grad.norm()
    with torch.no_grad():
        table.add_(table.grad * (length / norm.clamp_min(1e-12)))
    try:
        yield
    finally:
        with torch.no_grad():
            table.copy_(before)


def add(sums: dict[str, list], name: str, values: Sequence) -> None:
    """Add (sum of losses, correct, count) to the entry ``name`` of ``sums``."""
    old = sums.get(name, [0.0, 0, 0])
    sums[name] = [a + b for a, b in zip(old, values, strict=True)]


def _clip(learner: Learner, limit: float) -> Tensor:
    """Clip the gradients to a norm of at most ``limit``; return the original norm. Unlike
    clip_grad_norm_, gradients within the limit are not multiplied by one on a CPU."""
    dense, tables = [], []
    for parameter in learner.parameters():
        if (gradient := parameter.grad) is None:
            continue
        if gradient.is_sparse:
            parameter.grad = gradient.coalesce()  # sum duplicate rows
            tables.append(parameter.grad.values())
        else:
            dense.append(parameter)
    total = torch.nn.utils.get_total_norm([*(p.grad for p in dense), *tables])
    norm = full_tensor(total)
    # On a GPU a comparison would synchronise, while a multiplication is cheap.
    if norm.device.type != "cpu" or norm > limit:
        torch.nn.utils.clip_grads_with_norm_(dense, limit, total)
        for rows in tables:
            rows.mul_((limit / (total + 1e-6)).clamp(max=1.0))
    return norm


class NotANumber(Exception):
    """The loss or the gradient is not finite; no weight has been changed."""


def count_targets(objectives: Sequence[Objective], micro_batches: Sequence[Batch]) -> list[int]:
    """The number of targets of each objective in the micro-batches of this process."""
    return [sum(0 if b.dummy else o.count(b) for b in micro_batches) for o in objectives]


def seed_step(seed: int, number: int, world: World = ALONE) -> None:
    """Seed the random numbers of a step (dropout, replaced tokens). The seed is a pure function of
    the arguments, so that a resumed run draws the same numbers."""
    entropy = (seed, number, world.rank)
    drawn = int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]) >> 1
    # Of a kind of device that is not in use, torch.manual_seed would store the seed with a stack
    # trace, at each step: 0.3 ms and more.
    torch.default_generator.manual_seed(drawn)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(drawn)
