"""Attention by PyTorch's variable-length kernel, on a GPU.

T tokens (T' of the keys), H heads, K head size.
"""

import importlib.util
import inspect
from functools import lru_cache

import torch
from torch import Tensor

from ownbert.batches.layout import Layout

# Minimum compute capability for flash attention.
_CAPABILITY = (8, 0)
_LARGEST_HEAD = 256


def unsupported(q: Tensor, layout: Layout) -> str | None:
    """The reason why the kernel cannot handle queries (T, H, K) and layout; None if it can."""
    if q.device.type != "cuda":
        return f"requires a GPU, not {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16):
        return f"supports float16 and bfloat16, not {q.dtype}"
    if q.shape[-1] % 8 or q.shape[-1] > _LARGEST_HEAD:
        return f"supports heads of 8, 16, ... {_LARGEST_HEAD} channels, not {q.shape[-1]}"
    cached = layout.keys is not None and (layout.causal or layout.window is not None)
    if layout.mask is not None or layout.ranks is not None or cached:
        return "supports neither masks nor a cache"
    return _missing(q.device)


@lru_cache
def _missing(device: torch.device) -> str | None:
    """Missing features of this GPU or PyTorch; cached, because every layer asks."""
    if torch.version.hip or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return "needs an NVIDIA GPU of the Ampere generation or later"
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        from torch.nn.attention.varlen import varlen_attn

        if "window_size" in inspect.signature(varlen_attn).parameters:
            return None
    return f"is not in PyTorch {torch.__version__}"


def attend_varlen(q: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
    """See ``ownbert.nn.attention.attend.attend``: q (T, H, K), k and v (T', H, K) -> (T, H, K)."""
    from torch.nn.attention.varlen import varlen_attn

    keys = layout.keys or layout
    far = -1 if layout.window is None else layout.window  # -1: all
    return varlen_attn(
        q,
        k,
        v,
        layout.offsets,
        keys.offsets,
        layout.max_seqlen,
        keys.max_seqlen,
        # Number of visible tokens before and after a query.
        window_size=(far, 0 if layout.causal else far),
    )  # pyright: ignore[reportReturnType]
