"""The steps of a trace, made of what was noted in one attention layer. T tokens, D hidden, H heads,
K head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ownbert.inspect.parts import head_columns
from ownbert.inspect.trace import Cut, Made, Step, scored, weights_step
from ownbert.nn.multihead import MultiHeadAttention as Attention

_NAMES = {"queries": "query", "keys": "key", "values": "value"}
_ASKS = {
    "queries": "what each token looks for",
    "keys": "by what each token is found",
    "values": "what each token hands over",
}


@dataclass
class Noted:
    """What passed through the attention of one layer. inputs: of each matrix, by its name; before
    and after: queries, keys, values (T, H, K) as made, and as they meet; joined (T, HK) and output
    (T, D): what goes into the output matrix and comes out."""

    causal: bool
    norm_first: bool
    inputs: dict[str, Tensor] = field(default_factory=dict)
    before: dict[str, Tensor] = field(default_factory=dict)
    after: tuple[Tensor, ...] = ()
    joined: Tensor | None = None
    output: Tensor | None = None
    now: bool = False


def cut_of(attention: Attention, head: int, place: int) -> Cut:
    columns = head_columns(attention)[place]
    return Cut(
        size=attention.output.out_features,
        width=attention.width,
        head_size=attention.head_size,
        head=head,
        heads=attention.kept,
        columns=columns.columns,
        rows=columns.rows,
    )


def steps_of(
    attention: Attention,
    cut: Cut,
    noted: Noted,
    weights: Tensor,
    tokens: tuple[str, ...],
) -> list[Step]:
    steps = _projected(attention, cut, noted, tokens)
    place, size = cut.rows[0] // cut.head_size, cut.head_size
    q, k = (x[:, place] for x in noted.after[:2])
    own = dict(zip(("queries", "keys"), (q, k), strict=True))
    if attention.rotary:
        for name, values in own.items():
            made = Made("rotate", left=f"{name}_unturned")
            meaning = "pairs of numbers turned by the token's position (rotary)"
            words = f"{name} = turned {name}"
            steps.append(
                Step(name, f"{name}, turned", _array(values), words, meaning, made, tokens)
            )
    factor = size**-0.5 * (attention.scaled or 1.0)
    products = _array(q) @ _array(k).T
    steps += [_square(step, tokens) for step in scored(products, factor=factor, size=size)]
    last = steps[-1]
    if attention.bias is not None:
        last = _with_bias(attention, noted, place, steps, tokens)
    if noted.causal:
        hidden = np.where(np.tri(len(tokens), dtype=bool), last.values, -np.inf)
        meaning = "a token sees itself and those before it; hidden scores get a weight of 0"
        words, made = f"masked = {last.key}, later tokens hidden", Made("hide", left=last.key)
        last = Step("masked", "masked scores", hidden, words, meaning, made, tokens, tokens)
        steps.append(last)
    steps.append(_square(weights_step(_array(weights), last.key), tokens))
    assert noted.joined is not None
    assert noted.output is not None
    rows = slice(cut.rows[0], cut.rows[1] + 1)
    sums = Made("product", left="weights", right="values")
    words, meaning = "outputs = weights x values", "the sum of what each token takes"
    outputs = _array(noted.joined[:, rows])
    steps.append(Step("outputs", "the head's outputs", outputs, words, meaning, sums, tokens))
    return [*steps, *_joined(attention, cut, noted, outputs, tokens)]


def _projected(attention: Attention, cut: Cut, noted: Noted, tokens: tuple[str, ...]) -> list[Step]:
    """The hidden states that come in, the head's part of the matrices, queries, keys, values."""
    steps, products, seen = [], [], {}
    for name, (matrix, first, last) in cut.columns.items():
        linear, given = getattr(attention, matrix), noted.inputs[matrix]
        source = next((key for key, other in seen.items() if other is given), None)
        if source is None:
            source = f"hidden_{matrix}" if seen else "hidden"
            seen[source] = given
            title = "hidden states in" if source == "hidden" else f"hidden states into {matrix}"
            normed = ", normalised already (pre-norm)" if noted.norm_first else ""
            meaning = f"what attention gets, a row a token{normed}"
            steps.append(Step(source, title, _array(given), source, meaning, rows=tokens))
        part, key = slice(first, last + 1), _NAMES[name]
        numbers = tuple(str(i) for i in range(first, last + 1))
        words = f"columns {first}..{last} of {matrix}, {linear.in_features} x {linear.out_features}"
        w = _array(linear.weight[part].T)
        products.append(Step(key, f"{key} matrix", w, f"W_{key}", words, columns=numbers))
        bias = ""
        if linear.bias is not None:
            bias = f"{key}_bias"
            values = _array(linear.bias[part])[None]
            words = "added to each row of the product"
            products.append(Step(bias, f"{key} bias", values, bias, words, columns=numbers))
        made = Made("product", left=source, right=key, bias=bias)
        turned = attention.rotary and name != "values"
        own = f"{name}_unturned" if turned else name
        words = f"{own} = {source} x W_{key}{' + bias' if bias else ''}"
        values = _array(noted.before[matrix][:, part])
        products.append(Step(own, name, values, words, _ASKS[name], made, tokens))
    return [*steps, *products]


