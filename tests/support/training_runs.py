"""Runs of ``ownbert pretrain`` as a user starts them, and what is compared of them."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ownbert.checkpoint import load
from support.cli import run_cli

COMMON = ("--max-length", "48", "--batch-tokens", "512", "--log-every", "1")
# Of a row of the log, what the clock decides.
CLOCK = ("seconds", "tokens_per_second", "mfu")


def command(tokens: Path | None, folder: Path, *options: str, processes: int = 1) -> list[str]:
    start = [sys.executable, "-m", "ownbert"]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        start = [sys.executable, *launcher, "--master-port", "0", "--standalone", "-m", "ownbert"]
    store = [] if tokens is None else [str(tokens)]
    return [*start, "pretrain", *store, "-o", str(folder), *COMMON, *options]


def start(tokens: Path | None, folder: Path, *options: str, processes: int = 1):
    return subprocess.Popen(
        command(tokens, folder, *options, processes=processes),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def run_ranks(tokens: Path, folder: Path, *options: str, count: int = 2) -> None:
    """To their end, processes that find what torchrun would tell them. They are forks: torchrun
    and new interpreters would take longer to start than the runs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # free, and nobody else gets it at once
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    given = (tokens, folder, options, shared)
    torch.multiprocessing.start_processes(_run_rank, given, nprocs=count, start_method="fork")


def _run_rank(
    rank: int, tokens: Path, folder: Path, options: tuple[str, ...], shared: dict[str, str]
) -> None:
    os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
    run_here(tokens, folder, *options)


def run_here(tokens: Path, folder: Path, *options: str) -> None:
    """The same in this process, to its end."""
    done = run_cli("pretrain", tokens, "-o", folder, *COMMON, *options)
    assert done.returncode == 0, done.stderr


def finish(run: subprocess.Popen, seconds: float = 120) -> str:
    """What a run that must succeed says."""
    out, err = run.communicate(timeout=seconds)
    assert run.returncode == 0, err
    return out


def rows(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def learnt(folder: Path) -> list[dict]:
    """The rows of the log without what the clock decides."""
    return [{k: v for k, v in row.items() if k not in CLOCK} for row in rows(folder)]


def assert_same(folder: Path, other: Path) -> None:
    """Log and weights of two runs are the same to the last bit."""
    assert learnt(folder) == learnt(other)
    weights = [load(f).state_dict() for f in (folder, other)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        log = folder / "log.jsonl"
        if log.exists() and len(log.read_text().splitlines()) >= step:
            return
        time.sleep(0.02)
    pytest.fail(f"no step {step} within a minute")
