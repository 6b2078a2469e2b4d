"""Similarity functions of sentence-transformers. N and M vectors, D vector size."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

COSINE = "cosine"
SIMILARITIES = (COSINE, "dot", "euclidean", "manhattan")


def similarity(name: str, one: Any, two: Any) -> "Tensor":
    """Similarities of all pairs: (N, D) and (M, D), or (D), to float32 (N, M); higher is closer.

    Args:
        name: one of ``SIMILARITIES``; distances are negated.
        one: (N, D) or (D).
        two: (M, D) or (D).
    """
    import torch

    a, b = (torch.atleast_2d(each) for each in _tensors(name, one, two))
    if name in (COSINE, "dot"):
        return a @ b.T
    return -torch.cdist(a, b, p=2.0 if name == "euclidean" else 1.0)


def pairwise_similarity(name: str, one: Any, two: Any) -> "Tensor":
    """Similarities of corresponding vectors: (N, D) and (N, D) to float32 (N)."""
    a, b = _tensors(name, one, two)
    if name in (COSINE, "dot"):
        return (a * b).sum(-1)
    return -(a - b).norm(p=2 if name == "euclidean" else 1, dim=-1)


def _tensors(name: str, *vectors: Any) -> list["Tensor"]:
    """Vectors in float32, scaled to unit length for cosine similarity."""
    import torch

    tensors = []
    for each in vectors:
        tensors.append(torch.as_tensor(each if torch.is_tensor(each) else np.asarray(each)).float())
    normalize = torch.nn.functional.normalize
    return [normalize(each, dim=-1) for each in tensors] if name == COSINE else tensors
