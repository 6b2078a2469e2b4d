"""Normalisation layers. D hidden."""

import torch
from torch import Tensor, nn

from ownbert.config.encoder import EncoderConfig


class NoNorm(nn.Module):
    """Scale and shift of each channel instead of LayerNorm: (..., D) -> (..., D).

    Source: Sun et al. 2020, equation 1.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.bias

    def extra_repr(self) -> str:
        return f"{self.weight.numel()}"


def make_norm(config: EncoderConfig, size: int, *, eps: float | None = None) -> nn.Module:
    """LayerNorm, RMSNorm (T5), or MobileBERT's ``NoNorm``."""
    if config.mobile is not None and config.mobile.normalization_type == "no_norm":
        return NoNorm(size)
    eps = config.layer_norm_eps if eps is None else eps
    if config.norm_type == "rms_norm":
        return nn.RMSNorm(size, eps=eps)
    return nn.LayerNorm(size, eps=eps, bias=config.norm_bias)
