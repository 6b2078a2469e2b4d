"""Attention weights small enough for a page: the largest ones of each token, in a byte each.

S tokens of a sequence, H heads of a layer, k weights that are kept of each token.

Weights are taken while the model runs, layer by layer, so that only those of one layer exist as
(H, S, S) at a time.
"""

import zlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# The side of the small picture of a head.
THUMBNAIL = 32
# What a head's weights go to: the token itself, the one before, the next, the first one of the
# sequence, and the separators.
SHARES = ("itself", "previous", "next", "first", "separators")
# A weight w is the byte 255 sqrt(w / largest): the error is at most 1/255 of the largest weight of
# the head, and far less for small ones.
_BYTE = 255
# A weight and its place take so many bytes when they are compressed: at worst, and at best.
WORST_BYTES, BEST_BYTES = 2.0, 0.35
# How many times more weights than of the first layer may fit of others.
_MARGIN = 4


@dataclass(frozen=True)
class HeadWeights:
    """The weights of one head in one sequence.

    Args:
        sequence, layer, head: their numbers.
        peak: the largest weight.
        values: (S, k) uint8, square roots of the weights as shares of the largest.
        keys: (S, k), where they are, ascending in each row; None: k is S.
        thumbnail: (n, n) uint8, means over stretches of tokens, the largest of which is 255.
        shares: of ``SHARES``.
    """

    sequence: int
    layer: int
    head: int
    peak: float
    values: np.ndarray
    keys: np.ndarray | None
    thumbnail: np.ndarray
    shares: tuple[float, ...]

    def packed(self, most: int) -> str:
        """The ``most`` largest weights of each row, compressed, in base64.

        All values come first, then the low bytes of the distances between places, then the high
        ones: what is alike lies side by side.
        """
        values, keys = self.values, self.keys
        if most < values.shape[1]:
            order = np.argsort(-values.astype(np.int16), 1, kind="stable")[:, :most]
            order.sort(1)
            values = np.take_along_axis(values, order, 1)
            keys = order if keys is None else np.take_along_axis(keys, order, 1)
        planes = [values.tobytes()]
        if keys is not None:
            steps = np.diff(keys.astype(np.int32), axis=1, prepend=0).astype("<u2")
            planes += [(steps & 255).astype(np.uint8).tobytes()]
            planes += [(steps >> 8).astype(np.uint8).tobytes()]
        return packed_bytes(b"".join(planes))


class WeightsCollector(dict[int, list[Tensor]]):
    """Takes the attention weights of a ``Context`` as each layer makes them, and keeps the largest.

    Args:
        kept: the heads of each layer, those that pruning has left.
        wanted: heads that are of interest; None: all.
        most: weights that are kept of each token.
        separators: their places in each sequence.
        budget: bytes that each head may take, in base64. The first layer tells how many weights
            of each token that is about, and of the others not many more are looked for.
    """

    def __init__(
        self,
        kept: Sequence[Sequence[int]],
        wanted: Sequence[int] | None,
        most: int,
        separators: Sequence[Sequence[int]],
        budget: int,
    ) -> None:
        super().__init__()
        self.kept, self.wanted, self.most, self.separators = kept, wanted, most, separators
        self.heads: list[HeadWeights] = []
        self._budget = budget

    def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
        first = not self.heads
        names = [h for h in self.kept[layer] if self.wanted is None or h in self.wanted]
        for sequence, own in enumerate(weights):
            if len(names) < len(own):
                own = own[[self.kept[layer].index(h) for h in names]]
            if names:
                self._collect(sequence, layer, names, own.float())  # (H, S, S)
        if first and self.heads and self.most < max(own.shape[-1] for own in weights):
            _, fitting = pack_heads(self.heads, self.most, self._budget * len(self.heads))
            self.most = min(self.most, _MARGIN * fitting)

    def _collect(self, sequence: int, layer: int, names: Sequence[int], weights: Tensor) -> None:
        size = weights.shape[-1]
        side = min(size, THUMBNAIL)
        means = F.adaptive_avg_pool2d(weights[None], side)[0]
        small = means / means.amax((1, 2), keepdim=True).clamp_min(1e-9)
        thumbnails = (_BYTE * small).round().byte().cpu().numpy()
        shares = _shares(weights, self.separators[sequence])
        keys = None
        if self.most < size:
            weights, places = weights.topk(self.most)
            places, order = places.sort(-1)
            weights, keys = weights.gather(-1, order), places.to(torch.int32).cpu().numpy()
        peaks = weights.amax((1, 2), keepdim=True).clamp_min(1e-9)
        values = (_BYTE * (weights.clamp_min(0) / peaks).sqrt()).round().byte().cpu().numpy()
        for index, head in enumerate(names):
            own = None if keys is None else keys[index].astype(np.uint16)
            self.heads.append(
                HeadWeights(
                    sequence,
                    layer,
                    head,
                    float(peaks[index]),
                    values[index],
                    own,
                    thumbnails[index],
                    shares[index],
                )
            )


def _shares(weights: Tensor, separators: Sequence[int]) -> list[tuple[float, ...]]:
    """``SHARES`` of each head, means over the tokens: the largest weight on average is 1."""
    size = weights.shape[-1]
    found = [
        weights.diagonal(offset, 1, 2).sum(-1) / max(1, size - abs(offset)) for offset in (0, -1, 1)
    ]
    found += [weights[:, :, 0].mean(-1), weights[:, :, list(separators)].sum(-1).mean(-1)]
    return [tuple(round(float(x), 4) for x in row) for row in torch.stack(found, 1).cpu()]


def weights_per_token(sizes: Sequence[int], heads: int, budget: int, weight_bytes: float) -> int:
    """How many weights of each token fit into a page.

    Args:
        sizes: tokens of each sequence.
        heads: of all layers together.
        budget: bytes of base64.
        weight_bytes: of a weight, compressed.
    """
    return int(budget * 3 / 4 / weight_bytes / max(1, sum(sizes) * heads))


def pack_heads(heads: Sequence[HeadWeights], most: int, budget: int) -> tuple[list[str], int]:
    """The weights of heads in base64, and how many of each token there are: as many as fit.

    Args:
        most: at most so many.
        budget: bytes of all together.
    """
    most = min([most, *(head.values.shape[1] for head in heads if head.keys is not None)])
    sample = heads[:: max(1, len(heads) // 12)]
    while most > 1:  # a few heads tell how many about
        size = sum(len(head.packed(most)) for head in sample) * len(heads) / len(sample)
        if size <= budget:
            break
        most = max(1, min(most - 1, int(most * 0.97 * budget / size)))
    packed = [head.packed(most) for head in heads]
    while most > 1 and (size := sum(map(len, packed))) > budget:
        most = max(1, min(most - 1, int(most * 0.97 * budget / size)))
        packed = [head.packed(most) for head in heads]
    return packed, most


def packed_bytes(raw: bytes) -> str:
    """Compressed (zlib) and in base64, as ``unpacked`` in view.js reads it."""
    return b64encode(zlib.compress(raw, 6)).decode("ascii")
