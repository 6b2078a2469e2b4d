"""Whether there are compiled loops (``loops``), and how they are run on tensors.

They are there where numba is installed, ``pip install "ownbert[fast]"``; without it the same is
computed by PyTorch's operations, of which each reads and writes all of its numbers again. numba
compiles a loop when it is first called, for some tenths of a second, and keeps it on disk
(``NUMBA_CACHE_DIR``).
"""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ownbert.nn.fast.loops import Loop

# Less work is not worth waking a second thread.
_SHARED = 1 << 18


@lru_cache
def loops() -> ModuleType | None:
    """The compiled loops, or None where numba is missing or told not to compile."""
    try:
        from numba.core import config

        if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            return None
        from ownbert.nn.fast import loops as found
    except ImportError:
        return None
    return found


def loops_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled loops, if they take tensors like these: on a CPU, float32 or bfloat16."""
    for x in tensors:
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
            return None
    return loops()


def run(loop: "Loop", size: int, *args) -> None:
    """Call a loop on all parts of its work, each in a thread.

    Args:
        size: how many numbers there are to compute.
        args: what it takes after ``part`` and ``parts``; tensors, also in tuples, must be
            contiguous.
    """
    given = [_given(x) for x in args]
    parts = parts_of(size)
    if parts > 1 and _has_team():
        loop.parts(parts, *given)
        return
    others = [_threads().submit(loop.part, p, parts, *given) for p in range(1, parts)]
    loop.part(0, parts, *given)
    for other in others:
        other.result()


def parts_of(size: int) -> int:
    """Into how many parts work on so many numbers is cut."""
    return torch.get_num_threads() if size >= _SHARED else 1


def _given(x: object) -> object:
    """NumPy's view of a tensor; of bfloat16, its bits."""
    if isinstance(x, tuple):
        return tuple(map(_given, x))
    if not isinstance(x, Tensor):
        return x
    x = x.detach()
    return (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()


@lru_cache
def _has_team() -> bool:
    """Whether loops can run in PyTorch's own threads."""
    from ownbert.nn.fast import openmp

    return not _forked and openmp.found()


@lru_cache
def _threads() -> ThreadPoolExecutor:
    """Threads of ours in their place: a call takes some 70 microseconds, and PyTorch's hold their
    cores for a while after each operation."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), "loops")


_forked = False


def _after_fork() -> None:
    """No threads live on in a fork; OpenMP would wait for those that it had."""
    global _forked
    _forked = _forked or _has_team.cache_info().currsize > 0
    _threads.cache_clear()
    _has_team.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
