"""Threads give way to other programs."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ownbert import threads
from ownbert.time_limit import OutOfTime, check_time, seconds_left, time_limit

pytestmark = pytest.mark.skipif(
    not Path("/proc/stat").exists(), reason="needs /proc/stat, which tells how busy cores are"
)
SPIN = "while True: pass"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute while inside."""
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
    try:
        time.sleep(0.3)  # until they have started
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_there_is_one_thread_where_others_have_all_cores():
    cores = threads._Cores()
    assert 1 <= cores.free() <= len(os.sched_getaffinity(0))
    with busy(len(os.sched_getaffinity(0))):
        cores.free()
        time.sleep(0.6)
        assert cores.free() == 1


ADAPTED = """
import time
from ownbert.threads import adapt_threads, share_the_machine
share_the_machine()
import torch
before = torch.get_num_threads()
time.sleep(1.1)
adapt_threads()
print(before, torch.get_num_threads())
"""


@pytest.mark.parametrize("chosen", [None, "2"])
def test_torch_gets_as_many_threads_as_there_are_free_cores(chosen: str | None):
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    environment |= {} if chosen is None else {"OMP_NUM_THREADS": chosen}
    with busy(len(os.sched_getaffinity(0))):
        command = [sys.executable, "-c", ADAPTED]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    # What the user has chosen stays.
    assert after == (1 if chosen is None else before)


def test_limits_of_time_hold_inside_each_other():
    check_time()
    assert seconds_left() == float("inf")
    with time_limit(60):
        with time_limit(1000):
            assert seconds_left() <= 60
        with pytest.raises(OutOfTime), time_limit(0):
            check_time()
        check_time()
