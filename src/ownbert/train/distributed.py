"""The processes of a run, started by torchrun (or Slurm); usually a single one.

All processes draw the same batches and each takes its share of every batch, so a step does not
depend on the number of processes. Joint decisions (to stop, to save by the clock) are made with a
single all-reduce before each step.
"""

import datetime
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ownbert.checks import whole_in_environment
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.nn.undrawn import Undrawn
from ownbert.objectives.learner import Learner
from ownbert.objectives.objective import Objective

# Timeout for waiting on other processes: saving a large model takes minutes.
_TIMEOUT = datetime.timedelta(minutes=30)


@dataclass(frozen=True)
class World:
    """The processes of a run; ``ours``: whether ``join`` created the process group, rather than the
    calling program."""

    rank: int = 0
    size: int = 1
    ours: bool = False

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """The sums of ``values`` over all processes."""
        if self.size == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(summed)
        return summed.tolist()

    def wait(self) -> None:
        """Wait until all processes arrive (barrier)."""
        if self.size > 1:
            dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes by rank, in the first process; empty in the others."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size if self.first else []
        dist.gather_object(value, values if self.first else None)
        return values

    def agree(self, problem: str | None) -> None:
        """Raise ``InputError`` in all processes if one of them has a problem."""
        if self.size == 1:
            problems = [problem]
        else:
            problems = [None] * self.size
            dist.all_gather_object(problems, problem)
        if messages := [message for message in problems if message]:
            raise InputError("{problem}", messages[0])

    def on_rank_zero(self, work: Callable[[], object]) -> None:
        """Run ``work`` in the first process only; its ``InputError`` is raised in all processes."""
        problem = None
        if self.first:
            try:
                work()
            except InputError as error:
                problem = str(error)
        self.agree(problem)


ALONE = World()


def under_torchrun() -> bool:
    """Whether a launcher such as torchrun has started several processes."""
    return whole_in_environment("WORLD_SIZE", 1) > 1


def join(device: torch.device) -> World:
    """Connect to the other processes of the run, if there are any."""
    if not under_torchrun():
        return ALONE
    ours = not dist.is_initialized()
    if ours:
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                raise InputError(
                    "the environment variable WORLD_SIZE is {environ}, but {name} is not set; "
                    "start with torchrun, or unset WORLD_SIZE",
                    os.environ["WORLD_SIZE"],
                    name,
                )
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_TIMEOUT)
    if device.type == "cuda":
        torch.cuda.set_device(whole_in_environment("LOCAL_RANK", dist.get_rank()))
    return World(dist.get_rank(), dist.get_world_size(), ours)


def leave(world: World) -> None:
    if world.ours and dist.is_initialized():
        dist.destroy_process_group()


def copy_from_first(module: nn.Module, world: World) -> None:
    """Broadcast the weights of the first process to all processes."""
    if world.size > 1:
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, 0)


def shard(learner: Learner, world: World) -> None:
    """Shard weights, gradients and optimiser state over the processes by block (``fully_shard``);
    call it before the optimiser is created."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(learner.model.device.type, (world.size,))
    for model in filter(None, (learner.model, learner.generator)):
        for stack in filter(None, (model.encoder, model.decoder)):
            for block in stack.blocks:
                fully_shard(block, mesh=mesh)
    fully_shard(learner, mesh=mesh)


def is_sharded(module: nn.Module) -> bool:
    if not (dist.is_available() and dist.is_initialized()):
        return False  # saves a loop over all weights in every step
    return any(hasattr(p, "full_tensor") for p in module.parameters())


def reshard(learner: nn.Module) -> None:
    """Free the full weights gathered by a forward pass: until then the parameters are not the
    tensors known to the optimiser."""
    for module in learner.modules():
        if hasattr(module, "reshard"):
            module.reshard()  # pyright: ignore[reportCallIssue]


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a possibly sharded one; all processes must call it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # pyright: ignore


def data_parallel(learner: Learner, objectives: Sequence[Objective], world: World) -> nn.Module:
    """Wrap the learner so that gradients are averaged over the processes."""
    if world.size == 1 or is_sharded(learner):
        return learner
    # Parameters that are not used in the phase get no gradient, and DDP would wait for it; DDP
    # reads requires_grad in its constructor.
    used = learner.used(objectives)
    unused = [p for p in learner.parameters() if p not in used]
    for parameter in unused:
        parameter.requires_grad_(False)
    module = DistributedDataParallel(learner, gradient_as_bucket_view=True)
    for parameter in unused:
        parameter.requires_grad_(True)
    return module


def gradient_sync(module: nn.Module, last: bool) -> AbstractContextManager:
    """A context for the backward pass of a micro-batch: gradients are averaged over the processes
    only in the ``last`` one of a step."""
    if isinstance(module, DistributedDataParallel):
        return nullcontext() if last else module.no_sync()
    if is_sharded(module):
        module.set_requires_gradient_sync(last)  # pyright: ignore[reportCallIssue]
    return nullcontext()


def is_lost(error: BaseException) -> bool:
    """Whether an error means that another process has terminated."""
    signs = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    lost = isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)
    return lost and isinstance(error, RuntimeError)


def first_to_report() -> bool:
    """Whether this is the first process to report how the run ended; others stay silent."""
    if not under_torchrun():
        return True
    try:
        store = dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=datetime.timedelta(seconds=5),
        )
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)
        return store.add(f"ownbert/reported/{restarts}", 1) == 1
    except (RuntimeError, KeyError, ValueError):
        return True


def gather_full_model(model: Model) -> Model:
    """The model itself, or, if its weights are sharded, a copy with full weights on the CPU; all
    processes must call it."""
    if not is_sharded(model):
        return model
    weights = {name: full_tensor(tensor).cpu() for name, tensor in model.state_dict().items()}
    with Undrawn():
        complete = Model(
            model.config,
            list(model.specs.values()),
            pooler=model.pooler is not None,
            labels=model.labels,
            model_type=model.model_type,
            decoder=None if model.decoder is None else model.decoder.config,
            second_reading=model.second_reading,
            share_embeddings=model.share_embeddings,
        )
    complete.load_state_dict(weights)
    return complete
