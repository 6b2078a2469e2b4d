"""Methods for computing the relevance of each input word for an output.

T tokens of an example, U words, E embedding size, N copies of the example in a batch, S tokens of a
sequence, H heads.

Words are removed by masking their tokens, as in pretraining: texts are not tokenised again, and
other tokens keep their positions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.batches.batch import Batch, Example, pack
from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.inspect.explain.attribution import gradients_of, relevance, rollout
from ownbert.inspect.explain.explanation import Word
from ownbert.inspect.explain.targets import Target
from ownbert.inspect.internals.observing import evaluating
from ownbert.nn.model import Model

# Tokens per forward pass; with gradients all activations are kept.
_TOKENS, _GRADIENT_TOKENS = 8192, 4096
# Memory of a generated token with its logits, relative to an input token.
_GENERATED = 16
# Integrated gradients: initial and maximum number of steps, and the tolerated gap relative to the
# difference that the words make.
_STEPS, _MOST_STEPS, GAP = 16, 256, 0.02
# Maximum number of segments for exact Shapley values.
SEGMENTS = 10


@dataclass(frozen=True)
class ExplainedTarget:
    """An output of the model, and the U words of its input to explain it by; all other tokens are
    fixed. ``mask``: id of [MASK], or its substitute."""

    model: Model
    head: str
    example: Example
    words: Sequence[Word]
    target: Target
    mask: int

    @property
    def read(self) -> Example:
        """The example that contains the words: the input, or its source for translation."""
        return self.example.source or self.example

    def without(self, indices: Sequence[int]) -> np.ndarray:
        """The ids (T) with the words at ``indices`` masked."""
        ids = self.read.token_ids.copy()
        for index in indices:
            ids[list(self.words[index].positions)] = self.mask
        return ids

    def values(self, ids: Sequence[np.ndarray], *, probability: bool = False) -> np.ndarray:
        """The target's scores, or its probabilities if it has any, (N) for N inputs of the
        example's form, each as ids (T)."""
        value = self.target.probability if probability else None
        value = value or self.target.score
        values = []
        with evaluating(self.model), torch.inference_mode():
            for part in _parts(ids, self._tokens, _TOKENS):
                batch = self._batch(part)
                logits = self.model(batch, [self.head]).logits[self.head]
                values.append(value(logits, batch).double().cpu().numpy())
        return np.concatenate(values)

    def gradients(self, embeds: Tensor) -> tuple[np.ndarray, Tensor]:
        """Scores (N), and their gradients with respect to word embeddings (N, T, E)."""
        scores, gradients = [], []
        with evaluating(self.model), torch.enable_grad():
            for part in _parts(embeds, self._tokens, _GRADIENT_TOKENS):
                leaf = part.detach().requires_grad_()
                batch = self._batch([self.read.token_ids] * len(leaf))
                embedded = replace(batch.source or batch, embeds=leaf.flatten(0, 1))
                batch = embedded if batch.source is None else replace(batch, source=embedded)
                logits = self.model(batch, [self.head]).logits[self.head]
                part_scores = self.target.score(logits, batch)
                (gradient,) = torch.autograd.grad(part_scores.sum(), leaf)
                scores.append(part_scores.detach().double().cpu().numpy())
                gradients.append(gradient)
        return np.concatenate(scores), torch.cat(gradients)

    def over_words(self, tokens: np.ndarray) -> np.ndarray:
        """(T) -> (U): the sum over the tokens of each word."""
        return np.asarray([tokens[list(word.positions)].sum() for word in self.words])

    @property
    def _tokens(self) -> int:
        """Memory of an input in tokens; a generated token counts for several because of its
        logits."""
        generated = 0 if self.example.source is None else _GENERATED * len(self.example.token_ids)
        return len(self.read.token_ids) + generated

    def _batch(self, ids: Sequence[np.ndarray]) -> Batch:
        copies = [replace(self.read, token_ids=token_ids) for token_ids in ids]
        if self.example.source is not None:
            copies = [replace(self.example, source=copy) for copy in copies]
        return pack(copies).to(self.model.device)


@dataclass(frozen=True)
class Relevance:
    """The relevance of each word for the target.

    Args:
        values: (U) relevance of the words.
        gap: for integrated gradients, the unexplained share of the difference that all words make.
    """

    values: np.ndarray
    gap: float | None = None


def integrated_gradients(explained: ExplainedTarget) -> Relevance:
    """Integrate the gradient along the path from masked words to the words (Gauss-Legendre
    quadrature).

    Values sum to the difference that the words make to the score (completeness); steps are added
    until this holds up to ``GAP``.

    Source: Sundararajan, Taly and Yan 2017, section 3.
    """
    first, last = _path_ends(explained)
    masked = explained.without(range(len(explained.words)))
    ends = explained.values([masked, explained.read.token_ids])
    difference = float(ends[1] - ends[0])
    steps, path = _STEPS, (last - first)[None]
    while True:
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        shares = torch.as_tensor((1 + nodes) / 2, dtype=first.dtype, device=first.device)
        _, gradients = explained.gradients(first[None] + shares[:, None, None] * path)
        total = torch.einsum("n,nte->te", gradients.new_tensor(weights / 2), gradients)
        values = explained.over_words((total * path[0]).sum(-1).double().cpu().numpy())
        gap = abs(values.sum() - difference) / max(abs(difference), 1e-6)
        if gap <= GAP or 2 * steps > _MOST_STEPS:
            return Relevance(values, float(gap))
        steps *= 2


