"""Settings of the machine: device, precision, memory allocation."""

import ctypes
import sys
from typing import TYPE_CHECKING

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.language.messages import Option

if TYPE_CHECKING:
    import torch

PRECISIONS = ("float32", "bfloat16", "auto")
# Parameters of mallopt(3), from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def pick_device(name: str) -> "torch.device":
    """The device for "cpu", "cuda", "cuda:1" or "auto" (the GPU if there is one)."""
    kind, _, number = name.partition(":")
    if name not in ("auto", "cpu", "cuda") and not (kind == "cuda" and number.isdecimal()):
        raise InputError("device {name!r} is not known; use one of auto, cpu, cuda", name)
    import torch

    count = torch.cuda.device_count()
    if kind == "cuda" and int(number or 0) >= count:
        raise InputError(
            "{device}: PyTorch can use {count} GPUs of this machine; use cpu",
            Option("--device", name),
            count,
        )
    if name == "auto":
        name = "cuda" if count else "cpu"
    return torch.device(name)


def pick_precision(name: str, device: "torch.device | str") -> str:
    """Resolve a precision; "auto" is bfloat16 if the device multiplies it faster than float32."""
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
    """Whether the processor has bfloat16 products that oneDNN may use; if ONEDNN_MAX_CPU_ISA limits
    oneDNN to AVX2, bfloat16 is much slower than float32."""
    import torch

    from ownbert.nn.layers import onednn_has_linear

    return torch.cpu._is_avx512_bf16_supported() and onednn_has_linear(torch.bfloat16)


def keep_memory() -> None:
    """Make glibc keep freed memory. By default it returns large buffers to the system after every
    operation, and allocating them again takes longer than the operation itself."""
    if glibc := _glibc():
        glibc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        glibc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def return_memory() -> None:
    """Return unused memory to the system, after work that needed more than later steps will."""
    if glibc := _glibc():
        glibc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library if it is glibc, else None."""
    if sys.platform != "linux":
        return None
    try:
        library = ctypes.CDLL("libc.so.6")
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None


def autocast(device: "torch.device", precision: str) -> "torch.autocast":
    """A context for bfloat16 matrix products if ``precision`` is bfloat16; weights stay float32."""
    import torch

    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
