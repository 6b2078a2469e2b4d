"""Threads give way to other programs."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ownbert import pretrain, threads
from ownbert.time_limit import OutOfTime, check_time, seconds_left, time_limit

pytestmark = pytest.mark.skipif(
    not Path("/proc/stat").exists(), reason="needs /proc/stat, which tells how busy cores are"
)
SPIN = "print(flush=True)\nwhile True: pass"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Processes that compute while inside."""
    line = [sys.executable, "-c", SPIN]
    others = [subprocess.Popen(line, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == b""  # it has started
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_there_is_one_thread_where_others_have_all_cores():
    cores = threads._Cores()
    assert 1 <= cores.free() <= len(os.sched_getaffinity(0))
    with busy(len(os.sched_getaffinity(0))):
        cores.free()
        time.sleep(0.3)
        assert cores.free() == 1


@pytest.fixture
def many_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """One thread more than there are cores; what the user has chosen is not known yet."""
    before, many = torch.get_num_threads(), len(os.sched_getaffinity(0)) + 1
    monkeypatch.setattr(threads, "_cores", None)
    monkeypatch.setattr(threads, "_SECONDS", 0.2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "3000")
    torch.set_num_threads(many)
    yield many
    torch.set_num_threads(before)


def test_torch_gets_as_many_threads_as_there_are_free_cores(many_threads: int):
    with busy(len(os.sched_getaffinity(0))):
        threads.share_the_machine()
        time.sleep(0.3)
        threads.adapt_threads()
    assert torch.get_num_threads() == 1


def test_python_has_its_threads_back_after_a_long_step(many_threads: int):
    with busy(len(os.sched_getaffinity(0))), threads.sharing_the_machine():
        time.sleep(0.3)
        threads.adapt_threads()
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == many_threads


def test_a_run_limited_by_steps_keeps_its_threads(
    many_threads: int, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its sums, also those of its initial weights, must not depend on other programs."""
    monkeypatch.setattr(threads, "_SECONDS", 0.0)
    monkeypatch.setattr(threads._Cores, "free", lambda cores: 1)
    threads.share_the_machine()
    pretrain(topics / "tokens", tmp_path, max_steps=1, max_length=32, quiet=True)
    assert torch.get_num_threads() == many_threads
    threads.adapt_threads()
    assert torch.get_num_threads() == 1


def test_threads_that_the_user_has_chosen_stay(many_threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", str(many_threads))
    threads.share_the_machine()
    time.sleep(0.3)
    threads.adapt_threads()
    assert torch.get_num_threads() == many_threads


def test_limits_of_time_hold_inside_each_other():
    check_time()
    assert seconds_left() == float("inf")
    with time_limit(60):
        with time_limit(1000):
            assert seconds_left() <= 60
        with pytest.raises(OutOfTime), time_limit(0):
            check_time()
        check_time()
