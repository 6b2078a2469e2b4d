"""The encoder: embeddings and a stack of blocks. T tokens, E embedding size, D hidden."""

import math
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ownbert.batches.batch import Batch
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.accumulation import candidate_rows
from ownbert.nn.blocks import EncoderBlock
from ownbert.nn.context import AsPacked, Context, QueryStream
from ownbert.nn.layers import (
    Dropout,
    Linear,
    make_norm,
    onednn_is_faster,
    product_dtype,
    rows_to_multiply,
)
from ownbert.nn.positions import sinusoids
from ownbert.nn.variants.bottleneck import BottleneckBlock
from ownbert.nn.variants.disentangled import Convolution, DistanceTable
from ownbert.nn.variants.sesame import LayerGate


class Embeddings(nn.Module):
    """The sum of the embedding tables in the config, then LayerNorm and dropout.

    The Transformer of 2017 has no LayerNorm here. If E differs from D, ``projection`` maps the sum
    to D (ALBERT, ELECTRA). MobileBERT projects the words before the sum, each concatenated with its
    two neighbours, which are zero beyond the ends of a text; DeBERTa projects the sum before
    LayerNorm.

    Source: Devlin et al. 2019, figure 2; Sun et al. 2020, section 3.1.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        width = config.embedding_size or hidden
        self.kind, self.offset = config.position_embedding_type, config.position_offset
        self.positions = config.positions
        self.longest = config.max_length
        self.scale = math.sqrt(width) if config.scale_embeddings else 1.0
        # T5 and XLNet learn the vector of padding: T5's decoder starts with this token.
        padding = None if self.positions.learns_padding else config.pad_token_id
        self.word = nn.Embedding(config.vocab_size, width, padding_idx=padding)
        self.trigram = config.mobile is not None and config.mobile.trigram_input
        self.widen_first = config.mobile is not None
        self.norm_last = config.disentangled is not None
        size = hidden if self.widen_first else width
        if self.positions.table:
            self.position = nn.Embedding(config.max_position_embeddings, size)
        if config.type_vocab_size:
            self.token_type = nn.Embedding(config.type_vocab_size, size)
        if config.task_type_vocab_size:
            self.task_type = nn.Embedding(config.task_type_vocab_size, size)
        self.mask = nn.Parameter(torch.zeros(hidden)) if config.mask_vector else None
        # In Transformers 4.57.6 the LayerNorm of MobileBERT's embeddings has PyTorch's epsilon.
        eps = 1e-5 if self.widen_first else None
        normed = hidden if self.norm_last else size
        self.norm = make_norm(config, normed, eps=eps) if config.norm_embeddings else None
        self.dropout = Dropout(config.hidden_dropout_prob)
        if config.embedding_size is not None:
            bias = not self.norm_last
            self.projection = Linear(width * (3 if self.trigram else 1), hidden, bias=bias)

    def forward(self, batch: Batch) -> Tensor:
        """Packed batch -> (T, D)."""
        length = (batch.layout.keys or batch.layout).max_seqlen  # including cached tokens
        if self.longest is not None and length > self.longest:
            raise ValueError(
                f"a sequence of {length} tokens is longer than the {self.longest} positions of "
                "the model; truncate it"
            )
        hidden = self._words(batch) if batch.embeds is None else batch.embeds  # (T, E)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        if self.trigram:
            before, after = batch.layout.beside(hidden, repeat=False)
            hidden = torch.cat((after, hidden, before), -1)  # (T, 3E)
        if self.widen_first and hasattr(self, "projection"):
            hidden = self.projection(hidden)  # (T, D)
        if self.positions.table:
            hidden = hidden + self.position(batch.positions + self.offset)
        elif self.positions.waves is not None:
            halves = self.positions.waves == "halves"
            known = sinusoids(batch.positions, hidden.shape[-1], halves=halves)
            hidden = hidden + known.to(hidden.dtype)
        if hasattr(self, "token_type"):
            hidden = hidden + self.token_type(batch.type_ids)
        if hasattr(self, "task_type"):
            tasks = torch.zeros_like(batch.token_ids) if batch.task_ids is None else batch.task_ids
            hidden = hidden + self.task_type(tasks)
        if self.norm_last and hasattr(self, "projection"):
            hidden = self.projection(hidden)
        hidden = hidden if self.norm is None else self.norm(hidden)
        if self.norm_last and batch.layout.is_token is not None:
            hidden = hidden * batch.layout.is_token
        hidden = self.dropout(hidden)
        if not (self.widen_first or self.norm_last) and hasattr(self, "projection"):
            hidden = self.projection(hidden)
        return hidden

    def _words(self, batch: Batch) -> Tensor:
        """(T, E)"""
        if batch.candidates is None:
            return self.word(batch.token_ids)
        rows = candidate_rows(self.word.weight, batch.candidates)
        return F.embedding(batch.candidates.index_of(batch.token_ids), rows)

    def predicted(self, count: int) -> Tensor:
        """The initial vectors (count, D) of tokens to be predicted, equal for all tokens."""
        if self.mask is None:
            raise ValueError("this model has no query stream: mask_vector is false")
        return self.dropout(self.mask.expand(count, -1))

    def extra_repr(self) -> str:
        longest = "" if self.longest is None else f", longest={self.longest}"
        return f"positions={self.kind}{longest}"


class Encoder(nn.Module):
    """BERT without pooler and heads; also the encoder of ViT, and the decoder of a Transformer.

    With ``config.is_decoder`` self-attention is causal; ``add_cross_attention`` adds attention to
    an encoder.

    Attributes:
        buckets: the bias table of ``relative_buckets``, shared by all blocks.
        gradient_checkpointing: whether to recompute the blocks' activations in the backward pass
            (Chen et al. 2016), which saves memory and takes a third more time; initially false.

    Source: Devlin et al. 2019, section 3; Vaswani et al. 2017, section 3.1.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.gradient_checkpointing = False
        made = Embeddings if config.image is None else resolve_name(config.image.EMBEDDINGS)
        self.embeddings: Embeddings = made(config)
        kind = EncoderBlock if config.mobile is None else BottleneckBlock
        self.blocks = nn.ModuleList(kind(config, i) for i in range(config.num_blocks))
        self.buckets: nn.Module | None = None
        if config.positions.shared:
            self.buckets = self.blocks[0].attention.bias.table  # pyright: ignore
            for block in self.blocks:
                block.attention.bias.share(self.buckets)  # pyright: ignore
        # Whether blocks treat rows independently, except in attention.
        self.fills = kind is EncoderBlock and config.positions.of_embeddings
        self.fills &= config.attention_blur is None and config.layer_gate is None
        self.fills &= config.disentangled is None and not config.chunk_size_feed_forward
        self.norm = self.distances = self.convolution = None
        if config.final_norm:
            self.norm = make_norm(config, config.hidden_size)
        self.gate = None if config.layer_gate is None else LayerGate(config)
        dropped = config.drop_output or config.drop_everywhere
        self.dropout = Dropout(config.hidden_dropout_prob) if dropped else None
        if config.disentangled is not None:
            self.distances = DistanceTable(config) if config.disentangled.terms else None
            self.convolution = Convolution(config) if config.disentangled.conv_kernel_size else None

    def forward(
        self, batch: Batch, context: Context | None = None, *, keep_hidden: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Packed batch -> hidden states (T, D), and those between layers. With a query stream its M
        rows follow those of the tokens, (T + M, D).

        Args:
            keep_hidden: also return the hidden states before and after each layer, L + 1 tensors
                (T, D); the last one is before ``final_norm``, as in Transformers' ViT, and before
                ``layer_gate``.
        """
        context = self.plain_context(batch) if context is None else context
        hidden = embedded = self.embeddings(batch)
        if self.distances is not None:
            context.distances = self.distances(context.layout)
        if context.query_stream is not None:
            predicted = self.embeddings.predicted(len(context.query_stream.rows))
            hidden = torch.cat((hidden, predicted.to(hidden.dtype)))
        extra = 0 if keep_hidden else self._extra_rows(hidden, context)
        hidden = F.pad(hidden, (0, 0, 0, extra)) if extra else hidden
        kept: list[Any] = []
        if keep_hidden:
            hidden = embedded = self._record_hidden(hidden, context, kept)
        layers = []
        # Recomputation would append to the cache twice.
        again = self.gradient_checkpointing and self.training and context.cache is None
        for layer, (block, ends) in enumerate(self.schedule()):
            if again and hidden.requires_grad:
                hidden = checkpoint(block, hidden, context, layer, use_reentrant=False)
            else:
                hidden = block(hidden, context, layer)
            if layer == 0 and self.convolution is not None:
                hidden = self.convolution(embedded, hidden, context.layout)
            if ends and keep_hidden:
                hidden = self._record_hidden(hidden, context, kept)
            if ends and self.gate is not None:
                layers.append(hidden)
        if self.gate is not None:
            hidden = self.gate(layers, context.layout)
        hidden = hidden[:-extra] if extra else hidden
        hidden = hidden if self.norm is None else self.norm(hidden)
        hidden = hidden if self.dropout is None else self.dropout(hidden)
        if context.returned is not None:
            context.last_hidden, hidden = context.returned.hidden(hidden)
        return hidden, tuple(kept)

    def _record_hidden(self, hidden: Tensor, context: Context, kept: list[Any]) -> Tensor:
        """Append hidden states to ``kept``, and return the input of the next layer."""
        shown, hidden = (context.returned or AsPacked()).hidden(hidden)
        kept.append(shown)
        return hidden

    def _extra_rows(self, hidden: Tensor, context: Context) -> int:
        """Number of zero rows that pad the matrix products of blocks in training, to which no token
        attends; padding once avoids a copy for each product."""
        trains = self.training and torch.is_grad_enabled() and hidden.device.type == "cpu"
        alone = context.query_stream is None and context.head_mask is None
        alone = alone and context.cross is None and context.cache is None
        alone = alone and context.returned is None
        if not (self.fills and trains and alone):
            return 0
        dtype = product_dtype(hidden)
        if not onednn_is_faster(dtype):
            return 0
        widest = self.config.hidden_size * self.config.intermediate_size
        return rows_to_multiply(len(hidden), widest, dtype) - len(hidden)

    def plain_context(self, batch: Batch) -> Context:
        """The default context of a batch: attention within sequences, causal in a decoder."""
        layout = batch.layout
        if self.config.is_decoder and not layout.causal:
            layout = replace(layout, causal=True)
        stream = None
        if batch.predicted is not None:
            stream = QueryStream(batch.predicted, replace(layout, sees_itself=False))
        segments = batch.type_ids if self.config.positions.segments else None
        return Context(layout, batch.positions, segments=segments, query_stream=stream)

    def schedule(self) -> list[tuple[nn.Module, bool]]:
        """The blocks in the order of execution, which layers of a group (ALBERT) share, and whether
        a layer ends with each."""
        config, inner = self.config, self.config.inner_group_num
        if config.num_hidden_groups is None:
            return [(block, True) for block in self.blocks]
        order = []
        for layer in range(config.num_hidden_layers):
            group = config.group_of(layer)
            order += [(self.blocks[group * inner + i], i == inner - 1) for i in range(inner)]
        return order

    def extra_repr(self) -> str:
        layers, blocks = self.config.num_hidden_layers, len(self.blocks)
        if self.config.num_hidden_groups is None:
            return f"layers={layers}"
        return f"layers={layers}, shared: they run {blocks} block{'s' if blocks > 1 else ''}"
