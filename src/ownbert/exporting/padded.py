"""A model as a graph on padded tensors, with the names of Transformers' ONNX files.

B texts, S longest text, D hidden, H heads, K head size, C choices, W width of n-grams.

The packed model takes lists of lengths on the CPU, which exported graphs do not support. Modules
that depend on lengths are replaced by equivalents on padded tensors: embeddings, attention, pooling
and n-grams. All other modules treat positions independently and are reused.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.layout import distances, lowest
from ownbert.errors import InputError
from ownbert.hf.forward_pass.outputs import logits_by_name
from ownbert.nn.blocks import EncoderBlock
from ownbert.nn.context import Context
from ownbert.nn.embeddings import Embeddings
from ownbert.nn.heads import ClassificationHead, EmbeddingHead, Pooler, TokenHead
from ownbert.nn.model import Model, Outputs
from ownbert.nn.multihead import Attention, MultiHeadAttention
from ownbert.nn.pooling import AttentionPooling, FirstPooling, MaxPooling, MeanPooling
from ownbert.nn.positions import RelativeKeys, rotate, sinusoids
from ownbert.nn.variants.bottleneck import NarrowAttention
from ownbert.nn.variants.convolution import Convolution
from ownbert.nn.variants.disentangled import DistanceTable, DistanceVectors, row_of
from ownbert.nn.variants.ngram_embeddings import NgramTable, hashed_ngrams
from ownbert.nn.variants.sesame import LayerGate, blurred

# Outputs with one row per token; the others have one per text.
_PER_TOKEN = frozenset(("last_hidden_state", "start_logits", "end_logits", "prediction_logits"))
_TOKEN_HEADS = frozenset(("mlm", "tokens", "discriminator", "generator"))


@dataclass(frozen=True)
class PaddedBatch:
    """Replaces a packed ``Batch`` and its layout for the modules of this file.

    Args:
        token_ids, type_ids: (B, S).
        mask: (B, S) true for tokens.
        positions: (B or 1, S) from 0.
        hidden: (B, 1, 1 or S, S) additive mask of the scores.
    """

    token_ids: Tensor
    type_ids: Tensor | None
    mask: Tensor
    positions: Tensor
    hidden: Tensor
    groups: None = None
    masked_positions: None = None
    candidates: None = None

    @property
    def layout(self) -> "PaddedBatch":
        return self


class PaddedModel(nn.Module):
    """A model whose inputs and outputs are padded tensors.

    Args:
        model: text encoder with its heads; not modified, and its weights are shared.

    Attributes:
        choices: whether inputs are (N, C, S), the choices of each question.
        types: whether there is an input ``token_type_ids``.

    Raises:
        InputError: a part of the model does not support padded tensors.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        config = model.config
        self.kinds = tuple(model.heads)
        if len(self.kinds) > 2 or (len(self.kinds) == 2 and self.kinds[0] != "mlm"):
            raise InputError(f"a model with the heads {', '.join(self.kinds)} cannot be exported")
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
        """Outputs by name, for inputs (B, S) or choices (N, C, S).

        Args:
            input_ids, token_type_ids: int64.
            attention_mask: int64, 1 for tokens and 0 for padding.
        """
        shape, given = input_ids.shape, [input_ids, attention_mask, token_type_ids]
        if self.choices:
            given = [None if x is None else x.flatten(0, 1) for x in given]
        batch = self._batch(*given)  # pyright: ignore[reportArgumentType]
        layout: Any = batch
        context = Context(layout, batch.positions)
        out = self.model(layout, context=context)
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
        return PaddedBatch(ids, types, seen, positions, hidden)


def named_outputs(kinds: tuple[str, ...], out: Outputs) -> dict[str, Tensor]:
    """The outputs of a file, with the names in Transformers' ONNX files."""
    if not kinds:
        return {"last_hidden_state": out.hidden}
    if kinds == ("embedding",):
        return {"sentence_embedding": out.logits["embedding"]}
    return logits_by_name(kinds, out.logits)


