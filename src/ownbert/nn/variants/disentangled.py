"""Disentangled attention (He et al. 2021): content-to-position and position-to-content scores; and
the convolution beside DeBERTa's first block.

T tokens, B sequences, S longest sequence (S' of the keys), H heads, K head size, D hidden; R rows
of the relative-position table needed in a pass.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.layout import Layout
from ownbert.config.encoder import EncoderConfig
from ownbert.config.variants import Disentangled
from ownbert.nn.layers import ACTIVATION, Dropout, Linear


class DistanceVectors(NamedTuple):
    """The relative-position vectors of a pass, (R, D), and the row of each distance from -reach to
    reach, (2 reach + 1)."""

    vectors: Tensor
    rows: Tensor

    def rows_of(self, distances: Tensor) -> Tensor:
        """The rows of distances of any shape, clipped to the reach."""
        reach = len(self.rows) // 2
        return self.rows[distances.clamp(-reach, reach) + reach]


class DistanceTable(nn.Module):
    """A vector of size D for each distance, or group of distances, shared by all layers.

    Source: He et al. 2021, section 3.1; the logarithmic groups: He et al. 2023, section 3.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.disentangled is not None
        self.of = config.disentangled
        self.table = nn.Embedding(2 * self.of.span, config.hidden_size)
        self.norm = None
        if self.of.norm_rel_ebd:
            self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, layout: Layout) -> DistanceVectors:
        """The vectors of all distances within the sequences of a batch."""
        return self.within(max(layout.longest_padded) - 1)

    def within(self, reach: int) -> DistanceVectors:
        """The vectors of distances up to ``reach`` in both directions."""
        # On the CPU, so that selecting rows does not synchronise with the device.
        rows = row_of(torch.arange(-reach, reach + 1), self.of)
        # Short texts need few rows, and each layer multiplies all rows.
        first, last = int(rows.min()), int(rows.max())
        vectors = self.table.weight[first : last + 1]
        rows = (rows - first).to(vectors.device)
        return DistanceVectors(vectors if self.norm is None else self.norm(vectors), rows)

    def extra_repr(self) -> str:
        groups = f", groups={self.of.position_buckets}" if self.of.position_buckets else ""
        return f"longest={self.of.max_relative_positions}{groups} on each side"


def row_of(distances: Tensor, settings: Disentangled) -> Tensor:
    """The rows of distances in the table, of the same shape.

    Small distances, up to half of the rows per side, have separate rows; larger ones share rows of
    logarithmically increasing size, up to ``max_relative_positions``.

    Source: He et al. 2023, section 3.
    """
    span, half = settings.span, settings.position_buckets // 2
    groups = distances
    if half:
        # In float32 and in this order, as in Transformers: other rounding would give another row at
        # the boundaries.
        far = distances.abs().clamp(min=half) / half
        longest = torch.tensor((settings.max_relative_positions - 1) / half)
        steps = torch.ceil(far.log() / longest.log() * (half - 1)) + half
        # If the nearest and the farthest shared distance are equal the step is undefined, and
        # Transformers uses row 0.
        steps = torch.where(steps.isinf(), -span * distances.sign(), steps)
        steps = torch.where(distances.abs() <= half, distances.abs(), steps)
        groups = (steps * distances.sign()).long()
    return (groups + span).clamp(0, 2 * span - 1)


