"""A model as a graph on padded tensors, with the names of Transformers' ONNX files.

B texts, S longest text, D hidden, H heads, K head size, C choices, W width of n-grams.

The packed model takes lists of lengths on the CPU, which exported graphs do not support. What
depends on lengths is replaced by equivalents on padded tensors: the layout, attention, distances,
convolution and n-grams. Everything else treats positions independently and is reused.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.layout import distances, lowest
from ownbert.exceptions import InputError
from ownbert.nn.blocks import EncoderBlock
from ownbert.nn.context import Context
from ownbert.nn.model import Model, Outputs
from ownbert.nn.multihead import MultiHeadAttention
from ownbert.nn.output_heads import ClassificationHead, LastPooling, RecurrentPooling, TokenHead
from ownbert.nn.positions import RelativeKeys, rotate
from ownbert.nn.variants.disentangled import Convolution, DistanceTable, DistanceVectors, row_of
from ownbert.nn.variants.ngram_embeddings import NgramTable, hashed_ngrams
from ownbert.nn.variants.sesame import blur
from ownbert.transformers.padded_call import logits_by_name

# Outputs with one row per token; the others have one per text.
_PER_TOKEN = frozenset(("last_hidden_state", "start_logits", "end_logits", "prediction_logits"))
_TOKEN_HEADS = frozenset(("mlm", "tokens", "discriminator", "generator"))


@dataclass(frozen=True)
class PaddedBatch:
    """Replaces a packed ``Batch`` and its ``Layout``; all are (B, S), except for ``hidden``.

    Args:
        type_ids, task_ids: (B, S) or (1, 1).
        real: true for tokens.
        positions: (B or 1, S) from 0.
        hidden: (B, 1, 1 or S, S) additive mask of the scores.
    """

    token_ids: Tensor
    type_ids: Tensor
    task_ids: Tensor
    real: Tensor
    positions: Tensor
    hidden: Tensor
    max_seqlen: int = 0  # not limited in a graph
    keys: None = None
    mask: None = None
    is_token: None = None
    embeds: None = None
    groups: None = None
    masked_positions: None = None
    candidates: None = None

    @property
    def layout(self) -> "PaddedBatch":
        return self

    # See ``Layout``: (B, S, D) instead of (T, D).

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def sums(self, x: Tensor) -> Tensor:
        return torch.where(self.real[..., None], x, 0.0).sum(1)

    def means(self, x: Tensor) -> Tensor:
        return self.sums(x) / self.real.sum(1, keepdim=True).clamp_min(1)

    def largest(self, x: Tensor) -> Tensor:
        return torch.where(self.real[..., None], x, lowest(x.dtype)).amax(1)

    def spread(self, x: Tensor) -> Tensor:
        return x[:, None]

    def beside(self, x: Tensor, *, repeat: bool) -> tuple[Tensor, Tensor]:
        # Padded before they are cut: the tracer assumes that a length of S - 1 is not 1.
        follows = F.pad(self.real, (0, 1))[:, 1:, None]  # whether another token does
        end = x if repeat else torch.zeros_like(x)
        before = torch.cat((end[:, :1], x), 1)[:, :-1]
        return before, torch.where(follows, F.pad(x, (0, 0, 0, 1))[:, 1:], end)


class PaddedModel(nn.Module):
    """A model whose inputs and outputs are padded tensors; it shares the weights of ``model``.

    Attributes:
        choices: whether inputs are (N, C, S), the choices of each question.
        types: whether there is an input ``token_type_ids``.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        config = model.config
        self.kinds = tuple(model.heads)
        if len(self.kinds) > 2 or (len(self.kinds) == 2 and self.kinds[0] != "mlm"):
            raise InputError(
                "a model with the heads {kinds} cannot be exported", ", ".join(self.kinds)
            )
        self.choices = self.kinds == ("choice",)
        self.types = config.type_vocab_size > 1
        self.model = _padded_copy(model)
        self.pad = config.pad_token_id if config.position_offset else None
        self.causal = config.is_decoder

    @property
    def input_names(self) -> tuple[str, ...]:
        types = ("token_type_ids",) if self.types else ()
        return ("input_ids", "attention_mask", *types)

    def per_token(self, name: str) -> bool:
        """Whether an output has one row per token rather than per text."""
        return name in _PER_TOKEN or (name == "logits" and self.kinds[0] in _TOKEN_HEADS)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Outputs by name, for int64 inputs (B, S) or choices (N, C, S)."""
        shape, given = input_ids.shape, [input_ids, attention_mask, token_type_ids]
        if self.choices:
            given = [None if x is None else x.flatten(0, 1) for x in given]
        batch = self._batch(*given)  # pyright: ignore[reportArgumentType]
        layout: Any = batch
        out = self.model(layout, context=Context(layout, batch.positions))
        named = named_outputs(self.kinds, out)
        if self.choices:
            return {"logits": named["logits"].view(shape[0], shape[1])}
        return named

    def _batch(self, ids: Tensor, mask: Tensor, types: Tensor | None) -> PaddedBatch:
        length, seen = ids.shape[1], mask != 0
        if self.pad is None:
            positions = torch.arange(length, device=ids.device)[None]
        else:  # RoBERTa's positions count non-padding tokens.
            real = (ids != self.pad).long()
            positions = real.cumsum(1) * real - 1
        visible = seen[:, None, None]
        if self.causal:
            visible = visible & (_distances(length, ids.device) >= 0)
        hidden = torch.where(visible, 0.0, lowest(torch.float32))
        zero = torch.zeros_like(ids[:1, :1])
        return PaddedBatch(ids, zero if types is None else types, zero, seen, positions, hidden)


def named_outputs(kinds: tuple[str, ...], out: Outputs) -> dict[str, Tensor]:
    """The outputs of a file, with the names in Transformers' ONNX files."""
    if not kinds:
        return {"last_hidden_state": out.hidden}
    if kinds == ("embedding",):
        return {"sentence_embedding": out.logits["embedding"]}
    return logits_by_name(kinds, out.logits)


