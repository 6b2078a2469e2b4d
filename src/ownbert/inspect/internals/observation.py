"""The internals of a model on one example: attention, hidden states, a prediction per layer; and
the pages that show them.

T tokens of an example, S tokens of one of its sequences, L layers, H heads, K head size, D hidden,
C classes or vocabulary size.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.batch import Batch, Example, pack
from ownbert.exceptions import InputError
from ownbert.inference.fill_mask import masked_example
from ownbert.inspect.internals.attention_weights import (
    ALL_HEADS,
    BEST_BYTES,
    SHARES,
    WORST_BYTES,
    ChosenHeads,
    HeadChoice,
    HeadWeights,
    WeightsCollector,
    heads_by_layer,
    pack_heads,
    packed_bytes,
    weights_per_token,
)
from ownbert.inspect.internals.observing import evaluating, masked_words
from ownbert.language import translated
from ownbert.nn.model import Model
from ownbert.pages import page
from ownbert.text.tokenizer import Tokenizer

# Bytes of the attention weights in a page, in base64.
BUDGET = 8_000_000
# Minimum number of weights per token before layers are dropped.
_LEAST = 8
# Maximum sequence length for recording attention, which is quadratic in it.
_LONGEST = 4096
_CANDIDATES = 3  # entries named per layer


@dataclass(frozen=True)
class LayerQuestion:
    """A quantity that is computed from every layer with the head of the last one.

    Args:
        name: name shown to the user.
        value: maps logits and batch to (1).
        is_probability: whether the value is a probability.
        distribution: maps logits and batch to (C) probabilities; None if there is none.
        names: names of the C entries.
    """

    name: str
    value: Callable[[Tensor, Batch], Tensor]
    is_probability: bool
    distribution: Callable[[Tensor, Batch], Tensor] | None = None
    names: Callable[[int], str] = str


@dataclass(frozen=True)
class LayerPredictions:
    """The head's predictions from the hidden states of each layer (logit lens).

    Args:
        name: name of the quantity.
        is_probability: whether the values are probabilities.
        values: (L + 1) values, from the embeddings to the last layer.
        candidates: most probable entries of each layer with their probabilities, if there is a
            distribution.
        settled: first layer (0: embeddings) from which the final prediction is the most probable
            one; None without a distribution.
    """

    name: str
    is_probability: bool
    values: tuple[float, ...]
    candidates: tuple[tuple[tuple[str, float], ...], ...] = ()
    settled: int | None = None


@dataclass(frozen=True)
class Observation:
    """The internals of a model on one example.

    Args:
        tokens: tokens of each sequence.
        heads: number of heads H, including pruned ones.
        kept: heads of each layer that are not pruned.
        layers: layers with recorded attention.
        weights: weights of each of their heads in each sequence.
        most: number of weights per token.
        packed: the weights in base64.
        norms: (L + 1, T) norms of the hidden states.
        written: (L, H) mean norm of each head's contribution; NaN for pruned heads.
        answers: predictions of each layer.
        note: reason for missing weights, if any.
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
    answers: tuple[LayerPredictions, ...]
    note: str = ""


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
    """Run a model once and record its internals.

    Args:
        model: text model.
        tokenizer: tokenizer of the model.
        example: input; may have several sequences.
        head: head applied to every layer's hidden states.
        questions: quantities computed with this head.
        choice: layers and heads; explicitly selected ones that do not fit are an error.
        budget: bytes of the weights, in base64.

    Raises:
        InputError: a layer or head does not exist, or the selected ones have too many weights.
    """
    batch = pack([example]).to(model.device)
    schedule = [block for block, _ in model.encoder.schedule()]
    kept, chosen = heads_by_layer(model), choice.of(model)
    sizes = batch.layout.lengths
    layers, note = _layers(chosen, sizes, budget, fixed=choice != ALL_HEADS)
    count = sum(len(chosen[layer]) for layer in layers)
    most = min(max(sizes), weights_per_token(sizes, count, budget, BEST_BYTES))
    ids = example.split(example.token_ids)
    ends = {*tokenizer.start_ids, tokenizer.sep_id}
    separators = [[i for i, x in enumerate(row_ids) if i and int(x) in ends] for row_ids in ids]
    share = budget // max(1, count * len(sizes))
    collector = WeightsCollector(kept, chosen, most, separators, share)
    context = replace(
        model.encoder.plain_context(batch), keep=frozenset(layers), attentions=collector
    )
    with evaluating(model), _head_norms(schedule, model.config.num_attention_heads) as written:
        outputs = model(batch, [], context=context, keep_hidden=True)
        states = outputs.hidden_states
        answers = [] if head is None else layer_answers(model, head, states, batch, questions)
    packed, most = pack_heads(collector.heads, most, budget)
    return Observation(
        tuple(tuple(tokenizer.tokens(row_ids.tolist())) for row_ids in ids),
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
) -> list[LayerPredictions]:
    """Apply a head to the hidden states of each layer instead of the last.

    Args:
        model: text model.
        head: name of the head.
        states: L + 1 of (T, D), as in ``Outputs.hidden_states``.
        batch: batch of the example.
        questions: quantities to compute.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens", for a language model's head.
    """
    values: list[list[float]] = [[] for _ in questions]
    values_by_question: list[list[Any]] = [[] for _ in questions]
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
                values_by_question[number].append(
                    tuple((question.names(i), float(p)) for i, p in pairs)
                )
    return [
        LayerPredictions(
            question.name, question.is_probability, tuple(own), tuple(likely), _stable_from(likely)
        )
        for question, own, likely in zip(questions, values, values_by_question, strict=True)
    ]


