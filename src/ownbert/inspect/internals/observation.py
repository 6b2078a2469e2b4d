"""The internals of a model on one example: attention (compressed for a page: the largest weights of
each token, one byte each), hidden states, a prediction per layer; and the pages that show them.

T tokens of an example, S tokens of one of its sequences, k weights per token, L layers, H heads,
K head size, D hidden, C classes or vocabulary size.

Weights are collected layer by layer while the model runs, so that only one layer is in memory as
(H, S, S) at a time.
"""

import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ownbert.batches.batch import Batch, Example, pack
from ownbert.exceptions import InputError
from ownbert.inference.fill_mask import masked_example
from ownbert.inspect.internals.observing import evaluating, masked_words, ranges, require_layers
from ownbert.language import translated
from ownbert.language.messages import Message
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
# Side of a head's thumbnail.
_THUMBNAIL = 32
# Targets of a head's attention: the token itself, its neighbours, the first token of the sequence,
# and the separators.
_SHARES = ("itself", "previous", "next", "first", "separators")
# A weight w is stored as the byte 255 sqrt(w / largest): the error is at most 1/255 of the head's
# largest weight, and much smaller for small weights.
_BYTE = 255
# Compressed bytes per weight with its position: worst and best case.
_WORST_BYTES, _BEST_BYTES = 2.0, 0.35
# Other layers may fit up to this many times as many weights as the first layer.
_MARGIN = 4
# Selected heads by layer, both counted from 0.
ChosenHeads = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class HeadWeights:
    """The weights of a head in a sequence: square roots of the weights relative to the ``peak`` (S,
    k), uint8; positions ``keys`` (S, k), ascending in each row, None if k is S; a ``thumbnail`` of
    block means, scaled to a maximum of 255; and mean weights by ``_SHARES``."""

    sequence: int
    layer: int
    head: int
    peak: float
    values: np.ndarray
    keys: np.ndarray | None
    thumbnail: np.ndarray
    shares: tuple[float, ...]

    def packed(self, most: int) -> str:
        """The ``most`` largest weights of each row, compressed, in base64: all values come first,
        then the low bytes of the differences between positions, then the high bytes, which
        compresses best."""
        values, keys = self.values, self.keys
        if most < values.shape[1]:
            order = np.argsort(-values.astype(np.int16), 1, kind="stable")[:, :most]
            order.sort(1)
            values = np.take_along_axis(values, order, 1)
            keys = order if keys is None else np.take_along_axis(keys, order, 1)
        planes = [values.tobytes()]
        if keys is not None:
            steps = np.diff(keys.astype(np.int32), axis=1, prepend=0).astype("<u2")
            planes += [(steps & 255).astype(np.uint8).tobytes()]
            planes += [(steps >> 8).astype(np.uint8).tobytes()]
        return packed_bytes(b"".join(planes))


class WeightsCollector(dict[int, list[Tensor]]):
    """Collects the attention weights of a ``Context`` layer by layer, and keeps the ``most``
    largest ones per token of the ``chosen`` heads; ``kept``: heads of each layer that are not
    pruned. The first layer shows how many weights fit into ``budget`` bytes per head, which limits
    the search in the other layers."""

    def __init__(
        self,
        kept: Sequence[Sequence[int]],
        chosen: ChosenHeads,
        most: int,
        separators: Sequence[Sequence[int]],
        budget: int,
    ) -> None:
        super().__init__()
        self.kept, self.chosen, self.most, self.separators = kept, chosen, most, separators
        self.heads: list[HeadWeights] = []
        self._budget = budget

    def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
        first = not self.heads
        names = self.chosen[layer]
        for sequence, matrix in enumerate(weights):
            if len(names) < len(matrix):
                matrix = matrix[[self.kept[layer].index(h) for h in names]]
            if names:
                self._collect(sequence, layer, names, matrix.float())  # (H, S, S)
        if first and self.heads and self.most < max(matrix.shape[-1] for matrix in weights):
            _, fitting = pack_heads(self.heads, self.most, self._budget * len(self.heads))
            self.most = min(self.most, _MARGIN * fitting)

    def _collect(self, sequence: int, layer: int, names: Sequence[int], weights: Tensor) -> None:
        size = weights.shape[-1]
        means = F.adaptive_avg_pool2d(weights[None], min(size, _THUMBNAIL))[0]
        small = means / means.amax((1, 2), keepdim=True).clamp_min(1e-9)
        thumbnails = (_BYTE * small).round().byte().cpu().numpy()
        shares = _shares(weights, self.separators[sequence])
        keys = None
        if self.most < size:
            weights, places = weights.topk(self.most)
            places, order = places.sort(-1)
            weights, keys = weights.gather(-1, order), places.to(torch.int32).cpu().numpy()
        peaks = weights.amax((1, 2), keepdim=True).clamp_min(1e-9)
        values = (_BYTE * (weights.clamp_min(0) / peaks).sqrt()).round().byte().cpu().numpy()
        for i, head in enumerate(names):
            kept = values[i], None if keys is None else keys[i].astype(np.uint16)
            found = float(peaks[i]), *kept, thumbnails[i], shares[i]
            self.heads.append(HeadWeights(sequence, layer, head, *found))


