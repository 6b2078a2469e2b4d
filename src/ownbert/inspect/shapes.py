"""The output shape of each step, observed while the model runs on one text.

T tokens, T' tokens of the source text of a decoder, D hidden, E embedding size, N narrow width, H
heads, K head size, I intermediate, V vocabulary, C labels. One text: no B.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ownbert.batches.batch import Batch
from ownbert.batches.layout import make_layout
from ownbert.config.encoder import EncoderConfig
from ownbert.exceptions import InputError
from ownbert.inspect.internals.observing import evaluating, observing_attend, text_batch
from ownbert.language.messages import Message
from ownbert.nn.context import Context
from ownbert.nn.model import Model

# Path in the model; what is observed there (input or output; in attention also queries, keys,
# values and weights); the step's name, dimension letters and description.
_BLOCK = "encoder.blocks.0"
_STEPS = (
    ("encoder.embeddings.word", "out", "word vectors", "T E", "one row of the table per token"),
    ("encoder.embeddings.position", "out", "position vectors", "T E", "one per position, added"),
    ("encoder.embeddings.token_type", "out", "type vectors", "T E", "first or second text, added"),
    ("encoder.embeddings.task_type", "out", "task vectors", "T E", "added too"),
    ("encoder.embeddings", "out", "embeddings", "T D", "their sum, normalised: enters block 0"),
    (_BLOCK + ".narrow_attention", "out", "narrow input", "T N", "input of queries and keys"),
    (_BLOCK + ".narrow", "out", "narrow states", "T N", "input of the block"),
    (_BLOCK + ".attention.qkv", "out", "fused", "T 3HK", "one product for all heads, then split"),
    (_BLOCK + ".attention.query_key", "out", "fused", "T 2HK", "one product for all heads, split"),
    (_BLOCK + ".attention", "q", "queries", "T H K", "what each token looks for, one row per head"),
    (_BLOCK + ".attention", "k", "keys", "T H K", "what each token is found by"),
    (_BLOCK + ".attention", "v", "values", "T H K", "what each token passes on"),
    (
        _BLOCK + ".attention",
        "weights",
        "attention weights",
        "H T T",
        "softmax of queries x keys / sqrt(K): row i is what token i takes from each token",
    ),
    (_BLOCK + ".attention.output", "in", "heads' outputs", "T HK", "weights x values, joined"),
    (_BLOCK + ".attention.output", "out", "attention output", "T N", "the heads mixed by a matrix"),
    (_BLOCK + ".attention_norm", "out", "after attention", "T N", "added to the input, normalised"),
    (_BLOCK + ".cross_attention", "q", "cross queries", "T H K", "of the target text"),
    (_BLOCK + ".cross_attention", "k", "cross keys", "T' H K", "of the source text"),
    (_BLOCK + ".cross_attention", "v", "cross values", "T' H K", "of the source text"),
    (
        _BLOCK + ".cross_attention",
        "weights",
        "cross weights",
        "H T T'",
        "what each token takes from the source text",
    ),
    (_BLOCK + ".cross_attention_norm", "out", "after cross", "T D", "added and normalised"),
    (_BLOCK + ".feed_forward.up", "out", "feed-forward up", "T I", "each token separately, wider"),
    (_BLOCK + ".feed_forward.down", "out", "feed-forward down", "T D", "and back"),
    (
        _BLOCK + ".feed_forwards.0.network.up",
        "out",
        "feed-forward up",
        "T I",
        "each token separately",
    ),
    (_BLOCK + ".feed_forwards.0.network.down", "out", "feed-forward down", "T N", "and back"),
    (_BLOCK, "out", "block 0", "T D", "added, normalised: enters the next layer"),
    ("pooler", "out", "pooled", "1 D", "the first token through a dense layer and tanh"),
    (
        "heads.mlm",
        "out",
        "mlm logits",
        "T V",
        "a score for each token of the vocabulary; in pretraining at masked positions only",
    ),
    (
        "heads.nsp",
        "out",
        "nsp logits",
        "1 2",
        "the second text follows, or not; from the same pass as the others",
    ),
    ("heads.sop", "out", "sop logits", "1 2", "in order, or swapped"),
    ("heads.classification", "out", "class logits", "1 C", "a score for each label"),
    ("heads.choice", "out", "choice logit", "1 1", "a score for this choice"),
    ("heads.tokens", "out", "token logits", "T C", "a score for each label, at each token"),
    ("heads.span", "out", "span logits", "T 2", "does the answer start here, end here?"),
    ("heads.discriminator", "out", "discriminator", "T", "was this token replaced?"),
)
# Length of the source text for a decoder with cross attention, in tokens.
_SOURCE = 5
Sizes = tuple[int, ...]
Observed = dict[tuple[str, str], Sizes]


@dataclass(frozen=True)
class ShapeStep:
    """The output of a step: dimension letters of its shape ("T H K"), sizes and description."""

    name: str
    letters: str
    sizes: Sizes
    meaning: str


@dataclass(frozen=True)
class ForwardShapes:
    """The shapes in a forward pass of one text; tokens are None if only their number is given; the
    legend has sizes and meanings of the dimension letters."""

    tokens: tuple[str, ...] | None
    ids: tuple[int, ...]
    steps: tuple[ShapeStep, ...]
    legend: dict[str, tuple[int, str]]


def forward_shapes(
    model: Model, ids: Sequence[int], tokens: Sequence[str] | None = None
) -> ForwardShapes:
    """Run the model, in any mode, which is restored, on one text and record the shape of every
    step; ``InputError`` if there are no ids, or too many for the model."""
    if not len(ids):
        raise InputError("the number of tokens must be at least 1")
    note = ""
    if tokens is not None:
        note = Message(", {first} and {last} among them", tokens[0], tokens[-1])
    batch = text_batch(model, ids, note)
    observed: Observed = {}
    with _observing(model, observed), evaluating(model), torch.inference_mode():
        outputs = model(batch, context=_context(model, batch))
    weights = {"attention": outputs.attentions, "cross_attention": outputs.cross_attentions}
    for name, by_layer in weights.items():
        if 0 in by_layer:
            observed[f"{_BLOCK}.{name}", "weights"] = tuple(by_layer[0][0].shape)
    config, named = model.config, {(path, side): rest for path, side, *rest in _STEPS}
    steps = [ShapeStep("token ids", "T", tuple(batch.token_ids.shape), "the text as numbers")]
    for key, sizes in observed.items():
        name, letters, meaning = named[key]
        disentangled = config.disentangled
        if name == "attention weights" and disentangled is not None and disentangled.pos_att_type:
            meaning = (
                "softmax of queries x keys / sqrt({count} K): row i is what token i takes from "
                "each token"
            )
            if disentangled.terms:
                meaning = (
                    "softmax of queries x keys / sqrt({count} K) and of distances: row i is what "
                    "token i takes from each token"
                )
            meaning = Message(meaning, 1 + len(disentangled.pos_att_type))
        if name == "attention weights" and config.positions.bias is not None:
            meaning = (
                "softmax of queries x keys / sqrt(K) and of distances: row i is what token i takes "
                "from each token"
            )
        steps.append(ShapeStep(name, _letters(letters, key[0], config), sizes, meaning))
        if key == (_BLOCK, "out") and config.num_hidden_layers > 1:
            last = config.num_hidden_layers - 1
            meaning = Message("after layer {last}, the last; every layer works like block 0", last)
            steps.append(ShapeStep("hidden states", "T D", tuple(outputs.hidden.shape), meaning))
    shown = None if tokens is None else tuple(tokens)
    return ForwardShapes(shown, tuple(map(int, ids)), tuple(steps), _legend(steps))


def _context(model: Model, batch: Batch) -> Context:
    """A context that keeps the weights of layer 0; with a source text for cross-attention."""
    context = Context(batch.layout, batch.positions, keep=frozenset([0]))
    if not model.config.add_cross_attention:
        return context
    source = torch.zeros(_SOURCE, model.config.hidden_size, device=model.device, dtype=model.dtype)
    cross = replace(batch.layout, keys=make_layout([_SOURCE], model.device))
    return replace(context, encoder_hidden=source, cross=cross)


@contextmanager
def _observing(model: Model, observed: Observed) -> Iterator[None]:
    """Record the shapes of ``_STEPS`` in the order of the forward pass.

    Only the first run counts, because layers may share a block.
    """
    modules = dict(model.named_modules())

    def note(key: tuple[str, str], value: Any) -> None:
        if isinstance(value, Tensor):
            observed.setdefault(key, tuple(value.shape))

    def note_attention(path: str, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> None:
        for side, value in (("q", q), ("k", k), ("v", v)):
            note((path, side), value)
        observed.setdefault((path, "weights"), ())  # its place; it is filled in later

    with ExitStack() as stack:
        for path, side, *_ in _STEPS:
            module, key = modules.get(path), (path, side)
            if module is None:
                continue
            if side == "q":
                stack.enter_context(observing_attend(module, partial(note_attention, path)))
            elif side == "in":
                hook = module.register_forward_pre_hook(lambda _, x, *, at=key: note(at, x[0]))
                stack.callback(hook.remove)
            elif side == "out":
                hook = module.register_forward_hook(lambda _, x, out, *, at=key: note(at, out))
                stack.callback(hook.remove)
        yield


def _letters(letters: str, path: str, config: EncoderConfig) -> str:
    """The letters of a step; D replaces N without bottlenecks, and E if both are equal."""
    if config.attention_size == config.hidden_size:
        letters = letters.replace("N", "D")
    narrow_words = path == "encoder.embeddings.word" or config.mobile is None
    if config.embedding_size is None or not narrow_words:
        letters = letters.replace("E", "D")
    if config.chunk_size_feed_forward and "feed_forward." in path:
        letters = letters.replace("T", "chunk")
    return letters


def _legend(steps: Sequence[ShapeStep]) -> dict[str, tuple[int, str]]:
    """The letters in use with their sizes and meanings."""
    words = {
        "T": "tokens",
        "T'": "tokens of the source text",
        "E": "numbers of a word vector",
        "D": "hidden size",
        "N": "narrow size",
        "H": "heads",
        "K": "numbers of a head",
        "I": "intermediate size",
        "V": "tokens in the vocabulary",
        "C": "labels",
    }
    sizes: dict[str, int] = {}
    for step in steps:
        for letter, size in zip(step.letters.split(), step.sizes, strict=True):
            sizes.setdefault(letter, size)
    return {letter: (sizes[letter], word) for letter, word in words.items() if letter in sizes}
