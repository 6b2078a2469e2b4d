"""What a tiny VisionTransformer of timm computes, as timm_vit.npz: weights, pictures, logits.

    python tests/golden/make_timm.py

Needs timm, and with it a torchvision that fits the torch installed. Made with timm 1.0.31.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

GOLDEN = Path(__file__).with_name("timm_vit.npz")
SIZES: dict[str, Any] = {
    "img_size": (8, 12),
    "patch_size": 4,
    "in_chans": 2,
    "num_classes": 3,
    "embed_dim": 8,
    "depth": 2,
    "num_heads": 2,
    "mlp_ratio": 1.5,
}


def make_model(**changes: Any) -> Any:
    """Every weight and bias random, LayerNorms too."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(**{**SIZES, **changes}).eval()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        norm = "norm" in name and name.endswith("weight")
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.4 + norm)
    return model


def pictures() -> torch.Tensor:
    return torch.randn(3, 2, 8, 12, generator=torch.Generator().manual_seed(1))


def main() -> None:
    model = make_model()
    with torch.no_grad():
        logits = model(pictures())
    arrays = {f"weights.{name}": t.numpy() for name, t in model.state_dict().items()}
    np.savez_compressed(GOLDEN, pixel_values=pictures().numpy(), logits=logits.numpy(), **arrays)


if __name__ == "__main__":
    main()
