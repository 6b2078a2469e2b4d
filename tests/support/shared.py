"""Folders that take seconds to make and are made once for all processes of the tests."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of the name that ``make`` has filled, here or in another process; the others wait.
    Nobody may write into it afterwards."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of all workers
    folder, finished = root / name, root / f"{name}.finished"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            folder.mkdir()
            make(folder)
            finished.touch()
    return folder