def _stable_from(candidates: Sequence[Sequence[tuple[str, float]]]) -> int | None:
    if not candidates:
        return None
    layer = len(candidates)
    while layer and candidates[layer - 1][0][0] == candidates[-1][0][0]:
        layer -= 1
    return layer


def _layers(
    chosen: ChosenHeads, sizes: Sequence[int], budget: int, *, fixed: bool
) -> tuple[list[int], str]:
    """The layers to record, and the reason why not all of them; those that are ``fixed`` and do
    not fit are an error."""
    requested = sorted(chosen)
    if max(sizes) > _LONGEST:
        note = f"The attention of more than {_LONGEST:,} tokens is not shown."
        if fixed:
            raise InputError(
                "{sizes:,} tokens are too many for a page with their attention; at most "
                "{longest:,}",
                max(sizes),
                _LONGEST,
            )
        return [], note
    least = min(_LEAST, max(sizes))
    count, room = 0, []
    for layer in reversed(requested):  # prefer layers close to the output
        count += len(chosen[layer])
        if weights_per_token(sizes, count, budget, WORST_BYTES) < least:
            break
        room.append(layer)
    if len(room) == len(requested):
        return requested, ""
    if fixed:
        raise InputError(
            "the attention of {count} layers is too large for a page; choose {count2} of them "
            "with {--layers}, some heads with {--heads}, or fewer rows",
            len(requested),
            len(room),
        )
    return sorted(room), (
        f"Only the last {len(room)} of {len(requested)} layers fit on the page; choose others with "
        "--layers."
    )


@contextmanager
def _head_norms(schedule: Sequence[nn.Module], heads: int) -> Iterator[list[np.ndarray]]:
    """Yield for each layer the mean norms (H) of the heads' contributions to its output.

    The output projection is a sum over heads, each with its own columns of the matrix.
    """
    head_norms: list[np.ndarray] = []

    def note(attention: Any) -> Callable[..., None]:
        def hook(module: Any, inputs: tuple[Tensor, ...], _: Tensor) -> None:
            size, norms = attention.head_size, np.full(heads, np.nan)
            for index, head in enumerate(attention.kept):
                columns = slice(index * size, (index + 1) * size)
                shares = inputs[0][:, columns] @ module.weight[:, columns].T  # (T, K) -> (T, D)
                norms[head] = float(shares.float().norm(dim=-1).mean())
            head_norms.append(norms)

        return hook

    with ExitStack() as stack:
        for attention in {id(b): b.attention for b in schedule}.values():
            output: Any = attention.output  # pyright: ignore
            stack.callback(output.register_forward_hook(note(attention)).remove)
        yield head_norms


def observation_of_text(model: Model, tokenizer: Tokenizer, ids: Sequence[int]) -> Observation:
    """Observe a model on one text, with a logit lens for masked words."""
    array = np.asarray(ids, dtype=np.int64)
    if "mlm" not in model.heads or tokenizer.mask_id not in array:
        return observe(model, tokenizer, Example(array, np.zeros_like(array)))
    example = masked_example(ids, tokenizer)
    questions = [
        masked_question(tokenizer, number, int(found.argmax()))
        for number, found in enumerate(masked_words(model, example))
    ]
    return observe(model, tokenizer, example, head="mlm", questions=questions)


def masked_question(tokenizer: Tokenizer, mask: int, token: int) -> LayerQuestion:
    """The probability of a token at the masked position ``mask``, counted from 0."""

    def distribution(logits: Tensor, batch: Batch) -> Tensor:
        return logits[mask].float().softmax(-1)

    return LayerQuestion(
        tokenizer.tokens([token])[0],
        lambda logits, batch: distribution(logits, batch)[token],
        True,
        distribution,
        lambda index: tokenizer.tokens([index])[0],
    )


def view_page(
    template: str,
    title: str,
    data: Mapping[str, Any],
    inside: Sequence[Observation | None],
    **values: Any,
) -> str:
    """Fill in a template that extends ``view.html``.

    Args:
        template: path of the template.
        title: title of the page.
        data: data of its script.
        inside: observation of each row, whose weights are added.
        values: further variables of the template.
    """
    weights = [
        (f"{row}.{head.sequence}.{head.layer}.{head.head}", packed)
        for row, observed in enumerate(inside)
        if observed is not None
        for head, packed in zip(observed.weights, observed.packed, strict=True)
    ]
    return page(template, title=title, data=data, weights=weights, **values)


def as_data(observation: Observation | None) -> dict[str, Any] | None:
    """An observation as data for the script, without the weights; None for None."""
    if observation is None:
        return None
    thumbnails = b"".join(head.thumbnail.tobytes() for head in observation.weights)
    return {
        "tokens": [list(row) for row in observation.tokens],
        "heads": observation.heads,
        "kept": [list(heads) for heads in observation.kept],
        "layers": list(observation.layers),
        "shown": [[head.sequence, head.layer, head.head] for head in observation.weights],
        "shares": {"names": SHARES, "values": [head.shares for head in observation.weights]},
        "peaks": [float(f"{head.peak:.5g}") for head in observation.weights],
        "sides": [len(head.thumbnail) for head in observation.weights],
        "thumbnails": packed_bytes(thumbnails),
        "most": observation.most,
        "norms": packed_bytes(np.ascontiguousarray(observation.norms, dtype="<f4").tobytes()),
        "written": [
            [None if np.isnan(x) else float(f"{x:.4g}") for x in layer]
            for layer in observation.written.tolist()
        ],
        "answers": [
            {
                "name": each.name,
                "probability": each.is_probability,
                "values": [round(x, 5) for x in each.values],
                "candidates": [[[n, round(p, 4)] for n, p in layer] for layer in each.candidates],
                "settled": each.settled,
            }
            for each in observation.answers
        ],
        "note": translated(observation.note),
    }
