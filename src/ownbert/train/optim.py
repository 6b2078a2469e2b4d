"""Optimisers and their parameter groups."""

import torch

from ownbert.nn.model import Model
from ownbert.train.recipe import Optim


def make_optimizer(model: Model, optim: Optim) -> torch.optim.Optimizer:
    """AdamW (Loshchilov and Hutter 2019) without decay on biases and LayerNorms, as BERT's."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": optim.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    beta1, beta2 = optim.betas
    return torch.optim.AdamW(
        groups, lr=optim.learning_rate or 0.0, betas=(beta1, beta2), eps=optim.eps, fused=True
    )
