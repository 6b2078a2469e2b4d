"""What happens inside of a model on one example: attention, hidden states, what each layer answers.

T tokens of an example, S of one of its sequences, L layers, H heads, K head size, D hidden, C
classes or tokens of the vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch, Example, pack
from ownbert.errors import InputError
from ownbert.inspect.internals.attention_weights import (
    BEST_BYTES,
    WORST_BYTES,
    HeadWeights,
    WeightsCollector,
    pack_heads,
    weights_per_token,
)
from ownbert.inspect.observing import evaluating
from ownbert.inspect.overview.parameters import ranges
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer

# Bytes of a page's attention weights, in base64.
BUDGET = 8_000_000
# Weights of each token that a page has of every head, before it has fewer layers.
_LEAST = 8
# Tokens of a sequence whose attention is kept: of one layer there are H times their square.
_LONGEST = 4096
_CANDIDATES = 3


@dataclass(frozen=True)
class LayerQuestion:
    """A number of the answer that every layer is asked for, by the head of the last one.

    Args:
        name: for people.
        value: logits and batch -> (1).
        is_probability: whether the value is one.
        distribution: logits and batch -> (C), if it is one of several; else None.
        names: of the C.
    """

    name: str
    value: Callable[[Tensor, Batch], Tensor]
    is_probability: bool
    distribution: Callable[[Tensor, Batch], Tensor] | None = None
    names: Callable[[int], str] = str


@dataclass(frozen=True)
class LayerAnswers:
    """What the head answers when it reads the hidden states of each layer (a logit lens).

    Args:
        name: of what is followed through the layers.
        is_probability: whether the values are.
        values: (L + 1), from the embeddings to the last layer.
        candidates: the likeliest of each layer with their probabilities, if it is one of several.
        settled: the first layer from which on the last layer's answer stays the likeliest, 0 for
            the embeddings; None: it is not one of several.
    """

    name: str
    is_probability: bool
    values: tuple[float, ...]
    candidates: tuple[tuple[tuple[str, float], ...], ...] = ()
    settled: int | None = None


@dataclass(frozen=True)
class Observation:
    """What happens inside of a model on one example.

    Args:
        tokens: of each sequence.
        heads: H of the model, with those that are pruned.
        kept: the heads of each layer that pruning has left.
        layers: the layers whose attention is here.
        weights: of each of their heads in each sequence.
        most: weights of each token that are kept.
        packed: the weights in base64.
        norms: (L + 1, T) of the hidden states.
        written: (L, H) for each layer: the mean norm of what a head adds; NaN: pruned.
        answers: of each layer.
        note: why there are no weights, or fewer than could be.
    """

    tokens: tuple[tuple[str, ...], ...]
    heads: int
    kept: tuple[tuple[int, ...], ...]
    layers: tuple[int, ...]
    weights: tuple[HeadWeights, ...]
    most: int
    packed: tuple[str, ...]
    norms: np.ndarray
    written: np.ndarray
    answers: tuple[LayerAnswers, ...]
    note: str = ""


@dataclass(frozen=True)
class HeadChoice:
    """The attention heads to show.

    Args:
        layers, heads: their numbers, from 0; None: all that a page has room for.
    """

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None


ALL_HEADS = HeadChoice()


@torch.inference_mode()
def observe(
    model: Model,
    tokenizer: Tokenizer,
    example: Example,
    *,
    head: str | None = None,
    questions: Sequence[LayerQuestion] = (),
    choice: HeadChoice = ALL_HEADS,
    budget: int = BUDGET,
) -> Observation:
    """Run a model once and keep what happens in it.

    Args:
        model: of texts.
        tokenizer: of the model.
        example: what it reads; may have several sequences.
        head: that is applied to every layer's hidden states.
        questions: to this head.
        choice: of layers and heads; a layer or head that is chosen and does not fit is refused.
        budget: bytes of the weights, in base64.

    Raises:
        InputError: there is no such layer or head, or the weights of those that were chosen are
            too many.
    """
    batch = pack([example]).to(model.device)
    schedule = [block for block, _ in model.encoder.schedule()]
    kept = heads_by_layer(model)
    sizes = batch.layout.lengths
    require_heads(choice, kept)
    layers, note = _layers(choice, kept, sizes, budget)
    count = sum(len(_of(choice.heads, kept[layer])) for layer in layers)
    most = min(max(sizes), weights_per_token(sizes, count, budget, BEST_BYTES))
    ids = np.split(example.token_ids, np.cumsum(sizes)[:-1])
    ends = {tokenizer.cls_id, tokenizer.sep_id}
    separators = [[i for i, x in enumerate(own) if i and int(x) in ends] for own in ids]
    share = budget // max(1, count * len(sizes))
    collector = WeightsCollector(kept, choice.heads, most, separators, share)
    context = replace(
        model.encoder.plain_context(batch), keep=frozenset(layers), attentions=collector
    )
    with evaluating(model), _head_norms(schedule, model.config.num_attention_heads) as written:
        outputs = model(batch, [], context=context, keep_hidden=True)
        states = outputs.hidden_states
        answers = [] if head is None else layer_answers(model, head, states, batch, questions)
    packed, most = pack_heads(collector.heads, most, budget)
    return Observation(
        tuple(tuple(tokenizer.tokens(own.tolist())) for own in ids),
        model.config.num_attention_heads,
        kept,
        tuple(layers),
        tuple(collector.heads),
        most,
        tuple(packed),
        torch.stack([each.float().norm(dim=-1) for each in states]).cpu().numpy(),
        np.stack(written),
        tuple(answers),
        note,
    )


def layer_answers(
    model: Model,
    head: str,
    states: Sequence[Tensor],
    batch: Batch,
    questions: Sequence[LayerQuestion],
) -> list[LayerAnswers]:
    """The answers of a head that reads the hidden states of each layer instead of the last.

    Args:
        states: L + 1 of (T, D), as ``Outputs.hidden_states``.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens", for a language model's head.
    """
    values: list[list[float]] = [[] for _ in questions]
    found: list[list[Any]] = [[] for _ in questions]
    for hidden in states:
        hidden = hidden if model.encoder.norm is None else model.encoder.norm(hidden)
        pooled = None if model.pooler is None else model.pooler(hidden, batch)
        logits = model.heads[head](hidden, pooled, batch)
        for number, question in enumerate(questions):
            values[number].append(float(question.value(logits, batch)))
            if question.distribution is not None:
                likely = question.distribution(logits, batch)
                best = likely.topk(min(_CANDIDATES, len(likely)))
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                found[number].append(tuple((question.names(i), float(p)) for i, p in pairs))
    return [
        LayerAnswers(
            question.name, question.is_probability, tuple(own), tuple(likely), _settled(likely)
        )
        for question, own, likely in zip(questions, values, found, strict=True)
    ]


def _settled(candidates: Sequence[Sequence[tuple[str, float]]]) -> int | None:
    if not candidates:
        return None
    layer = len(candidates)
    while layer and candidates[layer - 1][0][0] == candidates[-1][0][0]:
        layer -= 1
    return layer


def heads_by_layer(model: Model) -> tuple[tuple[int, ...], ...]:
    """The heads of each layer that pruning has left; layers are counted as blocks run."""
    schedule = [block for block, _ in model.encoder.schedule()]
    return tuple(tuple(block.attention.kept) for block in schedule)  # pyright: ignore


def require_heads(choice: HeadChoice, kept: Sequence[Sequence[int]]) -> None:
    """Check that layers and heads exist.

    Args:
        choice: of them.
        kept: of ``heads_by_layer``.

    Raises:
        InputError: there is no such layer or head.
    """
    for layer in choice.layers or ():
        if layer not in range(len(kept)):
            raise InputError(f"there is no layer {layer}; they are 0..{len(kept) - 1}")
    shown = range(len(kept)) if choice.layers is None else choice.layers
    known = sorted({head for layer in shown for head in kept[layer]})
    for head in choice.heads or ():
        if head not in known:
            raise InputError(f"there is no head {head} in these layers; they have {ranges(known)}")


def _layers(
    choice: HeadChoice, kept: Sequence[Sequence[int]], sizes: Sequence[int], budget: int
) -> tuple[list[int], str]:
    """The layers whose attention is kept, and why not all of them."""
    wanted = [*range(len(kept))] if choice.layers is None else sorted(set(choice.layers))
    chosen = choice.layers is not None or choice.heads is not None
    if max(sizes) > _LONGEST:
        note = f"The attention of more than {_LONGEST:,} tokens is not shown."
        if chosen:
            raise InputError(
                f"{max(sizes):,} tokens are too many for a page with their attention; at most "
                f"{_LONGEST:,}"
            )
        return [], note
    least = min(_LEAST, max(sizes))
    count, room = 0, []
    for layer in reversed(wanted):  # the last layers are the nearest to the answer
        count += len(_of(choice.heads, kept[layer]))
        if weights_per_token(sizes, count, budget, WORST_BYTES) < least:
            break
        room.append(layer)
    if len(room) == len(wanted):
        return wanted, ""
    if chosen:
        raise InputError(
            f"the attention of {len(wanted)} layers is too large for a page; choose {len(room)} "
            "of them with --layers, some heads with --heads, or fewer rows"
        )
    return sorted(room), (
        f"Only the last {len(room)} of {len(kept)} layers have room; choose others with --layers."
    )


def _of(wanted: Sequence[int] | None, kept: Sequence[int]) -> list[int]:
    return [head for head in kept if wanted is None or head in wanted]


@contextmanager
def _head_norms(schedule: Sequence[nn.Module], heads: int) -> Iterator[list[np.ndarray]]:
    """The mean norms (H) of what heads add to the output of attention, layer by layer.

    The output matrix is a sum over heads: each has its own columns of it.
    """
    found: list[np.ndarray] = []

    def note(attention: Any) -> Callable[..., None]:
        def hook(module: Any, inputs: tuple[Tensor, ...], _: Tensor) -> None:
            size, norms = attention.head_size, np.full(heads, np.nan)
            for index, head in enumerate(attention.kept):
                own = slice(index * size, (index + 1) * size)
                shares = inputs[0][:, own] @ module.weight[:, own].T  # (T, K) -> (T, D)
                norms[head] = float(shares.float().norm(dim=-1).mean())
            found.append(norms)

        return hook

    with ExitStack() as stack:
        for attention in {id(b): b.attention for b in schedule}.values():
            output: Any = attention.output  # pyright: ignore
            stack.callback(output.register_forward_hook(note(attention)).remove)
        yield found


def observation_of_text(
    model: Model, tokenizer: Tokenizer, ids: Sequence[int], choice: HeadChoice = ALL_HEADS
) -> Observation:
    """What happens inside of a model on one text; masked words are followed through the layers."""
    array = np.asarray(ids, dtype=np.int64)
    masks = np.flatnonzero(array == tokenizer.mask_id)
    if "mlm" not in model.heads or not len(masks):
        return observe(model, tokenizer, Example(array, np.zeros_like(array)), choice=choice)
    example = Example(array, np.zeros_like(array), masked_positions=masks, masked_ids=array[masks])
    with evaluating(model), torch.inference_mode():
        logits = model(pack([example]).to(model.device), ["mlm"]).logits["mlm"]
    questions = [
        masked_question(tokenizer, number, int(own.argmax())) for number, own in enumerate(logits)
    ]
    return observe(model, tokenizer, example, head="mlm", questions=questions, choice=choice)


def masked_question(tokenizer: Tokenizer, mask: int, token: int) -> LayerQuestion:
    """The probability of a token at the masked position of number ``mask``."""

    def distribution(logits: Tensor, batch: Batch) -> Tensor:
        return logits[mask].float().softmax(-1)

    return LayerQuestion(
        tokenizer.tokens([token])[0],
        lambda logits, batch: distribution(logits, batch)[token],
        True,
        distribution,
        lambda index: tokenizer.tokens([index])[0],
    )
