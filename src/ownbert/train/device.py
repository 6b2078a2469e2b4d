"""The machine a run is on: device, number type, and the allocator's habits."""

import ctypes
import sys

import torch

from ownbert.errors import InputError

# mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def pick_device(name: str) -> torch.device:
    """``auto`` is the GPU where there is one. Raises ``InputError`` for a GPU that is not there."""
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"device {name!r} is not known; one of auto, cpu, cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise InputError("--device cuda: this machine has no GPU that PyTorch can use; take cpu")
    return torch.device("cuda" if name == "cuda" or (name == "auto" and available) else "cpu")


def pick_precision(name: str, device: torch.device) -> str:
    """``auto`` is bfloat16 where the processor multiplies it faster than float32."""
    if name != "auto":
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported() else "float32"
    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


def keep_memory() -> None:
    """Ask glibc to keep freed memory: by default it gives large buffers back to the system after
    every operation, and fetching them again costs more than the operation itself."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return  # another C library: nothing to set
    mallopt(_M_MMAP_THRESHOLD, 1 << 30)
    mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Matrix products in bfloat16 where ``precision`` says so; weights stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
