"""The steps of a trace, from the captured tensors of one attention layer.

T tokens, D hidden, H heads, K head size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.layout import make_layout
from ownbert.inspect.trace.trace_steps import (
    PROJECTIONS,
    Derivation,
    HeadSlice,
    TraceStep,
    score_steps,
    weights_step,
)
from ownbert.nn.attention.attend import Bias
from ownbert.nn.multihead import MultiHeadAttention
from ownbert.nn.variants.sesame import blur


@dataclass
class TracedHead:
    """An attention head, and the tensors captured in its layer during a forward pass.

    Args:
        attention: attention of the layer.
        cut: the head's part of the layer.
        tokens: T tokens of the text.
        causal, norm_first: settings of the model.
        projections: inputs (T, D) and outputs of each fused matrix, by name.
        attended: queries, keys and values (T, H, K) passed to ``attend``.
        bias: term added to the scores.
        joined: (T, HK) input of the output matrix.
        output: (T, D) output of the output matrix.
    """

    attention: MultiHeadAttention
    cut: HeadSlice
    tokens: tuple[str, ...]
    causal: bool
    norm_first: bool
    projections: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    attended: tuple[Tensor, ...] = ()
    bias: Bias | None = None
    joined: Tensor | None = None
    output: Tensor | None = None

    def steps(self, weights: Tensor) -> list[TraceStep]:
        """All steps of the head, whose attention weights (T, T) are given."""
        steps = self._projected()
        index, size = self.cut.rows[0] // self.cut.head_size, self.cut.head_size
        q, k = (_array(x[:, index]) for x in self.attended[:2])
        if self.attention.rotary:
            meaning = "pairs of numbers rotated by the token's position (rotary)"
            for name, values in (("queries", q), ("keys", k)):
                made = Derivation("rotate", f"{name}_unturned")
                steps.append(
                    TraceStep(name, f"{name}, rotated", values, meaning, made, self.tokens)
                )
        factor = size**-0.5 * (self.attention.scaled or 1.0)
        squares = score_steps(q @ k.T, factor=factor, size=size)
        if self.bias is not None:
            squares += self._distances(self.bias, index, squares[-1])
        squares += _masked(self.attention.window, self.causal, squares[-1])
        squares.append(weights_step(_array(weights), squares[-1].key))
        steps += [replace(step, rows=self.tokens, columns=self.tokens) for step in squares]
        return [*steps, *self._outputs(_array(weights))]

    def _projected(self) -> list[TraceStep]:
        """The layer's input, the head's part of the matrices, and its queries, keys and values."""
        steps: list[TraceStep] = []
        products: list[TraceStep] = []
        sources: dict[str, Tensor] = {}  # the matrices may have different inputs (MobileBERT)
        normed = ", already normalised (pre-norm)" if self.norm_first else ""
        for name, (matrix, first, last) in self.cut.columns.items():
            linear: torch.nn.Linear = getattr(self.attention, matrix)
            hidden, projected = self.projections[matrix]
            source = next((key for key, other in sources.items() if other is hidden), None)
            if source is None:
                source = f"hidden_{matrix}" if sources else "hidden"
                title = f"hidden states into {matrix}" if sources else "incoming hidden states"
                meaning = f"the input of attention, one row per token{normed}"
                steps.append(TraceStep(source, title, _array(hidden), meaning, rows=self.tokens))
                sources[source] = hidden
            own, (key, meaning) = slice(first, last + 1), PROJECTIONS[name]
            numbers = tuple(str(i) for i in range(first, last + 1))
            words = (
                f"columns {first}..{last} of {matrix}, {linear.in_features} x {linear.out_features}"
            )
            w = _array(linear.weight[own].T)
            products.append(TraceStep(key, f"{key} matrix", w, words, columns=numbers))
            bias = f"{key}_bias" if linear.bias is not None else ""
            if bias:
                b, words = _array(linear.bias[own])[None], "added to each row of the product"
                products.append(TraceStep(bias, f"{key} bias", b, words, columns=numbers))
            result = f"{name}_unturned" if self.attention.rotary and name != "values" else name
            made, values = Derivation("product", source, key, bias=bias), _array(projected[:, own])
            products.append(TraceStep(result, name, values, meaning, made, self.tokens))
        return [*steps, *products]

    def _distances(self, bias: Bias, index: int, scores: TraceStep) -> list[TraceStep]:
        """The relative-position term of the scores, and the sum."""
        meaning = {
            "RelativeBuckets": "a learnt number for the bucket of each distance",
            "Alibi": "minus the distance times the slope of this head",
            "RelativeKeys": "queries (and keys) times a learnt vector for each distance",
            "DisentangledBias": "queries (and keys) times what the layer makes of a vector for "
            "each distance",
        }[type(self.attention.bias).__name__]
        q, k, _ = (x.transpose(0, 1)[None] for x in self.attended)
        at = torch.arange(q.shape[2], device=q.device)
        added = bias(q * (self.attention.scaled or 1.0), k, (at[:, None] - at)[None])[0, index]
        distance = TraceStep("distance", "scores of distances", _array(added), meaning)
        total, made = scores.values + distance.values, Derivation("add", scores.key, "distance")
        words = "the input of the softmax"
        return [distance, TraceStep("summed", "scores with distances", total, words, made)]

    def _outputs(self, weights: np.ndarray) -> list[TraceStep]:
        """The head's outputs (blurred or not), its contribution to the layer's output, and that
        output."""
        assert self.joined is not None
        assert self.output is not None
        cut, tokens = self.cut, self.tokens
        first, last = cut.rows
        outputs = _array(self.joined[:, first : last + 1])
        w = _array(self.attention.output.weight[:, first : last + 1].T)
        values = _array(self.attended[2][:, first // cut.head_size])
        share, total = outputs @ w, _array(self.output)
        numbers = tuple(str(i) for i in range(first, last + 1))
        words = (
            f"rows {first}..{last} of output, {cut.width} x {cut.size}",
            "what this head adds to the output of the layer",
            "everything else in the output",
            f"the sum of the shares of all {len(cut.heads)} heads and the bias leaves the layer",
        )
        made = Derivation("product", "outputs", "output")
        added = Derivation("add", "share", "rest")
        return [
            *_head_outputs(self.attention.blur, outputs, weights @ values, tokens),
            TraceStep("output", "output matrix", w, words[0], rows=numbers),
            TraceStep("share", "the head's share", share, words[1], made, tokens),
            TraceStep("rest", "the other heads and the bias", total - share, words[2], rows=tokens),
            TraceStep("attended", "output of attention", total, words[3], added, tokens),
        ]


def _masked(window: int | None, causal: bool, scores: TraceStep) -> list[TraceStep]:
    """The scores after masking, if there is a mask."""
    if window is None and not causal:
        return []
    places = np.arange(len(scores.values))
    far = places[:, None] - places
    seen = (far >= 0) | (not causal)
    hidden, who = "later", "a token sees itself and those before it; hidden"
    if window is not None:
        seen &= abs(far) <= window
        hidden = "distant"
        who = f"local attention: a token sees those at most {window} away; hidden"
    values, meaning = np.where(seen, scores.values, -np.inf), f"{who} scores get a weight of 0"
    made, rule = Derivation("hide", scores.key), f"{scores.key}, {hidden} tokens hidden"
    return [TraceStep("masked", "masked scores", values, meaning, made, rule=rule)]


def _head_outputs(
    sigma: float | None, outputs: np.ndarray, sharp: np.ndarray, tokens: tuple[str, ...]
) -> list[TraceStep]:
    """The head's output for each token and, if blurred, the blur matrix."""
    made = Derivation("product", "weights", "values")
    title, meaning = "the head's outputs", "the sum of what each token takes"
    if sigma is None:
        return [TraceStep("outputs", title, outputs, meaning, made, tokens)]
    layout = make_layout([len(tokens)])
    kernel = _array(blur(torch.eye(len(tokens), dtype=torch.float64), layout, sigma))
    words = f"row i: the shares of token i and its two neighbours (attention_blur {sigma:g})"
    blurred = Derivation("product", "gaussian", "sharp")
    name, after = "Gaussian of neighbouring tokens", "each token with a little of its neighbours"
    return [
        TraceStep("sharp", f"{title} before the blur", sharp, meaning, made, tokens),
        TraceStep("gaussian", name, kernel, words, rows=tokens, columns=tokens),
        TraceStep("outputs", title, outputs, after, blurred, tokens),
    ]


def _array(x: Tensor) -> np.ndarray:
    return x.detach().to("cpu", torch.float64).numpy()
