"""The number of compute threads: one per free core.

OpenMP threads synchronise after every operation. When other programs run, some thread always lacks
a core, and the rest wait for it: two threads on two busy cores take many times as long as one
(docs/lab/machine.md). So the number of threads is adapted to the free cores once a second.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ownbert.time_limit import counted_now

_STAT = Path("/proc/stat")
# Seconds between updates; clock ticks over a shorter time are too few.
_SECONDS = 1.0
# Fields of the first line of /proc/stat: idle and iowait.
_IDLE = slice(4, 6)


class _Cores:
    """CPU time of this process and of all others since the last update."""

    def __init__(self) -> None:
        self.most = len(os.sched_getaffinity(0))
        self.at, self.own, self.idle = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Wall-clock seconds, CPU seconds of this process, and idle seconds of all cores."""
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        idle = sum(map(int, fields[_IDLE])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), time.process_time(), idle

    def due(self) -> bool:
        return time.monotonic() - self.at >= _SECONDS

    def free(self) -> int:
        """Number of cores that are idle or used by this process."""
        at, own, idle = self._now()
        free = (idle - self.idle + own - self.own) / (at - self.at)
        self.at, self.own, self.idle = at, own, idle
        return max(1, min(self.most, round(free)))


_cores: _Cores | None = None


def _may_adapt() -> bool:
    """Whether the user has chosen no number of threads, and the load of the cores is known."""
    return "OMP_NUM_THREADS" not in os.environ and _STAT.exists()


def share_the_machine() -> None:
    """Enable ``adapt_threads``; call it before torch is imported.

    It has no effect if the user has set OMP_NUM_THREADS, or if the system does not report the load
    of its cores.
    """
    global _cores
    # Spin count of waiting threads. The default is so large that a second program on the machine
    # slows a run down tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if _may_adapt():
        _cores = _Cores()


@contextmanager
def sharing_the_machine() -> Iterator[None]:
    """Enable ``adapt_threads`` for a long step called from Python, up to the number of threads that
    torch has; the number is restored afterwards."""
    global _cores
    if _cores is not None or not _may_adapt():
        yield
        return
    import torch

    before, _cores = torch.get_num_threads(), _Cores()
    _cores.most = min(_cores.most, before)
    try:
        yield
    finally:
        _cores = None
        torch.set_num_threads(before)


@contextmanager
def fixed_threads() -> Iterator[None]:
    """Disable ``adapt_threads``, for results that must not depend on the load of the machine."""
    global _cores
    before, _cores = _cores, None
    try:
        yield
    finally:
        _cores = before


def adapt_threads() -> None:
    """Set torch's number of threads to the number of free cores.

    Called between batches, in the compute thread. Sums may differ in their last digits.
    """
    count = counted_now(_free_cores)
    if not count:
        return
    import torch

    if count != torch.get_num_threads():
        torch.set_num_threads(count)


def _free_cores() -> int:
    """The number of free cores if it is due; 0 if the number of threads stays."""
    if _cores is None or not _cores.due() or "torch" not in sys.modules:
        return 0
    return _cores.free()