def _attend(
    of: MultiHeadAttention, q: Tensor, k: Tensor, v: Tensor, context: Context, layer: int
) -> Tensor:
    """``MultiHeadAttention.attend_to_self``: (B, S, H, K) each -> (B, S, D)."""
    batch: Any = context.layout
    if of.rotary:
        q, k = (rotate(x, batch.positions, of.rotary_base) for x in (q, k))
    if of.scaled is not None:
        q = q * of.scaled
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, H, S, K)
    scores = (q * of.head_size**-0.5) @ k.transpose(2, 3)
    if of.bias is not None:
        scores = scores + _bias(of.bias_in(context), q, k)
    hidden = batch.hidden
    if of.window is not None:
        near = _distances(q.shape[2], q.device).abs() <= of.window
        hidden = torch.where(near[:, None], hidden, lowest(torch.float32))
    weights = (scores + hidden).softmax(-1)
    out = (weights @ v).transpose(1, 2).flatten(2)  # (B, S, HK)
    return of.output(out if of.blur is None else blur(out, batch, of.blur))


def _distances(length: int, device: torch.device) -> Tensor:
    """(1, S, S) query position minus key position."""
    return distances(length, length, torch.zeros(1, dtype=torch.long, device=device))


def _bias(bias: Any, q: Tensor, k: Tensor) -> Tensor:
    """(B or 1, H, S, S) bias of the scores."""
    far = _distances(q.shape[2], q.device)
    if isinstance(bias, RelativeKeys):
        # The whole table, while the packed model uses only the rows needed for the length.
        return bias.within(bias.longest, q, k, far)
    return bias(q, k, far)


class PaddedDistances(nn.Module):
    """The relative-position vectors of all distances in texts of any length."""

    def __init__(self, distances: DistanceTable, longest: int) -> None:
        super().__init__()
        self.of = distances
        # Larger distances share a vector, and ``DistanceVectors`` clips them.
        reach = max(longest, distances.of.max_relative_positions)
        self.rows: Tensor
        self.register_buffer("rows", row_of(torch.arange(-reach, reach + 1), distances.of))

    def forward(self, layout: Any) -> DistanceVectors:
        vectors = self.of.table.weight
        return DistanceVectors(
            vectors if self.of.norm is None else self.of.norm(vectors), self.rows
        )


def _convolved(of: Convolution, embedded: Tensor, batch: PaddedBatch) -> Tensor:
    """``Convolution.neighbours``: (B, S, D) -> (B, S, D)."""
    conv = of.conv
    shown = (embedded * batch.real[..., None]).transpose(1, 2)
    width = conv.kernel_size[0] // 2
    mixed = F.conv1d(shown, conv.weight, conv.bias, padding=width, groups=conv.groups)
    return mixed.transpose(1, 2)


class _Ngrams(nn.Module):
    """``NgramTable`` for padded texts: (B, S) -> (B, W)."""

    def __init__(self, table: NgramTable) -> None:
        super().__init__()
        self.of = table

    def forward(self, batch: PaddedBatch, *, grouped: bool) -> Tensor:
        tokens, mask = batch.token_ids, batch.real
        place = torch.arange(tokens.shape[1], device=tokens.device)[None]
        end = (mask * place).amax(1, keepdim=True)
        ordinary = (tokens != tokens.gather(1, end)) & mask & (place > 0)
        table = self.of.table
        hashes, valid = hashed_ngrams(tokens, ordinary, table.num_embeddings)
        rows = F.embedding(hashes, table.weight) * valid[..., None]  # (B, S, sizes, W)
        counts = valid.sum((1, 2))[:, None]
        return rows.sum((1, 2)) / counts.clamp_min(1).sqrt()


def _padded_copy(model: Model) -> Model:
    """A copy with shared parameters, whose length-dependent modules take padded tensors."""
    config = model.config
    if config.image is not None or model.decoder is not None:
        raise InputError("only text encoders can be exported, not image or translation models")
    if config.positions.segments:
        raise InputError("an xlnet model cannot be exported")
    padded = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
    encoder: Any = padded.encoder
    if encoder.distances is not None:
        encoder.distances = PaddedDistances(encoder.distances, config.longest)
    if encoder.convolution is not None:
        encoder.convolution.neighbours = partial(_convolved, encoder.convolution)
    for block in encoder.blocks:
        block.attention.attend_to_self = partial(_attend, block.attention)
        if isinstance(block, EncoderBlock):
            block.chunk = 0  # Chunks save memory in training; results are equal.
    if not padded.heads:
        padded.pooler = None  # Its output is not exported.
    for head in padded.heads.values():
        if getattr(head, "features", None) is not None:
            raise InputError(
                "a model that reads word features cannot be exported: engines read only texts"
            )
        # A row of the graph is a document with one window, whose vector ``segments`` keeps.
        poolings = [getattr(head, name, None) for name in ("pooling", "segments")]
        if any(isinstance(pooling, RecurrentPooling | LastPooling) for pooling in poolings):
            raise InputError(
                "recurrent pooling (gru, lstm) depends on the length of each text and cannot be "
                "exported; fine-tune with {--pooling} mean, max or attention"
            )
        if isinstance(head, ClassificationHead) and head.ngrams is not None:
            head.ngrams = _Ngrams(head.ngrams)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(head, TokenHead):
            head.crf = None
    return padded