class DisentangledBias(nn.Module):
    """Scores of distances: (q_i · k(i - j) + k_j · q(i - j)) / sqrt(K (1 + n)) for n terms.

    The relative-position vectors are projected to keys k and queries q by matrices of this layer:
    with ``share_att_key`` those of the tokens, else ``key`` and ``query``.

    Source: He et al. 2021, equation 4.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.disentangled is not None
        self.of = config.disentangled
        self.heads, self.head_size = config.num_attention_heads, config.head_size
        size = config.hidden_size
        if not self.of.share_att_key:
            if "c2p" in self.of.terms:
                self.key = Linear(size, size)
            if "p2c" in self.of.terms:
                self.query = Linear(size, size)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def scores(
        self, project: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], near: DistanceVectors
    ) -> "DistanceScores":
        """The bias of this layer's scores in a pass with the vectors ``near``; ``project`` is the
        layer's projection from (R, D) to queries, keys and values (R, H, K)."""
        vectors = self.dropout(near.vectors)
        if self.of.share_att_key:
            queries, keys, _ = project(vectors)
        else:
            queries, keys = (
                matrix(vectors).unflatten(-1, (self.heads, self.head_size)) if matrix else None
                for matrix in (getattr(self, "query", None), getattr(self, "key", None))
            )
        scale = self.head_size**-0.5
        c2p = p2c = None
        if "c2p" in self.of.terms and keys is not None:
            c2p = keys.permute(1, 2, 0) * scale  # queries are already scaled by the number of terms
        if "p2c" in self.of.terms and queries is not None:
            terms = 1 + len(self.of.pos_att_type)
            p2c = queries.permute(1, 2, 0) * (scale / math.sqrt(terms))
        return DistanceScores(near, c2p, p2c)

    def extra_repr(self) -> str:
        matrices = "those of the texts" if self.of.share_att_key else "of their own"
        return f"terms={', '.join(self.of.terms)}, matrices: {matrices}"


class DistanceScores(NamedTuple):
    """The bias for ``attend``: scores of distances of one layer in one pass.

    ``c2p`` (H, K, R) are keys of distances, multiplied by the queries of tokens, and ``p2c``
    queries of distances, multiplied by the keys of tokens.
    """

    near: DistanceVectors
    c2p: Tensor | None
    p2c: Tensor | None

    def __call__(self, q: Tensor, k: Tensor, distances: Tensor) -> Tensor:
        """(B, H, S, K), (B, H, S', K), (B or 1, S, S') -> (B, H, S, S')"""
        # Each row is multiplied once, then looked up for every pair of places.
        index, scores = self.near.rows_of(distances)[:, None], q.new_zeros(())
        if self.c2p is not None:
            rows = index.expand(*q.shape[:2], -1, -1)
            scores = (q @ self.c2p.to(q.dtype)).gather(-1, rows)
        if self.p2c is not None:
            # A contiguous index is faster for gather.
            rows = index.transpose(-1, -2).contiguous().expand(*k.shape[:2], -1, -1)
            of_keys = (k @ self.p2c.to(k.dtype)).gather(-1, rows)  # (B, H, S', S)
            scores = scores + of_keys.transpose(-1, -2)
        return scores


class Convolution(nn.Module):
    """A convolution over neighbouring embeddings, added to the output of the first block.

    x = norm(block(e) + act(dropout(conv(e)))), with zero padding around each text.

    Source: README of microsoft/DeBERTa (nGiE).
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        of, size = config.disentangled, config.hidden_size
        assert of is not None
        self.conv = nn.Conv1d(size, size, of.conv_kernel_size, groups=of.conv_groups)
        self.act = of.conv_act
        self.norm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, embedded: Tensor, hidden: Tensor, layout: Layout) -> Tensor:
        """Embeddings and the output of the first block, (T, D) each -> (T, D)."""
        real = layout.is_token
        mixed = self.neighbours(embedded, layout)
        if real is None:
            return self.joined(mixed, hidden)
        return self.joined(mixed * real, hidden) * real  # Padding stays zero.

    def neighbours(self, embedded: Tensor, layout: Layout) -> Tensor:
        """The convolution within each sequence: (T, D) -> (T, D)."""
        # One call on all sequences, separated by zeros, so that they do not influence each other.
        (width,) = self.conv.kernel_size
        gap = width // 2
        starts = torch.arange(len(embedded), device=embedded.device) + layout.sequences * gap
        count = len(embedded) + (len(layout.lengths) + 1) * gap
        row = embedded.new_zeros(count, embedded.shape[1]).index_copy(0, starts + gap, embedded)
        mixed = F.conv1d(row.T[None], self.conv.weight, self.conv.bias, groups=self.conv.groups)
        return mixed[0].T[starts]

    def joined(self, mixed: Tensor, hidden: Tensor) -> Tensor:
        """(..., D) both -> (..., D)"""
        return self.norm(hidden + ACTIVATION[self.act](self.dropout(mixed)))

    def extra_repr(self) -> str:
        return f"activation={self.act}"
