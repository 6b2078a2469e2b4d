"""The machine that a run uses: device, precision, memory allocation."""

import ctypes
import sys
from typing import TYPE_CHECKING

from ownbert.checks import known
from ownbert.errors import InputError

if TYPE_CHECKING:
    import torch

PRECISIONS = ("float32", "bfloat16", "auto")
# mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def pick_device(name: str) -> "torch.device":
    """The device for "cpu", "cuda", "cuda:1" or "auto" (the GPU if there is one).

    Raises:
        InputError: the name is another one, or there is no such GPU.
    """
    kind, _, number = name.partition(":")
    if name not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise InputError(f"device {name!r} is not known; one of auto, cpu, cuda")
    import torch

    count = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= count:
        raise InputError(f"--device {name}: PyTorch can use {count} GPUs of this machine; take cpu")
    if name == "auto":
        name = "cuda" if count else "cpu"
    return torch.device(name)


def pick_precision(name: str, device: "torch.device | str") -> str:
    """The precision that ``name`` stands for.

    device: what it computes on, or the name of that as for ``pick_device``.

    That is ``name`` itself, or for "auto" bfloat16 if the device multiplies it faster than float32,
    else float32.

    Raises:
        InputError: the name is another one.
    """
    known(*PRECISIONS)("precision", name)
    if name != "auto":
        return name
    import torch

    target = pick_device(device) if isinstance(device, str) else device
    if target.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bfloat16" if native else "float32"
    return "bfloat16" if cpu_multiplies_bfloat16() else "float32"


def cpu_multiplies_bfloat16() -> bool:
    """Whether the processor has products of bfloat16, and oneDNN may use them: where the variable
    ONEDNN_MAX_CPU_ISA limits it to AVX2, they would take many times as long as those of float32."""
    import torch

    from ownbert.nn.fast.linear_layers import onednn_has_linear

    return torch.cpu._is_avx512_bf16_supported() and onednn_has_linear(torch.bfloat16)


def keep_memory() -> None:
    """Tell glibc to keep freed memory.

    By default it returns large buffers to the system after every operation, and requesting them
    again costs more than the operation itself.
    """
    if glibc := _glibc():
        glibc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        glibc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_memory() -> None:
    """Tell glibc to return what it has kept: after work that took more than what follows will."""
    if glibc := _glibc():
        glibc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """None: there is another C library."""
    if sys.platform != "linux":
        return None
    try:
        found = ctypes.CDLL("libc.so.6")
        return found if found.mallopt and found.malloc_trim else None
    except (OSError, AttributeError):
        return None


def autocast(device: "torch.device", precision: str) -> "torch.autocast":
    """A context for matrix products in bfloat16 if ``precision`` is; weights stay in float32."""
    import torch

    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
