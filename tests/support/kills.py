"""Processes that are killed while they write."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path


def kill_when_written(command: Sequence[str], output: Path) -> Path:
    """Start a command and kill it as soon as something of ``output`` is written; the file beside it
    that holds what there is so far."""
    part = output.with_name(f".{output.name}.part")
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while run.poll() is None and not (part.exists() and part.stat().st_size):
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert not output.exists()
    return part
