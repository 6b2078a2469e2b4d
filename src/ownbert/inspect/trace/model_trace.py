"""Traces self-attention of one head of a model, step by step, with the model's own numbers.

The model runs as usual while the tensors in one attention layer are traced.
T tokens, D hidden, H heads, K head size.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from ownbert.checkpoint import describe, load, load_tokenizer
from ownbert.exceptions import InputError
from ownbert.hub import model_folder
from ownbert.inspect.internals.observation import Observation, observation_of_text
from ownbert.inspect.observing import (
    core_model,
    evaluating,
    observing_attend,
    require_layers,
    text_batch,
    text_ids,
)
from ownbert.inspect.overview.parameters import head_columns, ranges
from ownbert.inspect.trace.model_steps import TracedHead
from ownbert.inspect.trace.trace import Trace
from ownbert.inspect.trace.trace_steps import HeadSlice
from ownbert.nn.context import Context
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention
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
    """Trace one attention head.

    Args:
        model: text model in any mode, which is restored.
        tokenizer: tokenizer of the model.
        text: text that fits in the model.
        layer: layer from 0.
        head: head from 0.

    Raises:
        InputError: the layer or head does not exist, the text is too long, or the model does not
            read a single text (image models, decoders with cross-attention).
    """
    core = core_model(model)
    attention = _attention(core, layer)
    index = _index(attention, layer, head)
    ids = text_ids(text, tokenizer)
    batch = text_batch(core, ids, " with the special ones")
    context = replace(core.encoder.plain_context(batch), keep=frozenset([layer]))
    tokens, head_slice = tuple(tokenizer.tokens(ids)), _head_slice(attention, index)
    traced = TracedHead(
        attention, head_slice, tokens, context.layout.causal, core.config.norm_first
    )
    with _capturing(traced, layer), evaluating(core):
        core(batch, (), context=context)
    name = model.__class__.__name__ if core is not model else core.model_type
    facts = {
        "model": f"{name}, {core.config.num_hidden_layers} layers of "
        f"{core.config.num_attention_heads} heads",
        "layer": str(layer),
        "head": str(head),
        "tokens": str(len(tokens)),
    }
    steps = traced.steps(context.attentions[layer][0][index])
    return Trace(f"Layer {layer}, head {head}, step by step", facts, tuple(steps), head_slice)


def _attention(model: Model, layer: int) -> MultiHeadAttention:
    config, schedule = model.config, model.encoder.schedule()
    if config.image is not None:
        raise InputError("the model reads images; a trace needs a text model")
    if model.config.position_embedding_type == "transformer_xl":
        raise InputError("a trace has no steps for the distances and segments of an xlnet model")
    if config.add_cross_attention:
        raise InputError("the model also attends to an encoder; a trace shows a single text")
    require_layers([layer], len(schedule))
    return schedule[layer][0].attention  # pyright: ignore[reportReturnType]


def _index(attention: MultiHeadAttention, layer: int, head: int) -> int:
    """The index of the head among those that are not pruned."""
    if head in attention.kept:
        return attention.kept.index(head)
    raise InputError(f"layer {layer} has no head {head}; it has {ranges(attention.kept)}")


def _head_slice(attention: MultiHeadAttention, index: int) -> HeadSlice:
    return HeadSlice(
        **vars(head_columns(attention)[index]),
        size=attention.output.out_features,
        width=attention.width,
        head_size=attention.head_size,
        heads=attention.kept,
    )


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
