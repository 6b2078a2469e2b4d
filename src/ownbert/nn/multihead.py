"""Multi-head attention (Vaswani et al. 2017, section 3.2.2): self-attention and cross-attention.

T tokens, T' tokens of an encoder, B sequences, D hidden, H heads, K head size.
"""

import torch
from torch import Tensor, nn

from ownbert.batches.layout import Layout
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.attention.attend import Bias, attend
from ownbert.nn.context import Context
from ownbert.nn.layers import Dropout, Linear
from ownbert.nn.positions import Alibi, RelativeBuckets, RelativeSinusoids, make_bias, rotate
from ownbert.nn.variants.disentangled import DisentangledBias
from ownbert.nn.variants.sesame import blur

# Names of the matrices counted by ``MultiHeadAttention.fused``.
_KINDS = ("queries", "keys", "values")


class MultiHeadAttention(nn.Module):
    """The common part of all kinds of attention: heads, bias of the scores, output matrix.

    Subclasses compute queries, keys and values in ``forward``.

    Args:
        block: index of the block, for its pruned heads.
        projections: by name, the matrices (D, HK) of queries, keys and values, or two or three of
            these concatenated. Head h owns the columns ``h * K : (h + 1) * K`` of each.

    Attributes:
        kept: indices of the heads that are not pruned.
        window: maximum distance in self-attention; None: the whole sequence.
        blur: sigma of a Gaussian over outputs of neighbouring tokens; None: no blur.
        fused: number of concatenated matrices in each projection, by name.
    """

    def __init__(self, config: EncoderConfig, block: int, **projections: Linear) -> None:
        super().__init__()
        self.kept, self.head_size = config.kept_heads(block), config.head_size
        self.rotary = config.positions.rotary
        self.rotary_base = config.rotary_base_of(block)
        self.window = config.window_of(block)
        self.blur = config.attention_blur
        # Scores are divided by sqrt(K) later on, so queries are pre-scaled for other scales.
        scale = config.score_scale
        self.scaled = None if scale is None else scale * self.head_size**0.5
        self.fused: dict[str, int] = {}
        for name, linear in projections.items():
            self.add_module(name, linear)
            self.fused[name] = linear.out_features // self.width
        self.output = Linear(self.width, config.attention_size, bias=config.output_bias)
        self.dropout = Dropout(config.attention_probs_dropout_prob)
        self.bias = make_bias(config, self.kept)

    @property
    def heads(self) -> int:
        return len(self.kept)

    @property
    def width(self) -> int:
        """HK, the total width of all heads."""
        return self.heads * self.head_size

    def attend_to_self(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, layer: int
    ) -> Tensor:
        """Self-attention, including cached tokens: q, k, v (T, H, K) -> (T, D)."""
        if self.rotary:
            q, k = (rotate(x, context.positions, self.rotary_base) for x in (q, k))
        if isinstance(self.bias, RelativeSinusoids):
            q, k = self.bias.extended(q, k, context.segments, context.segments)
        if context.cache is not None:
            k, v = context.cache.append(layer, k, v, context.layout)
        return self.attend(q, k, v, context, layer)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context, layer: int) -> Tensor:
        """Attention of all heads, head masks, and the output matrix: q (T, H, K), k and v (T', H,
        K) -> (T, D)."""
        layout, collected = self.layout_of(context)
        out = self.attended(q, k, v, context, layer, layout, collected)
        return self.output(out.flatten(1))

    def attended(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        context: Context,
        layer: int,
        layout: Layout,
        collected: dict[int, list[Tensor]],
    ) -> Tensor:
        """Like ``attend``, with a given layout and without the output matrix: (T, H, K)."""
        bias = self.bias_in(context)
        out, weights = attend(
            q if self.scaled is None else q * self.scaled,
            k,
            v,
            layout,
            dropout=self.dropout.p if self.training else 0.0,
            bias=bias.over(layout) if isinstance(bias, RelativeSinusoids) else bias,
            weights=layer in context.keep,
        )
        mask = context.head_mask
        if mask is not None:
            # Scaling a head's output is equivalent to scaling its weights.
            scale = mask[layer].to(out.dtype)
            if scale.shape[-1] != self.heads:
                scale = scale[..., list(self.kept)]  # (H) or (B, H)
            out = out * (scale if scale.ndim == 1 else scale[layout.sequences])[..., None]
            if weights is not None:
                scales = scale.expand(len(weights), -1)[..., None, None]
                weights = [w * s for w, s in zip(weights, scales, strict=True)]
        if weights is not None and context.returned is not None:
            weights, out = context.returned.attended(weights, v, layout)
        if weights is not None:
            collected[layer] = weights
        return out if self.blur is None else blur(out, layout, self.blur)

    def layout_of(self, context: Context) -> tuple[Layout, dict[int, list[Tensor]]]:
        """The visible keys of each query, and where collected weights are stored, by layer."""
        return context.layout.within(self.window), context.attentions

    def bias_in(self, context: Context) -> Bias | None:
        """The bias of the scores in this pass."""
        return self.bias

    def prune(self, config: EncoderConfig, block: int) -> None:
        """Remove the heads that are pruned in ``config``."""
        kept = config.kept_heads(block)
        rows = torch.cat(
            [torch.arange(self.head_size) + self.kept.index(head) * self.head_size for head in kept]
        ).to(self.output.weight.device)
        for name, count in self.fused.items():
            linear = getattr(self, name)
            index = torch.cat([rows + i * self.width for i in range(count)])
            setattr(self, name, _select_outputs(linear, index, 0))
        self.output = _select_outputs(self.output, rows, 1)
        if isinstance(self.bias, Alibi):
            self.bias = Alibi(config, kept).to(self.output.weight.device)
        if isinstance(self.bias, RelativeBuckets):
            self.bias.heads = kept
        if isinstance(self.bias, RelativeSinusoids):
            positions = [self.kept.index(head) for head in kept]
            self.bias.keep(positions, _select_outputs(self.bias.distance, rows, 0))
        self.kept = kept

    def extra_repr(self) -> str:
        numbers = "" if self.kept == tuple(range(self.heads)) else f", kept={list(self.kept)}"
        window = "" if self.window is None else f", window={self.window}"
        blur = "" if self.blur is None else f", blur={self.blur}"
        lines = [f"heads={self.heads}, head_size={self.head_size}{numbers}{window}{blur}"]
        kinds = iter(_KINDS)
        for name, parts in self.fused.items():
            matrices = ", ".join(next(kinds) for _ in range(parts))
            lines.append(f"columns of {name}: ({matrices}) x {self.heads} heads x {self.head_size}")
        return "\n".join(lines)