class PaddedEmbeddings(nn.Module):
    """``Embeddings`` for padded ids: (B, S) -> (B, S, D)."""

    def __init__(self, embeddings: Embeddings) -> None:
        super().__init__()
        self.of = embeddings

    def forward(self, batch: PaddedBatch) -> Tensor:
        of = self.of
        hidden = of.word(batch.token_ids)  # (B, S, E)
        if of.scale != 1.0:
            hidden = hidden * of.scale
        if of.trigram:
            hidden = _with_neighbours(hidden, batch.mask)  # (B, S, 3E)
        if of.widen_first and hasattr(of, "projection"):
            hidden = of.projection(hidden)
        if of.kind == "absolute":
            hidden = hidden + of.position(batch.positions + of.offset)
        elif of.kind in ("sinusoidal", "sinusoidal_halves"):
            halves = of.kind == "sinusoidal_halves"
            known = sinusoids(batch.positions.flatten(), hidden.shape[2], halves=halves)
            hidden = hidden + known.unflatten(0, batch.positions.shape)
        if batch.type_ids is not None:
            hidden = hidden + of.token_type(batch.type_ids)
        elif hasattr(of, "token_type"):
            hidden = hidden + of.token_type.weight[0]
        if hasattr(of, "task_type"):
            hidden = hidden + of.task_type.weight[0]
        if of.norm_last and hasattr(of, "projection"):
            hidden = of.projection(hidden)
        hidden = hidden if of.norm is None else of.norm(hidden)
        if not (of.widen_first or of.norm_last) and hasattr(of, "projection"):
            hidden = of.projection(hidden)
        return hidden


def _with_neighbours(words: Tensor, mask: Tensor) -> Tensor:
    """(B, S, E) -> (B, S, 3E): the next token, the token, the previous one; zero for padding."""
    shown = words * mask[..., None]
    after, before = F.pad(shown, (0, 0, 0, 1))[:, 1:], F.pad(shown, (0, 0, 1, 0))[:, :-1]
    return torch.cat((after, words, before), 2)