def _with_bias(
    attention: Attention, noted: Noted, place: int, steps: list[Step], tokens: tuple[str, ...]
) -> Step:
    """What distances add to the scores, and the sum."""
    kind = type(attention.bias).__name__
    q, k, _ = (x.transpose(0, 1)[None] for x in noted.after)
    at = torch.arange(len(tokens), device=q.device)
    assert attention.bias is not None
    bias = attention.bias(q * (attention.scaled or 1.0), k, (at[:, None] - at)[None])[0, place]
    words = {
        "Alibi": "minus the distance times the slope of this head",
        "RelativeKeys": "queries (and keys) times a learnt vector for each distance",
    }
    steps.append(
        _square(
            Step("distance", "scores of distances", _array(bias), "distance", words[kind]), tokens
        )
    )
    left = steps[-2]
    made = Made("add", left=left.key, right="distance")
    total = left.values + steps[-1].values
    formula = f"summed = {left.key} + distance"
    step = Step("summed", "scores with distances", total, formula, "what the softmax gets", made)
    steps.append(_square(step, tokens))
    return steps[-1]


def _joined(
    attention: Attention, cut: Cut, noted: Noted, outputs: np.ndarray, tokens: tuple[str, ...]
) -> list[Step]:
    """The head's rows of the output matrix, its share of the output, and the output of all."""
    first, last = cut.rows
    w = _array(attention.output.weight[:, first : last + 1].T)
    assert noted.output is not None
    rows = tuple(str(i) for i in range(first, last + 1))
    words = f"rows {first}..{last} of output, {cut.width} x {cut.size}"
    share = outputs @ w
    total = _array(noted.output)
    others = f"the shares of all {len(cut.heads)} heads and the bias, added up: leaves the layer"
    made = Made("product", left="outputs", right="output")
    rest = "the other heads and the bias"
    return [
        Step("output", "output matrix", w, "W_output", words, rows=rows),
        Step(
            "share",
            "the head's share",
            share,
            "share = outputs x W_output",
            "what this head adds to the output of the layer",
            made,
            tokens,
        ),
        Step("rest", rest, total - share, "rest", "what the output has besides", rows=tokens),
        Step(
            "attended",
            "output of attention",
            total,
            "attended = share + rest",
            others,
            Made("add", left="share", right="rest"),
            tokens,
        ),
    ]


def _square(step: Step, tokens: Sequence[str]) -> Step:
    return replace(step, rows=tuple(tokens), columns=tuple(tokens))


def _array(x: Tensor) -> np.ndarray:
    return x.detach().to("cpu", torch.float64).numpy()
