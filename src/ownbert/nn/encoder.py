"""The encoder: embeddings and a stack of blocks. T tokens, D hidden."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ownbert.batches.batch import Batch
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.blocks import EncoderBlock
from ownbert.nn.context import AsPacked, Context, QueryStream
from ownbert.nn.embeddings import Embeddings
from ownbert.nn.layers import Dropout, make_norm, onednn_is_faster, product_dtype, rows_to_multiply
from ownbert.nn.variants.bottleneck import BottleneckBlock
from ownbert.nn.variants.convolution import Convolution
from ownbert.nn.variants.disentangled import DistanceTable
from ownbert.nn.variants.patches import PatchEmbeddings
from ownbert.nn.variants.sesame import LayerGate

# Position kinds that are added to the embeddings.
_OF_EMBEDDINGS = ("absolute", "sinusoidal", "sinusoidal_halves")


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
        self.embeddings: Embeddings = (
            Embeddings(config) if config.image is None else PatchEmbeddings(config)  # pyright: ignore
        )
        kind = EncoderBlock if config.mobile is None else BottleneckBlock
        self.blocks = nn.ModuleList(kind(config, i) for i in range(config.num_blocks))
        self.buckets: nn.Module | None = None
        if config.position_embedding_type == "relative_buckets":
            self.buckets = self.blocks[0].attention.bias.table  # pyright: ignore
            for block in self.blocks:
                block.attention.bias.share(self.buckets)  # pyright: ignore
        # Whether blocks treat rows independently, except in attention.
        self.fills = kind is EncoderBlock and config.position_embedding_type in _OF_EMBEDDINGS
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
        """Packed batch -> hidden states (T, D), and those between layers.

        With a query stream its M rows follow those of the tokens, (T + M, D).

        Args:
            context: by default ``plain_context``.
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
        """Number of zero rows that pad the matrix products of blocks in training.

        Padding once avoids a copy for each product. No token attends to these rows.
        """
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
        segmented = self.config.position_embedding_type == "transformer_xl"
        segments = batch.type_ids if segmented else None
        return Context(layout, batch.positions, segments=segments, query_stream=stream)

    def schedule(self) -> list[tuple[nn.Module, bool]]:
        """The blocks in the order of execution, and whether a layer ends with each.

        Layers of a group (ALBERT) share blocks.
        """
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