class Attention(MultiHeadAttention):
    """Multi-head self-attention; one D x 3HK matrix projects to queries, keys and values of all
    heads. The number of heads does not change the number of parameters, 4 D^2 + 4 D.

    Source: Vaswani et al. 2017, section 3.2.2.
    """

    qkv: Linear

    def __init__(self, config: EncoderConfig, block: int = 0) -> None:
        width = len(config.kept_heads(block)) * config.head_size
        qkv = Linear(config.hidden_size, 3 * width, bias=config.qkv_bias)
        super().__init__(config, block, qkv=qkv)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(..., D) -> queries, keys, values (..., H, K)"""
        shape = *hidden.shape[:-1], 3, self.heads, self.head_size
        q, k, v = self.qkv(hidden).view(shape).unbind(-3)
        return q, k, v

    def forward(self, hidden: Tensor, context: Context, layer: int = 0) -> Tensor:
        """(T, D) -> (T, D); with a query stream (T + M, D) -> (T + M, D)."""
        q, k, v = self.project(hidden)
        if context.query_stream is None:
            return self.attend_to_self(q, k, v, context, layer)
        return self._two_streams(q, k, v, context, layer)

    def _two_streams(self, q: Tensor, k: Tensor, v: Tensor, context: Context, layer: int) -> Tensor:
        """Attention of two streams to the tokens: (T + M, H, K) each -> (T + M, D) (Yang et al.
        2019, section 2.3)."""
        stream, bias = context.query_stream, self.bias
        assert stream is not None
        assert isinstance(bias, RelativeSinusoids)
        count = sum(stream.layout.lengths)
        content, queries = q[:count], stream.to_tokens(q[count:])
        k, v, segments = k[:count], v[:count], context.segments
        queries, _ = bias.extended(queries, k, segments, segments)
        content, k = bias.extended(content, k, segments, segments)
        if context.cache is not None:
            k, v = context.cache.append(layer, k, v, context.layout)
        layout, kept = self.layout_of(context)
        content_out = self.attended(content, k, v, context, layer, layout, kept)
        kept = context.query_attentions
        query_out = self.attended(queries, k, v, context, layer, stream.layout, kept)
        return self.output(torch.cat((content_out, stream.of_tokens(query_out))).flatten(1))

    def bias_in(self, context: Context) -> Bias | None:
        """Project the relative-position vectors with this layer's matrices, once per pass."""
        if isinstance(self.bias, DisentangledBias) and context.distances is not None:
            return self.bias.scores(self.project, context.distances)
        return self.bias


class CrossAttention(MultiHeadAttention):
    """Attention of a decoder's queries to keys and values from an encoder's hidden states.

    Only heads of self-attention can be pruned, as in Transformers.

    Source: Vaswani et al. 2017, section 3.2.3.
    """

    query: Linear
    key_value: Linear

    def __init__(self, config: EncoderConfig) -> None:
        width = config.num_attention_heads * config.head_size
        query = Linear(config.hidden_size, width, bias=config.qkv_bias)
        key_value = Linear(config.hidden_size, 2 * width, bias=config.qkv_bias)
        super().__init__(config, -1, query=query, key_value=key_value)
        self.bias = self.window = None  # Distances between two texts are meaningless.

    def forward(self, hidden: Tensor, context: Context, layer: int = 0) -> Tensor:
        """(T, D) -> (T, D)"""
        q = self.query(hidden).view(-1, self.heads, self.head_size)
        k, v = self.keys_and_values(context, layer)
        return self.attend(q, k, v, context, layer)

    def layout_of(self, context: Context) -> tuple[Layout, dict[int, list[Tensor]]]:
        assert context.cross is not None
        return context.cross, context.cross_attentions

    def keys_and_values(self, context: Context, layer: int) -> tuple[Tensor, Tensor]:
        """(T', H, K) each: computed once per source, then taken from the cache."""
        cache = context.cache
        if cache is not None and layer in cache.cross_attention:
            return cache.cross_attention[layer]
        assert context.encoder_hidden is not None
        assert context.cross is not None
        both = self.key_value(context.encoder_hidden).view(-1, 2, self.heads, self.head_size)
        k, v = both.unbind(1)
        if cache is not None:
            cache.memory_layout = context.cross.keys or context.cross
            cache.cross_attention[layer] = k, v
        return k, v


def _select_outputs(linear: Linear, index: Tensor, dim: int) -> Linear:
    """The rows (0) or columns (1) ``index`` of a linear layer."""
    weight = linear.weight.detach().index_select(dim, index)
    part = Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None).to(weight)
    part.weight.data.copy_(weight)
    if linear.bias is not None:
        bias = linear.bias.detach()
        part.bias.data.copy_(bias[index] if dim == 0 else bias)
    return part.requires_grad_(linear.weight.requires_grad)