def gradient_x_input(explained: ExplainedTarget) -> Relevance:
    """The gradient at the input times the difference from masked words: a first approximation.

    Source: Shrikumar et al. 2017, section 3.2 of the related work, with masked words as reference.
    """
    first, last = _path_ends(explained)
    _, gradients = explained.gradients(last[None])
    return Relevance(
        explained.over_words((gradients[0] * (last - first)).sum(-1).double().cpu().numpy())
    )


def attention_rollout(explained: ExplainedTarget) -> Relevance:
    """How much of each word reaches the tokens read by the head, whatever the prediction.

    Source: Abnar and Zuidema 2020, section 3.
    """
    return _by_attention(explained, lambda maps, _: rollout(maps))


def attention_x_gradient(explained: ExplainedTarget) -> Relevance:
    """Attention times the positive part of its gradient, propagated through all layers.

    Source: Chefer, Gur and Wolf 2021, equations 5 and 6.
    """
    return _by_attention(explained, relevance)


def leave_one_out(explained: Any) -> Relevance:
    """The difference that masking each single word makes.

    Like ``shapley``, needs only ``words``, ``without`` (the input without the words at these
    indices) and ``values`` (the outputs for such inputs): an ``ExplainedTarget`` or an
    ``OccludedRow``.
    """
    inputs = [explained.without([i]) for i in range(len(explained.words))]
    values = explained.values([explained.without([]), *inputs])
    return Relevance(values[0] - values[1:])


def shapley(explained: Any) -> Relevance:
    """The mean difference that a word makes over all orders of masking words.

    Exact for up to ``SEGMENTS`` words; a longer text is divided into that many segments, whose
    words share their value equally.

    Source: Lundberg and Lee 2017, equation 4.
    """
    words = np.arange(len(explained.words))
    groups = np.array_split(words, min(SEGMENTS, len(words)))
    count = len(groups)
    numbers = range(count)
    subsets = [frozenset(s) for size in range(count + 1) for s in combinations(numbers, size)]
    masked = [[i for g in numbers if g not in kept for i in groups[g].tolist()] for kept in subsets]
    scores = explained.values([explained.without(each) for each in masked])
    known = dict(zip(subsets, scores, strict=True))
    values = np.zeros(len(explained.words))
    for number, members in enumerate(groups):
        total = sum(
            (known[kept | {number}] - known[kept]) / comb(count - 1, len(kept))
            for kept in subsets
            if number not in kept
        )
        values[members] = total / count / len(members)
    return Relevance(values)


def random_order(explained: ExplainedTarget) -> Relevance:
    """Random values: the baseline for methods."""
    seed = [len(explained.words), int(explained.read.token_ids.sum())]
    return Relevance(np.random.default_rng(seed).normal(size=len(explained.words)))


METHODS: Mapping[str, Callable[[Any], Relevance]] = {
    "integrated_gradients": integrated_gradients,
    "gradient_x_input": gradient_x_input,
    "attention_rollout": attention_rollout,
    "attention_x_gradient": attention_x_gradient,
    "leave_one_out": leave_one_out,
    "shapley": shapley,
}
# Methods that need predictions only, and so explain any model.
OCCLUSION = ("leave_one_out", "shapley")


def method_named(name: str) -> Callable[[Any], Relevance]:
    """Look up a method; ``InputError`` if there is none of that name."""
    known(*METHODS)("method", name)
    return METHODS[name]


def _by_attention(
    explained: ExplainedTarget, combine: Callable[[Sequence[Tensor], Sequence[Tensor]], Tensor]
) -> Relevance:
    """Relevance from attention (H, S, S) and its gradient in each layer, which ``combine`` turns
    into (S, S); rows are weighted by how much the head reads them."""
    model, example = explained.model, explained.example
    if example.source is not None:
        raise InputError(
            "a word of a translation is explained by integrated_gradients, gradient_x_input, "
            "leave_one_out or shapley: attention alone does not show what a decoder has read"
        )
    batch = explained._batch([example.token_ids])

    def score(logits: Tensor) -> Tensor:
        return explained.target.score(logits, batch).sum()

    layers = range(len(model.encoder.schedule()))
    gradients = gradients_of(score, model, batch, explained.head, layers)
    reads = np.split(explained.target.reads, np.cumsum(batch.layout.lengths)[:-1])
    tokens = []
    for sequence, weights in enumerate(reads):
        flow = combine(*gradients.of(sequence))
        tokens.append(flow.new_tensor(weights) @ flow)
    return Relevance(explained.over_words(torch.cat(tokens).double().cpu().numpy()))


def _path_ends(explained: ExplainedTarget) -> tuple[Tensor, Tensor]:
    """Word embeddings (T, E) of the input with all words masked, and of the input itself; not for
    heads that read n-grams."""
    head: Any = explained.model.heads[explained.head]
    if getattr(head, "ngrams", None) is not None:
        raise InputError(
            "the network reads n-grams, which have no gradient per word; use the method "
            "leave_one_out"
        )
    masked = explained.without(range(len(explained.words)))
    table: Any = explained.model.encoder.embeddings.word
    masked, whole = (
        table(torch.from_numpy(ids).long().to(explained.model.device)).detach()
        for ids in (masked, explained.read.token_ids)
    )
    return masked, whole


def _parts(items: Any, tokens: int, most: int) -> Iterator[Any]:
    """Split items of ``tokens`` tokens each into parts of at most ``most`` tokens, or single
    items."""
    size = max(1, most // max(1, tokens))
    for start in range(0, len(items), size):
        yield items[start : start + size]
