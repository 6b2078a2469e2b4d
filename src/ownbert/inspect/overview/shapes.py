"""What comes out of each step, seen by running the model on one text.

T tokens, S tokens of the text that a decoder attends to, D hidden, E embedding size, N the narrow
width, H heads, K head size, I intermediate, V vocabulary, C labels. One text: no B.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.data.batch import Batch, Example, pack
from ownbert.data.layout import make_layout
from ownbert.errors import InputError
from ownbert.nn.context import Context
from ownbert.nn.model import Model

# Path in the model, what is looked at there (its output, or its input), name, letters, meaning.
_BLOCK = "encoder.blocks.0."
_STEPS = (
    ("encoder.embeddings.word", "out", "word vectors", "T E", "a row of the word table a token"),
    ("encoder.embeddings.position", "out", "position vectors", "T E", "a row a position, added"),
    ("encoder.embeddings.token_type", "out", "type vectors", "T E", "first or second text, added"),
    ("encoder.embeddings.task_type", "out", "task vectors", "T E", "added too"),
    ("encoder.embeddings", "out", "embeddings", "T D", "their sum, normalised: enters block 0"),
    (_BLOCK + "narrow_attention", "out", "narrow input", "T N", "what queries and keys come from"),
    (_BLOCK + "narrow", "out", "narrow states", "T N", "what the block works on"),
    (_BLOCK + "attention.qkv", "out", "fused", "T 3HK", "one product for all heads, then cut"),
    (_BLOCK + "attention.query_key", "out", "fused", "T 2HK", "one product for all heads, cut"),
    (_BLOCK + "attention", "q", "queries", "T H K", "what each token looks for, a row a head"),
    (_BLOCK + "attention", "k", "keys", "T H K", "by what each token is found"),
    (_BLOCK + "attention", "v", "values", "T H K", "what each token hands over"),
    (
        _BLOCK + "attention",
        "weights",
        "attention weights",
        "H T T",
        "softmax of queries x keys / sqrt(K): row i says what token i takes from each token",
    ),
    (_BLOCK + "attention.output", "in", "heads' outputs", "T HK", "weights x values, side by side"),
    (_BLOCK + "attention.output", "out", "attention output", "T N", "the heads mixed by a matrix"),
    (_BLOCK + "attention_norm", "out", "after attention", "T N", "added to the input, normalised"),
    (_BLOCK + "cross_attention", "q", "cross queries", "T H K", "of the text that is written"),
    (_BLOCK + "cross_attention", "k", "cross keys", "S H K", "of the text that is read"),
    (_BLOCK + "cross_attention", "v", "cross values", "S H K", "of the text that is read"),
    (
        _BLOCK + "cross_attention",
        "weights",
        "cross weights",
        "H T S",
        "what each token takes from the text that is read",
    ),
    (_BLOCK + "cross_attention_norm", "out", "after cross", "T D", "added and normalised"),
    (_BLOCK + "feed_forward.up", "out", "feed-forward up", "T I", "each token by itself, wider"),
    (_BLOCK + "feed_forward.down", "out", "feed-forward down", "T D", "and back"),
    (_BLOCK + "feed_forwards.0.network.up", "out", "feed-forward up", "T I", "each token alone"),
    (_BLOCK + "feed_forwards.0.network.down", "out", "feed-forward down", "T N", "and back"),
    ("encoder.blocks.0", "out", "block 0", "T D", "added, normalised: enters the next layer"),
    ("pooler", "out", "pooled", "1 D", "the first token through a dense layer and tanh"),
    (
        "heads.mlm",
        "out",
        "mlm logits",
        "T V",
        "a score for each token of the vocabulary; in pretraining at the masked places only",
    ),
    (
        "heads.nsp",
        "out",
        "nsp logits",
        "1 2",
        "the second text follows, or not; from the same run as the others",
    ),
    ("heads.sop", "out", "sop logits", "1 2", "in order, or exchanged"),
    ("heads.classification", "out", "class logits", "1 C", "a score for each label"),
    ("heads.choice", "out", "choice logit", "1 1", "a score for this choice"),
    ("heads.tokens", "out", "token logits", "T C", "a score for each label, at each token"),
    ("heads.span", "out", "span logits", "T 2", "does the answer start here, end here?"),
    ("heads.discriminator", "out", "discriminator", "T", "was this token replaced?"),
)
# Position kinds that add something of their own to the scores.
_IN_SCORES = ("relative_key", "relative_key_query", "alibi")
# Tokens of the text that a decoder with cross attention reads here.
_SOURCE = 5


@dataclass(frozen=True)
class Step:
    """``letters`` ("T H K") and ``sizes`` of what comes out of a step, and what it is."""

    name: str
    letters: str
    sizes: tuple[int, ...]
    meaning: str


@dataclass(frozen=True)
class Walk:
    """One text on its way through a model. tokens: of the text, or None for a mere number."""

    tokens: tuple[str, ...] | None
    ids: tuple[int, ...]
    steps: tuple[Step, ...]
    legend: dict[str, tuple[int, str]]


def walk(model: Model, ids: Sequence[int], tokens: Sequence[str] | None = None) -> Walk:
    """Run the model on one text of these ids and note the shape of everything on the way.

    Every size is that of a tensor that was there. ``InputError`` for no ids at all, and for more
    than the model has positions for.
    """
    longest = model.config.max_length
    if not len(ids):
        raise InputError("the number of tokens must be at least 1")
    if longest is not None and len(ids) > longest:
        ends = "" if tokens is None else f", {tokens[0]} and {tokens[-1]} among them"
        raise InputError(
            f"the text has {len(ids):,} tokens{ends}; the model takes at most {longest:,}"
        )
    array = np.asarray(ids, dtype=np.int64)
    batch = pack([Example(array, np.zeros_like(array))]).to(model.device)
    context = _context(model, batch)
    seen: dict[tuple[str, str], tuple[int, ...]] = {}
    with _watched(model, seen), _evaluating(model), torch.inference_mode():
        outputs = model(batch, context=context)
    for path, kept in (
        (_BLOCK + "attention", outputs.attentions),
        (_BLOCK + "cross_attention", outputs.cross_attentions),
    ):
        if 0 in kept:
            seen[path, "weights"] = tuple(kept[0][0].shape)
    named = {(path, side): rest for path, side, *rest in _STEPS}
    steps = [Step("token ids", "T", tuple(batch.token_ids.shape), "the text in numbers")]
    for place, sizes in seen.items():
        name, letters, meaning = named[place]
        if name == "attention weights" and model.config.position_embedding_type in _IN_SCORES:
            meaning = meaning.replace("sqrt(K)", "sqrt(K) and of distances")
        steps.append(Step(name, _letters(letters, place[0], model), sizes, meaning))
        if place == ("encoder.blocks.0", "out") and model.config.num_hidden_layers > 1:
            last = model.config.num_hidden_layers - 1
            meaning = f"after layer {last}, the last; every layer does as block 0 does"
            steps.append(Step("hidden states", "T D", tuple(outputs.hidden.shape), meaning))
    told = None if tokens is None else tuple(tokens)
    return Walk(told, tuple(int(i) for i in ids), tuple(steps), _legend(model, steps))


def _context(model: Model, batch: Batch) -> Context:
    """Keep the weights of layer 0; a decoder that attends to an encoder gets a text to read."""
    context = Context(batch.layout, batch.positions, keep=frozenset([0]))
    if not model.config.add_cross_attention:
        return context
    source = torch.zeros(_SOURCE, model.config.hidden_size, device=model.device, dtype=model.dtype)
    cross = replace(batch.layout, keys=make_layout([_SOURCE], model.device))
    return replace(context, encoder_hidden=source, cross=cross)


@contextmanager
def _watched(model: Model, seen: dict[tuple[str, str], tuple[int, ...]]) -> Iterator[None]:
    """Note shapes at the places of ``_STEPS``, in the order in which they are met."""
    modules = dict(model.named_modules())
    with ExitStack() as stack:
        for path, side, *_ in _STEPS:
            module = modules.get(path)
            if module is None:
                continue
            if side == "q":
                stack.enter_context(_attend_watched(module, path, seen))
            elif side == "in":
                hook = module.register_forward_pre_hook(_noting(seen, path, side))
                stack.callback(hook.remove)
            elif side == "out":
                hook = module.register_forward_hook(_noting(seen, path, side))
                stack.callback(hook.remove)
        yield


def _noting(seen: dict[tuple[str, str], tuple[int, ...]], path: str, side: str):
    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> None:
        value = inputs[0] if side == "in" else output
        if isinstance(value, Tensor):  # the first time: layers that share a block run it again
            seen.setdefault((path, side), tuple(value.shape))

    return note


@contextmanager
def _attend_watched(
    module: nn.Module, path: str, seen: dict[tuple[str, str], tuple[int, ...]]
) -> Iterator[None]:
    """Queries, keys and values are made between modules, so ``Attention.attend`` is watched."""
    attend: Any = module.attend

    def watched(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        for side, value in (("q", q), ("k", k), ("v", v)):
            seen.setdefault((path, side), tuple(value.shape))
        seen.setdefault((path, "weights"), ())  # their place; they are handed out at the end
        return attend(q, k, v, *rest)

    object.__setattr__(module, "attend", watched)
    try:
        yield
    finally:
        object.__delattr__(module, "attend")


@contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    """In evaluation for a moment: no random numbers are drawn."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _letters(letters: str, path: str, model: Model) -> str:
    """With N as D where nothing is narrow, and E as D where words are as wide as the encoder."""
    config = model.config
    if config.attention_size == config.hidden_size:
        letters = letters.replace("N", "D")
    narrow_words = path == "encoder.embeddings.word" or config.mobile is None
    if config.embedding_size is None or not narrow_words:
        letters = letters.replace("E", "D")
    if config.chunk_size_feed_forward and "feed_forward." in path:
        letters = letters.replace("T", "chunk")
    return letters


def _legend(model: Model, steps: Sequence[Step]) -> dict[str, tuple[int, str]]:
    """The letters in use, their sizes as met on the way, and what they count."""
    words = {
        "T": "tokens",
        "S": "tokens of the text that is read",
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
            if letter in words:
                sizes.setdefault(letter, size)
    return {letter: (sizes[letter], word) for letter, word in words.items() if letter in sizes}
