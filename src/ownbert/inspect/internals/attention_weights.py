"""Attention weights of selected heads, compressed for a page: the largest weights of each token,
one byte each.

S tokens of a sequence, H heads of a layer, k kept weights per token.

Weights are collected layer by layer while the model runs, so that only one layer is in memory as
(H, S, S) at a time.
"""

import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ownbert.batches.batch import pack
from ownbert.batches.example import Example
from ownbert.exceptions import InputError
from ownbert.inspect.internals.observing import evaluating, require_layers
from ownbert.inspect.parameters import ranges
from ownbert.nn.model import Model

# Side of a head's thumbnail.
THUMBNAIL = 32
# Targets of a head's attention: the token itself, its neighbours, the first token of the sequence,
# and the separators.
SHARES = ("itself", "previous", "next", "first", "separators")
# A weight w is stored as the byte 255 sqrt(w / largest): the error is at most 1/255 of the head's
# largest weight, and much smaller for small weights.
_BYTE = 255
# Compressed bytes per weight with its position: worst and best case.
WORST_BYTES, BEST_BYTES = 2.0, 0.35
# Other layers may fit up to this many times as many weights as the first layer.
_MARGIN = 4
# Selected heads by layer, both counted from 0.
ChosenHeads = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class HeadWeights:
    """The weights of a head in a sequence.

    Args:
        sequence, layer, head: indices.
        peak: largest weight.
        values: (S, k) uint8, square roots of the weights relative to the largest one.
        keys: (S, k) positions of the weights, ascending in each row; None: k is S.
        thumbnail: (n, n) uint8, block means, scaled to a maximum of 255.
        shares: mean weights by ``SHARES``.
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

        For better compression all values come first, then the low bytes of the differences between
        positions, then the high bytes.
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
    """Collects the attention weights of a ``Context`` layer by layer, and keeps the largest ones.

    Args:
        kept: heads of each layer that are not pruned.
        chosen: heads to collect.
        most: maximum number of weights per token.
        separators: positions of separators in each sequence.
        budget: bytes per head in base64. The first layer shows how many weights per token fit,
            which limits the search in the other layers.
    """

    def __init__(
        self,
        kept: Sequence[Sequence[int]],
        chosen: ChosenHeads,
        most: int,
        separators: Sequence[Sequence[int]],
        budget: int,
    ) -> None:
        super().__init__()
        self.kept, self.chosen, self.most, self.separators = kept, chosen, most, separators
        self.heads: list[HeadWeights] = []
        self._budget = budget

    def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
        first = not self.heads
        names = self.chosen[layer]
        for sequence, matrix in enumerate(weights):
            if len(names) < len(matrix):
                matrix = matrix[[self.kept[layer].index(h) for h in names]]
            if names:
                self._collect(sequence, layer, names, matrix.float())  # (H, S, S)
        if first and self.heads and self.most < max(matrix.shape[-1] for matrix in weights):
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
            key_index = None if keys is None else keys[index].astype(np.uint16)
            weights_of_head = float(peaks[index]), values[index], key_index
            seen = thumbnails[index], shares[index]
            self.heads.append(HeadWeights(sequence, layer, head, *weights_of_head, *seen))


def _shares(weights: Tensor, separators: Sequence[int]) -> list[tuple[float, ...]]:
    """Mean weight per head for each of ``SHARES``."""
    size = weights.shape[-1]
    shares = [
        weights.diagonal(offset, 1, 2).sum(-1) / max(1, size - abs(offset)) for offset in (0, -1, 1)
    ]
    shares += [weights[:, :, 0].mean(-1), weights[:, :, list(separators)].sum(-1).mean(-1)]
    return [tuple(round(float(x), 4) for x in row) for row in torch.stack(shares, 1).cpu()]


def weights_per_token(sizes: Sequence[int], heads: int, budget: int, weight_bytes: float) -> int:
    """Number of weights per token that fit into a page.

    Args:
        sizes: number of tokens of each sequence.
        heads: total number of heads in all layers.
        budget: bytes in base64.
        weight_bytes: compressed bytes per weight.
    """
    return int(budget * 3 / 4 / weight_bytes / max(1, sum(sizes) * heads))


def pack_heads(heads: Sequence[HeadWeights], most: int, budget: int) -> tuple[list[str], int]:
    """Encode heads in base64, with as many weights per token as fit; return that number as well.

    Args:
        heads: weights of the heads.
        most: maximum number of weights per token.
        budget: total bytes.
    """
    most = min([most, *(head.values.shape[1] for head in heads if head.keys is not None)])
    packed: list[str] = []
    for some in (heads[:: max(1, len(heads) // 12)], heads):  # an estimate from a few heads first
        while True:
            packed = [head.packed(most) for head in some]
            size = sum(map(len, packed)) * len(heads) / max(1, len(some))
            if most <= 1 or size <= budget:
                break
            most = max(1, min(most - 1, int(most * 0.97 * budget / size)))
    return packed, most


def packed_bytes(raw: bytes) -> str:
    """Compress with zlib and encode in base64; the counterpart of ``unpacked`` in view.js."""
    return b64encode(zlib.compress(raw, 6)).decode("ascii")


@torch.inference_mode()
def attention_maps(
    model: Model, example: Example, chosen: ChosenHeads
) -> list[dict[int, np.ndarray]]:
    """Run a model once and return its attention weights.

    Returns:
        For each sequence the weights by layer, float32 (selected heads, S, S): one row per query
        token, with its weights over key tokens.
    """
    batch, kept = pack([example]).to(model.device), heads_by_layer(model)
    context = model.encoder.plain_context(batch)
    context.keep = frozenset(chosen)
    maps: dict[int, list[np.ndarray]] = {}

    class Collector(dict[int, list[Tensor]]):
        """Selects heads layer by layer, so that only one whole layer is in memory."""

        def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
            selected = [kept[layer].index(head) for head in chosen[layer]]
            maps[layer] = [each[selected].float().cpu().numpy() for each in weights]  # (H, S, S)

    context.attentions = Collector()
    with evaluating(model):
        model(batch, [], context=context)
    count = len(batch.layout.lengths)
    return [{layer: maps[layer][i] for layer in chosen} for i in range(count)]


@dataclass(frozen=True)
class HeadChoice:
    """Selection of attention heads.

    Args:
        layers: layers from 0, in any order; negative ones count from the end. None: all.
        heads: heads from 0; None: all.
    """

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def of(self, model: Model) -> ChosenHeads:
        """The selected heads of a model that are not pruned, by layer.

        Raises:
            InputError: a layer or head does not exist.
        """
        kept, chosen = heads_by_layer(model), self.layers
        count = len(kept)
        ends = range(-count, 0)
        given = range(count) if chosen is None else chosen
        layers = list(dict.fromkeys(n + count if n in ends else n for n in given))
        require_layers(layers, count)
        known = sorted({head for layer in layers for head in kept[layer]})
        for head in self.heads or ():
            if head not in known:
                raise InputError(
                    "there is no head {head} in these layers; they have {ranges}",
                    head,
                    ranges(known),
                )
        selected = known if self.heads is None else self.heads
        return {layer: [head for head in kept[layer] if head in selected] for layer in layers}


ALL_HEADS = HeadChoice()


def heads_by_layer(model: Model) -> tuple[tuple[int, ...], ...]:
    """The heads of each layer that are not pruned; shared blocks count once per use."""
    schedule = [block for block, _ in model.encoder.schedule()]
    return tuple(tuple(block.attention.kept) for block in schedule)  # pyright: ignore