def _shares(weights: Tensor, separators: Sequence[int]) -> list[tuple[float, ...]]:
    """Mean weight per head for each of ``_SHARES``."""
    size = weights.shape[-1]
    shares = [
        weights.diagonal(offset, 1, 2).sum(-1) / max(1, size - abs(offset)) for offset in (0, -1, 1)
    ]
    shares += [weights[:, :, 0].mean(-1), weights[:, :, list(separators)].sum(-1).mean(-1)]
    return [tuple(round(float(x), 4) for x in row) for row in torch.stack(shares, 1).cpu()]


def weights_per_token(sizes: Sequence[int], heads: int, budget: int, weight_bytes: float) -> int:
    """Number of weights per token that fit into ``budget`` bytes in base64, for sequences of these
    sizes, all heads of all layers together, and compressed bytes per weight."""
    return int(budget * 3 / 4 / weight_bytes / max(1, sum(sizes) * heads))


def pack_heads(heads: Sequence[HeadWeights], most: int, budget: int) -> tuple[list[str], int]:
    """Encode heads in base64, with as many weights per token (``most`` at most) as fit into
    ``budget`` bytes; return that number as well."""
    most = min([most, *(head.values.shape[1] for head in heads if head.keys is not None)])
    packed: list[str] = []
    for some in (heads[:: max(1, len(heads) // 12)], heads):  # an estimate from a few heads first
        while True:
            packed = [head.packed(most) for head in some]
            size = sum(map(len, packed)) * len(heads) / max(1, len(some))
            if most <= 1 or size <= budget:
                break
            most = max(1, min(most - 1, int(most * 0.97 * budget / size)))
    return packed, most


def packed_bytes(raw: bytes) -> str:
    """Compress with zlib and encode in base64; the counterpart of ``unpacked`` in view.js."""
    return b64encode(zlib.compress(raw, 6)).decode("ascii")


@torch.inference_mode()
def attention_maps(
    model: Model, example: Example, chosen: ChosenHeads
) -> list[dict[int, np.ndarray]]:
    """Run a model once and return its attention weights: for each sequence, by layer, float32
    (selected heads, S, S), one row per query token with its weights over key tokens."""
    batch, kept = pack([example]).to(model.device), heads_by_layer(model)
    maps: dict[int, list[np.ndarray]] = {}

    class Selected(dict[int, list[Tensor]]):
        def __setitem__(self, layer: int, weights: list[Tensor]) -> None:
            selected = [kept[layer].index(head) for head in chosen[layer]]
            maps[layer] = [each[selected].float().cpu().numpy() for each in weights]  # (H, S, S)

    plain = model.encoder.plain_context(batch)
    context = replace(plain, keep=frozenset(chosen), attentions=Selected())
    with evaluating(model):
        model(batch, [], context=context)
    count = len(batch.layout.lengths)
    return [{layer: maps[layer][i] for layer in chosen} for i in range(count)]


@dataclass(frozen=True)
class HeadChoice:
    """Selection of attention heads: layers from 0, negative ones count from the end, and heads from
    0; None: all."""

    layers: Sequence[int] | None = None
    heads: Sequence[int] | None = None

    def of(self, model: Model) -> ChosenHeads:
        """The selected heads of a model that are not pruned, by layer; ``InputError`` if a layer or
        head does not exist."""
        kept, chosen = heads_by_layer(model), self.layers
        count = len(kept)
        ends = range(-count, 0)
        requested = range(count) if chosen is None else chosen
        layers = list(dict.fromkeys(n + count if n in ends else n for n in requested))
        require_layers(layers, count)
        known = sorted({head for layer in layers for head in kept[layer]})
        for head in self.heads or ():
            if head not in known:
                message = "there is no head {head} in these layers; they have {ranges}"
                raise InputError(message, head, ranges(known))
        selected = known if self.heads is None else self.heads
        return {layer: [head for head in kept[layer] if head in selected] for layer in layers}


ALL_HEADS = HeadChoice()


def heads_by_layer(model: Model) -> tuple[tuple[int, ...], ...]:
    """The heads of each layer that are not pruned; shared blocks count once per use."""
    schedule = [block for block, _ in model.encoder.schedule()]
    return tuple(tuple(block.attention.kept) for block in schedule)  # pyright: ignore


@dataclass(frozen=True)
class LayerQuestion:
    """A quantity that is computed from every layer with the head of the last one: ``value`` maps
    logits and batch to (1), ``distribution`` to (C) probabilities of entries with ``names``."""

    name: str
    value: Callable[[Tensor, Batch], Tensor]
    is_probability: bool
    distribution: Callable[[Tensor, Batch], Tensor] | None = None
    names: Callable[[int], str] = str


@dataclass(frozen=True)
class LayerPredictions:
    """The head's predictions from the hidden states of each layer (logit lens): L + 1 values, from
    the embeddings to the last layer; with a distribution the most probable entries of each, and the
    first layer from which the final prediction is the most probable one (``settled``)."""

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
        kept: heads of each layer that are not pruned.
        layers: layers with recorded attention.
        weights, packed: weights of each of their heads in each sequence, ``most`` per token; and in
            base64.
        norms: (L + 1, T) norms of the hidden states.
        written: (L, H) mean norm of each head's contribution; NaN for pruned heads.
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
    """Run a text model once and record its internals: attention of the chosen heads, in ``budget``
    bytes in base64, and answers to questions about the ``head`` at every layer.

    Raises:
        InputError: a layer or head does not exist, or explicitly selected ones have too many
            weights.
    """
    batch = pack([example]).to(model.device)
    schedule = [block for block, _ in model.encoder.schedule()]
    kept, chosen = heads_by_layer(model), choice.of(model)
    sizes = batch.layout.lengths
    layers, note = _layers(chosen, sizes, budget, fixed=choice != ALL_HEADS)
    count = sum(len(chosen[layer]) for layer in layers)
    most = min(max(sizes), weights_per_token(sizes, count, budget, _BEST_BYTES))
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
    """Apply a head to the hidden states of each layer, L + 1 of (T, D), instead of the last.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens", for a language model's head.
    """
    values: list[list[float]] = [[] for _ in questions]
    candidates: list[list[Any]] = [[] for _ in questions]
    for hidden in states:
        hidden = hidden if model.encoder.norm is None else model.encoder.norm(hidden)
        pooled = None if model.pooler is None else model.pooler(hidden, batch)
        logits = model.heads[head](hidden, pooled, batch)
        for number, question in enumerate(questions):
            values[number].append(float(question.value(logits, batch)))
            if question.distribution is not None:
                likely = question.distribution(logits, batch)
                best = likely.topk(min(_CANDIDATES, len(likely)))
                names = map(question.names, best.indices.tolist())
                candidates[number].append(tuple(zip(names, best.values.tolist(), strict=True)))
    return [
        LayerPredictions(
            question.name, question.is_probability, tuple(own), tuple(likely), _stable_from(likely)
        )
        for question, own, likely in zip(questions, values, candidates, strict=True)
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
    requested, longest = sorted(chosen), max(sizes)
    if longest > _LONGEST and fixed:
        raise InputError(
            "{sizes:,} tokens are too many for a page with their attention; at most {longest:,}",
            *(longest, _LONGEST),
        )
    if longest > _LONGEST:
        return [], Message("The attention of more than {longest:,} tokens is not shown.", _LONGEST)
    least = min(_LEAST, longest)
    count, room = 0, []
    for layer in reversed(requested):  # prefer layers close to the output
        count += len(chosen[layer])
        if weights_per_token(sizes, count, budget, _WORST_BYTES) < least:
            break
        room.append(layer)
    if len(room) == len(requested):
        return requested, ""
    if fixed:
        raise InputError(
            "the attention of {count} layers is too large for a page; choose {count2} of them "
            "with {--layers}, some heads with {--heads}, or fewer rows",
            *(len(requested), len(room)),
        )
    return sorted(room), (
        Message(
            "Only the last {count} of {count2} layers fit on the page; choose others with "
            "{--layers}.",
            len(room),
            len(requested),
        )
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
    """Fill in a template that extends ``view.html``, with the weights of each row's observation."""
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
        "shares": {"names": _SHARES, "values": [head.shares for head in observation.weights]},
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
