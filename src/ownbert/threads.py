"""How many threads compute: as many as there are free cores.

Threads of OpenMP wait for each other after every operation. Beside other programs one of them is
always without a core, and the rest wait for it: two threads on two busy cores take many times as
long as one (docs/lab/machine.md). So torch gets as many threads as there are free cores, and looks
once a second.
"""

import os
import sys
import time
from pathlib import Path

_STAT = Path("/proc/stat")
# Seconds between two looks; clock ticks over a shorter time say little.
_SECONDS = 1.0
# Fields of the first line of /proc/stat: idle, and waiting for a disk.
_IDLE = slice(4, 6)


class _Cores:
    """What this process and all others have had of the cores since the last look."""

    def __init__(self) -> None:
        self.most = len(os.sched_getaffinity(0))
        self.at, self.own, self.idle = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of the clock, of this process, and of idle cores."""
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        idle = sum(map(int, fields[_IDLE])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), time.process_time(), idle

    def due(self) -> bool:
        return time.monotonic() - self.at >= _SECONDS

    def free(self) -> int:
        """Cores that are idle or already this process's."""
        at, own, idle = self._now()
        found = (idle - self.idle + own - self.own) / (at - self.at)
        self.at, self.own, self.idle = at, own, idle
        return max(1, min(self.most, round(found)))


_cores: _Cores | None = None


def share_the_machine() -> None:
    """From now on ``adapt_threads`` decides; call it before torch is loaded.

    Nothing is done where the user has set OMP_NUM_THREADS, or the system does not tell how busy its
    cores are.
    """
    global _cores
    # How long threads spin while they wait for each other. The default is so long that a second
    # program on the machine slows a run down tenfold.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if "OMP_NUM_THREADS" not in os.environ and _STAT.exists():
        _cores = _Cores()


def adapt_threads() -> None:
    """Let torch compute in as many threads as there are free cores.

    Called between batches, in the thread that computes. Sums may differ in their last digits.
    """
    if _cores is None or not _cores.due() or "torch" not in sys.modules:
        return
    import torch

    count = _cores.free()
    if count != torch.get_num_threads():
        torch.set_num_threads(count)
