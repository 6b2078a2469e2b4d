"""The encoder: embeddings and a stack of blocks. T tokens, D hidden."""

from dataclasses import replace

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ownbert.config import EncoderConfig
from ownbert.data.batch import Batch
from ownbert.nn.blocks import EncoderBlock
from ownbert.nn.bottleneck import BottleneckBlock
from ownbert.nn.context import Context
from ownbert.nn.embeddings import Embeddings
from ownbert.nn.patches import PatchEmbeddings


class Encoder(nn.Module):
    """BERT without its pooler and heads; with ``is_decoder`` a token sees none after it.

    Of pictures it is ViT, and with ``add_cross_attention`` the decoder of a Transformer.

    gradient_checkpointing: forget what is inside of the blocks and compute it again for the
    backward pass (Chen et al. 2016): less memory, a third more time.
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
        self.norm = None
        if config.final_norm:
            self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self, batch: Batch, context: Context | None = None, *, keep_hidden: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Hidden states (T, D), and with ``keep_hidden`` those before and after each layer (of the
        last one before ``final_norm``, as in Transformers' ViT)."""
        context = self.plain_context(batch) if context is None else context
        hidden = self.embeddings(batch)
        kept = [hidden]
        # A cache must not take what is computed a second time.
        again = self.gradient_checkpointing and self.training and context.cache is None
        for layer, (block, ends) in enumerate(self.schedule()):
            if again and hidden.requires_grad:
                hidden = checkpoint(block, hidden, context, layer, use_reentrant=False)
            else:
                hidden = block(hidden, context, layer)
            if keep_hidden and ends:
                kept.append(hidden)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden, tuple(kept) if keep_hidden else ()

    def plain_context(self, batch: Batch) -> Context:
        """Nothing but the batch: every token sees its sequence, or in a decoder what is before."""
        layout = batch.layout
        if self.config.is_decoder and not layout.causal:
            layout = replace(layout, causal=True)
        return Context(layout, batch.positions)

    def schedule(self) -> list[tuple[nn.Module, bool]]:
        """The blocks in the order in which they run, and whether a layer ends with it.

        Layers of a group (ALBERT) run the same blocks.
        """
        config, inner = self.config, self.config.inner_group_num
        if config.num_hidden_groups is None:
            return [(block, True) for block in self.blocks]
        runs = []
        for layer in range(config.num_hidden_layers):
            group = config.group_of(layer)
            runs += [(self.blocks[group * inner + i], i == inner - 1) for i in range(inner)]
        return runs

    def extra_repr(self) -> str:
        layers, blocks = self.config.num_hidden_layers, len(self.blocks)
        if self.config.num_hidden_groups is None:
            return f"layers={layers}"
        return f"layers={layers}, shared: they run {blocks} block{'s' if blocks > 1 else ''}"