class PaddedAttention(nn.Module):
    """Self-attention over padded texts: (B, S, D) -> (B, S, D)."""

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.of = attention

    def forward(self, *given: Any) -> Tensor:
        """Same arguments as the original attention: one or two inputs, then context and layer."""
        q, k, v = self.projected(*given[:-2])
        return self.attended(q, k, v, given[-2])

    def projected(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, S, H, K) each."""
        of = self.of
        sizes = of.heads, of.head_size
        if isinstance(of, NarrowAttention):
            q, k = of.query_key(inputs[0]).unflatten(-1, (2, *sizes)).unbind(2)
            return q, k, of.value(inputs[1]).unflatten(-1, sizes)
        assert isinstance(of, Attention)
        q, k, v = of.qkv(inputs[0]).unflatten(-1, (3, *sizes)).unbind(2)
        return q, k, v

    def attended(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        of, batch = self.of, context.layout
        assert isinstance(batch, PaddedBatch)
        if of.rotary:
            places = batch.positions.expand(q.shape[:2]).flatten()
            base = of.rotary_base
            q, k = (rotate(x.flatten(0, 1), places, base).unflatten(0, q.shape[:2]) for x in (q, k))
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
        return of.output(out if of.blur is None else _blur(out, batch, of.blur))


def _distances(length: int, device: torch.device) -> Tensor:
    """(1, S, S) query position minus key position."""
    return distances(length, length, torch.zeros(1, dtype=torch.long, device=device))


def _bias(bias: Any, q: Tensor, k: Tensor) -> Tensor:
    """(B or 1, H, S, S) bias of the scores."""
    far = _distances(q.shape[2], q.device)
    if not isinstance(bias, RelativeKeys):
        return bias(q, k, far)
    # The whole table, while the packed model uses only the rows needed for the length.
    index = (far.clamp(-bias.longest, bias.longest) + bias.longest)[:, None]
    index = index.expand(*q.shape[:2], -1, -1)
    scores = (q @ bias.distance.weight.T).gather(-1, index)
    if bias.both:
        of_keys = (k @ bias.distance.weight.T).gather(-1, index.transpose(2, 3))
        scores = scores + of_keys.transpose(2, 3)
    return scores * bias.scale


def _blur(out: Tensor, batch: PaddedBatch, sigma: float) -> Tensor:
    """Blur rows with their neighbours, repeating the ends of a text: (B, S, ...) -> (B, S, ...)."""
    before = torch.cat((out[:, :1], out[:, :-1]), 1)
    more = F.pad(batch.mask[:, 1:], (0, 1))  # whether another token follows
    after = torch.where(more[..., None], F.pad(out, (0, 0, 0, 1))[:, 1:], out)
    return blurred(out, before, after, sigma)


class _Gate(nn.Module):
    """``LayerGate`` for padded texts: L times (B, S, D) -> (B, S, D)."""

    def __init__(self, gate: LayerGate) -> None:
        super().__init__()
        self.of = gate

    def forward(self, layers: list[Tensor], batch: PaddedBatch) -> Tensor:
        means = torch.stack([hidden.mean(2) for hidden in layers], 2)  # (B, S, L)
        mask = batch.mask[..., None].to(means.dtype)
        gates = self.of.gates((means * mask).sum(1) / mask.sum(1).clamp_min(1))  # (B, L)
        return self.of.gated(layers, gates[:, None])


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


class PaddedConvolution(nn.Module):
    """``Convolution`` for padded texts: (B, S, D) twice -> (B, S, D)."""

    def __init__(self, convolution: Convolution) -> None:
        super().__init__()
        self.of = convolution

    def forward(self, embedded: Tensor, hidden: Tensor, batch: PaddedBatch) -> Tensor:
        conv = self.of.conv
        shown = (embedded * batch.mask[..., None]).transpose(1, 2)
        width = conv.kernel_size[0] // 2
        mixed = F.conv1d(shown, conv.weight, conv.bias, padding=width, groups=conv.groups)
        return self.of.joined(mixed.transpose(1, 2), hidden)


class _First(nn.Module):
    """(B, S, D) -> (B, D), the first token."""

    def forward(self, hidden: Tensor, batch: PaddedBatch) -> Tensor:
        return hidden[:, 0]


class _Mean(nn.Module):
    """(B, S, D) -> (B, D), the mean over the tokens."""

    def forward(self, hidden: Tensor, batch: PaddedBatch) -> Tensor:
        mask = batch.mask[..., None].to(hidden.dtype)
        return (hidden * mask).sum(1) / mask.sum(1).clamp_min(1)


class _Max(nn.Module):
    """(B, S, D) -> (B, D), the maximum of each channel."""

    def forward(self, hidden: Tensor, batch: PaddedBatch) -> Tensor:
        return torch.where(batch.mask[..., None], hidden, lowest(hidden.dtype)).amax(1)


class _Attention(nn.Module):
    """(B, S, D) -> (B, D), the mean weighted by learnt scores."""

    def __init__(self, pooling: AttentionPooling) -> None:
        super().__init__()
        self.of = pooling

    def forward(self, hidden: Tensor, batch: PaddedBatch) -> Tensor:
        scores = self.of.score(self.of.dense(hidden).tanh())[..., 0]
        weights = torch.where(batch.mask, scores, lowest(scores.dtype)).softmax(1)
        return (hidden * weights[..., None]).sum(1)


def _pooling(pooling: nn.Module) -> nn.Module:
    if isinstance(pooling, MeanPooling):
        return _Mean()
    if isinstance(pooling, MaxPooling):
        return _Max()
    if isinstance(pooling, AttentionPooling):
        return _Attention(pooling)
    if isinstance(pooling, FirstPooling):
        return _First()
    raise InputError(
        "recurrent pooling (gru, lstm) depends on the length of each text and cannot be "
        "exported; fine-tune with --pooling mean, max or attention"
    )


class _Pooler(nn.Module):
    """``Pooler`` for padded texts: (B, S, D) -> (B, D)."""

    def __init__(self, pooler: Pooler) -> None:
        super().__init__()
        self.of = pooler

    def forward(self, hidden: Tensor, batch: PaddedBatch) -> Tensor:
        first = hidden[:, 0]
        return first if self.of.plain else self.of.dense(first).tanh()


class _Ngrams(nn.Module):
    """``NgramTable`` for padded texts: (B, S) -> (B, W)."""

    def __init__(self, table: NgramTable) -> None:
        super().__init__()
        self.of = table

    def forward(self, batch: PaddedBatch, *, grouped: bool) -> Tensor:
        tokens, mask = batch.token_ids, batch.mask
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
    if config.position_embedding_type == "transformer_xl":
        raise InputError("an xlnet model cannot be exported")
    made = copy.deepcopy(model, {id(p): p for p in model.parameters()}).eval()
    encoder: Any = made.encoder
    encoder.embeddings = PaddedEmbeddings(encoder.embeddings)
    if encoder.gate is not None:
        encoder.gate = _Gate(encoder.gate)
    if encoder.distances is not None:
        encoder.distances = PaddedDistances(encoder.distances, config.longest)
    if encoder.convolution is not None:
        encoder.convolution = PaddedConvolution(encoder.convolution)
    for block in encoder.blocks:
        block.attention = PaddedAttention(block.attention)
        if isinstance(block, EncoderBlock):
            block.chunk = 0  # Chunks save memory in training; results are equal.
    if not made.heads:
        made.pooler = None  # Its output is not exported.
    if made.pooler is not None:
        made.pooler = _Pooler(made.pooler)  # pyright: ignore[reportAttributeAccessIssue]
    for head in made.heads.values():
        if getattr(head, "features", None) is not None:
            raise InputError(
                "a model that reads word features cannot be exported: engines read only texts"
            )
        if isinstance(head, ClassificationHead | EmbeddingHead) and head.pooling is not None:
            head.pooling = _pooling(head.pooling)
        if isinstance(head, ClassificationHead) and head.segments is not None:
            # A row of the graph is a document with one window, whose vector is unchanged.
            _pooling(head.segments)
        if isinstance(head, ClassificationHead) and head.ngrams is not None:
            head.ngrams = _Ngrams(head.ngrams)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(head, TokenHead):
            head.crf = None
    return made
