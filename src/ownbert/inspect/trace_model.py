"""Self-attention of one head of a model, step by step, with the model's own numbers.

The model runs as it always does; what passes through one attention layer is noted.
T tokens, D hidden, H heads, K head size.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.checkpoint import load, load_tokenizer
from ownbert.data.batch import Batch, Example, pack
from ownbert.errors import InputError
from ownbert.inspect.parts import ranges
from ownbert.inspect.trace import Trace
from ownbert.inspect.trace_steps import Noted, cut_of, steps_of
from ownbert.nn.context import Context
from ownbert.nn.model import Model
from ownbert.nn.multihead import MultiHeadAttention as Attention
from ownbert.text.tokenizer import Tokenizer


def trace_folder(folder: str | Path, text: str, layer: int = 0, head: int = 0) -> Trace:
    """``trace_model`` of the model and the tokenizer of a folder."""
    if not Path(folder).is_dir():
        raise InputError(f"no such folder: {folder}")
    model = load(folder)
    return trace_model(model, load_tokenizer(folder, config=model.config), text, layer, head)


@torch.inference_mode()
def trace_model(
    model: nn.Module, tokenizer: Tokenizer, text: str, layer: int = 0, head: int = 0
) -> Trace:
    """What one head of one layer does with a text; layers and heads are counted from 0.

    ``InputError`` for a layer or head that is not there, a text that is longer than the model
    takes, and models that do not read one text alone (pictures, decoders with an encoder).
    """
    core = model if isinstance(model, Model) else getattr(model, "model", None)
    if not isinstance(core, Model):
        raise InputError(f"{type(model).__name__} is no model of ours; give one, or a folder")
    attention = _attention(core, layer)
    place = _place(attention, layer, head)
    (inner,) = tokenizer.encode_batch([text])
    ids = [tokenizer.cls_id, *inner, tokenizer.sep_id]
    longest = core.config.max_length
    if longest is not None and len(ids) > longest:
        raise InputError(
            f"the text has {len(ids):,} tokens with the special ones; the model takes at most "
            f"{longest:,}"
        )
    array = np.asarray(ids, dtype=np.int64)
    batch = pack([Example(array, np.zeros_like(array))]).to(core.device)
    context = replace(core.encoder.plain_context(batch), keep=frozenset([layer]))
    noted = _run(core, attention, batch, context, layer)
    tokens = tuple(tokenizer.tokens(ids))
    weights = context.attentions[layer][0][place]
    cut = cut_of(attention, head, place)
    steps = steps_of(attention, cut, noted, weights, tokens)
    name = model.__class__.__name__ if core is not model else core.model_type
    facts = {
        "model": f"{name}, {core.config.num_hidden_layers} layers of "
        f"{core.config.num_attention_heads} heads",
        "layer": str(layer),
        "head": str(head),
        "tokens": str(len(tokens)),
    }
    title = f"Layer {layer}, head {head}, step by step"
    return Trace(title, facts, tuple(steps), cut)


def _attention(model: Model, layer: int) -> Attention:
    config, schedule = model.config, model.encoder.schedule()
    if config.image is not None:
        raise InputError("the model reads pictures; a trace is of a text")
    if config.add_cross_attention:
        raise InputError("the model attends to an encoder as well; a trace is of one text alone")
    if layer not in range(len(schedule)):
        raise InputError(f"there is no layer {layer}; they are 0..{len(schedule) - 1}")
    return schedule[layer][0].attention  # pyright: ignore[reportReturnType]


def _place(attention: Attention, layer: int, head: int) -> int:
    """Of the head among those that are left."""
    if head in attention.kept:
        return attention.kept.index(head)
    raise InputError(f"layer {layer} has no head {head}; it has {ranges(attention.kept)}")


def _run(model: Model, attention: Attention, batch: Batch, context: Context, layer: int) -> Noted:
    noted = Noted(causal=context.layout.causal, norm_first=model.config.norm_first)
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with _watched(attention, layer, noted):
            model(batch, (), context=context)
    finally:
        for module in training:
            module.training = True
    return noted


@contextmanager
def _watched(attention: Attention, layer: int, noted: Noted) -> Iterator[None]:
    """Layers may share their weights (ALBERT), so only the run of ``layer`` is noted."""
    attend: Any = attention.attend
    latest: dict[str, Tensor] = {}
    made: dict[str, Tensor] = {}

    def watched(q: Tensor, k: Tensor, v: Tensor, context: Context, number: int) -> Tensor:
        noted.now = number == layer
        if noted.now:
            noted.inputs, noted.before, noted.after = dict(latest), dict(made), (q, k, v)
        result = attend(q, k, v, context, number)
        noted.now = False
        return result

    def outward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if noted.now:
            noted.joined, noted.output = inputs[0], output

    def inward(name: str):
        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            latest[name], made[name] = inputs[0], output

        return note

    with ExitStack() as stack:
        for name in attention.fused:
            hook = getattr(attention, name).register_forward_hook(inward(name))
            stack.callback(hook.remove)
        stack.callback(attention.output.register_forward_hook(outward).remove)
        object.__setattr__(attention, "attend", watched)
        stack.callback(object.__delattr__, attention, "attend")
        yield
