"""Provides compiled loops (``loops``) if available, and runs them on tensors.

They require numba, ``pip install "ownbert[fast]"``; otherwise PyTorch operations compute the same,
each reading and writing all elements. numba compiles a loop on its first call, which takes some
tenths of a second, and caches it on disk (``NUMBA_CACHE_DIR``).
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

# With fewer elements a second thread does not pay off.
_SHARED = 1 << 18


@lru_cache
def loops() -> ModuleType | None:
    """The compiled loops, or None if numba is missing or its compiler is disabled."""
    try:
        from numba.core import config

        if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            return None
        from ownbert.nn.fast import loops as found
    except ImportError:
        return None
    return found


def loops_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled loops if they support the tensors: on a CPU, float32 or bfloat16."""
    for x in tensors:
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
            return None
    return loops()


def run(loop: "Loop", size: int, *args) -> None:
    """Call a loop on all parts of its work, one per thread.

    Args:
        loop: compiled loop.
        size: number of elements to compute.
        args: arguments after ``part`` and ``parts``; tensors, also in tuples, must be contiguous.
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
    """Number of parts for this number of elements."""
    return torch.get_num_threads() if size >= _SHARED else 1


def _given(x: object) -> object:
    """A NumPy view of a tensor; for bfloat16, of its bits."""
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
    """A fallback thread pool: a call takes some 70 microseconds, and PyTorch's threads stay busy
    for a while after each operation."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), "loops")


_forked = False


def _after_fork() -> None:
    """Threads do not survive a fork; OpenMP would wait for them."""
    global _forked
    _forked = _forked or _has_team.cache_info().currsize > 0
    _threads.cache_clear()
    _has_team.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
