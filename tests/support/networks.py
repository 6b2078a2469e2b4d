"""A small network and packed batches for tests of networks."""

from collections.abc import Iterable

import numpy as np
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.batches.layout import make_layout
from ownbert.config.encoder import EncoderConfig

SMALL = EncoderConfig(
    vocab_size=30,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=24,
    max_position_embeddings=16,
    initializer_range=0.3,
)


def batch_of(*rows: list[int]) -> Batch:
    """A batch of sequences of these ids, without types."""
    ids = torch.tensor([i for row in rows for i in row])
    positions = torch.cat([torch.arange(len(row)) for row in rows])
    return Batch(ids, torch.zeros_like(ids), positions, make_layout([len(row) for row in rows]))


def random_batch(lengths: Iterable[int]) -> Batch:
    """A batch of sequences of ordinary ids of ``SMALL``."""
    rng = np.random.default_rng(0)
    return pack([Example(rng.integers(5, 30, n), np.zeros(n, int)) for n in lengths])
