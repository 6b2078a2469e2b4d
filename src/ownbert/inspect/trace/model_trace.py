"""Traces self-attention of one head of a model, step by step, with the model's own numbers.

The model runs as usual while the tensors in one attention layer are traced.
T tokens, D hidden, H heads, K head size.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.layout import make_layout
from ownbert.checkpoint import describe, load, load_tokenizer
from ownbert.exceptions import InputError
from ownbert.hub import model_folder
from ownbert.inspect.internals.observation import Observation, observation_of_text
from ownbert.inspect.internals.observing import (
    core_model,
    evaluating,
    observing_attend,
    ranges,
    require_layers,
    text_batch,
    text_ids,
)
from ownbert.inspect.parameters import head_columns
from ownbert.inspect.trace.trace import (
    PROJECTIONS,
    Derivation,
    HeadSlice,
    Trace,
    TraceStep,
    score_steps,
    weights_step,
)
from ownbert.language.messages import Message
from ownbert.nn.attention.attend import Bias
from ownbert.nn.context import Context
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention
from ownbert.nn.variants.sesame import blur
from ownbert.text.tokenizer import Tokenizer


def trace_folder(folder: str | Path, text: str, layer: int = 0, head: int = 0) -> Trace:
    """``trace_model`` with the model and the tokenizer of a folder."""
    return trace_model(*_loaded(folder), text, layer, head)


def trace_and_observe(
    folder: str | Path, text: str, layer: int = 0, head: int = 0
) -> tuple[Trace, Observation]:
    """``trace_folder``, and an observation of the whole model, for the page."""
    model, tokenizer = _loaded(folder)
    trace = trace_model(model, tokenizer, text, layer, head)
    return trace, observation_of_text(model, tokenizer, text_ids(text, tokenizer))


def _loaded(folder: str | Path) -> tuple[Model, Tokenizer]:
    folder = model_folder(folder)
    description = describe(folder)
    return load(description), load_tokenizer(description)


@torch.inference_mode()
def trace_model(
    model: nn.Module, tokenizer: Tokenizer, text: str, layer: int = 0, head: int = 0
) -> Trace:
    """Trace one attention head of a text model in any mode, which is restored.

    Raises:
        InputError: the layer or head does not exist, the text is too long, or the model does not
            read a single text (image models, decoders with cross-attention).
    """
    core = core_model(model)
    attention = _attention(core, layer)
    if head not in attention.kept:
        message = "layer {layer} has no head {head}; it has {ranges}"
        raise InputError(message, layer, head, ranges(attention.kept))
    index = attention.kept.index(head)  # among those that are not pruned
    ids = text_ids(text, tokenizer)
    batch = text_batch(core, ids, " with the special ones")
    context = replace(core.encoder.plain_context(batch), keep=frozenset([layer]))
    tokens = tuple(tokenizer.tokens(ids))
    head_slice = HeadSlice(
        **vars(head_columns(attention)[index]),
        size=attention.output.out_features,
        width=attention.width,
        head_size=attention.head_size,
        heads=attention.kept,
    )
    traced = TracedHead(
        attention, head_slice, tokens, context.layout.causal, core.config.norm_first
    )
    with _capturing(traced, layer), evaluating(core):
        core(batch, (), context=context)
    layers, heads = core.config.num_hidden_layers, core.config.num_attention_heads
    facts = {
        "model": Message(
            "{name}, {num_hidden_layers} layers of {num_attention_heads} heads",
            *(core.model_type, layers, heads),
        )
    }
    facts |= {"layer": str(layer), "head": str(head), "tokens": str(len(tokens))}
    steps = traced.steps(context.attentions[layer][0][index])
    return Trace(
        Message("Layer {layer}, head {head}, step by step", layer, head),
        facts,
        tuple(steps),
        head_slice,
    )


def _attention(model: Model, layer: int) -> MultiHeadAttention:
    config, schedule = model.config, model.encoder.schedule()
    if config.image is not None:
        raise InputError("the model reads images; a trace needs a text model")
    if model.config.positions.segments:
        raise InputError("a trace has no steps for the distances and segments of an xlnet model")
    if config.add_cross_attention:
        raise InputError("the model also attends to an encoder; a trace shows a single text")
    require_layers([layer], len(schedule))
    return schedule[layer][0].attention  # pyright: ignore[reportReturnType]


@dataclass
class TracedHead:
    """An attention head (``cut``: its part of the layer), and the tensors captured in its layer:
    inputs (T, D) and outputs of each fused matrix, queries, keys and values (T, H, K), the term
    added to the scores, and input (T, HK) and output (T, D) of the output matrix."""

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
        for name, (matrix, first, last) in self.cut.columns.items():
            linear: torch.nn.Linear = getattr(self.attention, matrix)
            hidden, projected = self.projections[matrix]
            source = next((key for key, other in sources.items() if other is hidden), None)
            if source is None:
                source = f"hidden_{matrix}" if sources else "hidden"
                title = (
                    Message("hidden states into {matrix}", matrix)
                    if sources
                    else "incoming hidden states"
                )
                meaning = "the input of attention, one row per token"
                if self.norm_first:
                    meaning = (
                        "the input of attention, one row per token, already normalised (pre-norm)"
                    )
                steps.append(TraceStep(source, title, _array(hidden), meaning, rows=self.tokens))
                sources[source] = hidden
            own, (key, meaning) = slice(first, last + 1), PROJECTIONS[name]
            numbers = tuple(str(i) for i in range(first, last + 1))
            words = Message(
                "columns {first}..{last} of {matrix}, {in_features} x {out_features}",
                first,
                last,
                matrix,
                linear.in_features,
                linear.out_features,
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
            Message(
                "rows {first}..{last} of output, {width} x {size}", first, last, cut.width, cut.size
            ),
            "what this head adds to the output of the layer",
            "everything else in the output",
            Message(
                "the sum of the shares of all {count} heads and the bias leaves the layer",
                len(cut.heads),
            ),
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


@contextmanager
def _capturing(traced: TracedHead, layer: int) -> Iterator[None]:
    """Capture the tensors of ``layer`` only; layers may share their weights (ALBERT)."""
    attention = traced.attention
    latest: dict[str, tuple[Tensor, Tensor]] = {}  # input and output of each projection
    at_layer = False

    def project(name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        latest[name] = inputs[0], output

    def attend(q: Tensor, k: Tensor, v: Tensor, context: Context, number: int) -> None:
        nonlocal at_layer
        at_layer = number == layer
        if at_layer:
            traced.projections, traced.attended = dict(latest), (q, k, v)
            traced.bias = attention.bias_in(context)

    def leave(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if at_layer:
            traced.joined, traced.output = inputs[0], output

    with ExitStack() as stack:
        for name in attention.fused:
            hook = getattr(attention, name).register_forward_hook(partial(project, name))
            stack.callback(hook.remove)
        stack.callback(attention.output.register_forward_hook(leave).remove)
        stack.enter_context(observing_attend(attention, attend))
        yield


def _masked(window: int | None, causal: bool, scores: TraceStep) -> list[TraceStep]:
    """The scores after masking, if there is a mask."""
    if window is None and not causal:
        return []
    places = np.arange(len(scores.values))
    far = places[:, None] - places
    seen = (far >= 0) | (not causal)
    meaning = "a token sees itself and those before it; hidden scores get a weight of 0"
    rule = "{left}, later tokens hidden"
    if window is not None:
        seen &= abs(far) <= window
        rule = "{left}, distant tokens hidden"
        meaning = Message(
            "local attention: a token sees those at most {window} away; hidden scores get a weight "
            "of 0",
            window,
        )
    values, made = np.where(seen, scores.values, -np.inf), Derivation("hide", scores.key)
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
    words = Message(
        "row i: the shares of token i and its two neighbours (attention_blur {sigma:g})", sigma
    )
    blurred = Derivation("product", "gaussian", "sharp")
    name, after = "Gaussian of neighbouring tokens", "each token with a little of its neighbours"
    return [
        TraceStep("sharp", f"{title} before the blur", sharp, meaning, made, tokens),
        TraceStep("gaussian", name, kernel, words, rows=tokens, columns=tokens),
        TraceStep("outputs", title, outputs, after, blurred, tokens),
    ]


def _array(x: Tensor) -> np.ndarray:
    return x.detach().to("cpu", torch.float64).numpy()
