"""Whether there are compiled loops (``loops``), and how they are run on tensors.

They are there where numba is installed, ``pip install "ownbert[fast]"``; without it the same is
computed by PyTorch's operations, of which each reads and writes all of its numbers again. numba
compiles a loop when it is first called, for some tenths of a second, and keeps it on disk
(``NUMBA_CACHE_DIR``).
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import ModuleType

import torch
from torch import Tensor

# Less work is not worth waking a second thread, which takes some 70 microseconds.
_SHARED = 1 << 19


@lru_cache
def loops() -> ModuleType | None:
    """The compiled loops, or None where numba is missing or told not to compile."""
    try:
        from numba.core import config

        if config.DISABLE_JIT:  # pyright: ignore[reportAttributeAccessIssue]
            return None
        from ownbert.nn.kernels import loops as found
    except ImportError:
        return None
    return found


def loops_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled loops, if they take tensors like these: on a CPU, float32 or bfloat16."""
    for x in tensors:
        if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
            return None
    return loops()


def run(loop: Callable[..., None], size: int, *args) -> None:
    """Call a loop on all parts of its work, each in a thread.

    Args:
        size: how many numbers there are to compute.
        args: what it takes after ``part`` and ``parts``; tensors, also in tuples, must be
            contiguous.
    """
    given = [_given(x) for x in args]
    parts = parts_of(size)
    others = [_threads().submit(loop, p, parts, *given) for p in range(1, parts)]
    loop(0, parts, *given)
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
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), "loops")


# The threads of a process do not live on in its forks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)
