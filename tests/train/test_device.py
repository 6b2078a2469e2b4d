"""Memory that is kept and returned."""

import subprocess
import sys

import pytest

CODE = """
import resource
from pathlib import Path
import torch
from ownbert.train.device import keep_memory, return_memory

def size():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20

keep_memory()
before = size()
torch.ones(64 << 20)
kept = size()
return_memory()
print(before, kept, size())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_memory_is_kept_until_it_is_returned():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    before, kept, after = map(int, done.stdout.split())
    assert kept > before + 200
    assert after < before + 50
