"""A BERT that contains a linear model of its tokens.

A linear model of a bag of tokens computes the mean of one vector per token: its scores for each
label. A head of BERT computes such a mean if it attends to all tokens equally. So the network gets
new channels, in which the word embeddings hold the scores; a new head of the last block computes
their mean for the first token, and pooler and classifier pass it on. The logits are then the sum
of the logits of the network and of the linear model. All weights can be trained further, and the
folder remains an ordinary BERT. Pairs of adjacent tokens can have scores too (``token_pairs``),
and repeated tokens can count less (``repeated_tokens``).

LayerNorm normalises all channels together. The scores are small compared with the other channels,
and the first token has none before the last block, so the other channels are hardly affected.

V tokens of the vocabulary, P pairs of tokens, C labels, N rows, D hidden size before, R channels
that hold scores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.example import Example
from ownbert.corpus.sparse import Matrix, sparse
from ownbert.exceptions import InputError
from ownbert.files.writing import atomic_path
from ownbert.finetuning.linear_baseline import inputs_of_head
from ownbert.finetuning.token_pairs import (
    CodeChannels,
    TokenShares,
    add_damping,
    add_pairs,
    informative_pairs,
    pair_counts,
    token_shares,
)
from ownbert.nn.model import Model
from ownbert.nn.undrawn import materialize, shapes_alone
from ownbert.time_limit import check_time, clock_seconds, seconds_left
from ownbert.views.linear_models import Targets, fit_linear

# Factor of the mean in the heads, relative to the token.
_MEAN_SIZE = 32.0
# Factor of the mean in the pooler: tanh is nearly linear up to about .5, and after LayerNorm few
# values exceed 3.
_MEAN_POOLED = 0.2


def is_plain_bert(model: Model) -> bool:
    """Whether a model has the structure of Google's BERT, with any heads."""
    config = model.config
    plain = model.model_type == "bert" and model.decoder is None and not config.pruned_heads
    structure = (config.positions.table, config.head_width, config.norm_first)
    return plain and structure == (True, None, False)


def can_hold_means(model: Model) -> bool:
    """Whether a layer can be added that computes means."""
    return is_plain_bert(model) and not (model.config.layer_gate or model.config.attention_blur)


@torch.no_grad()
def with_mean_layer(model: Model) -> Model:
    """A copy of a BERT (``can_hold_means``) with one more layer and a pooler, without heads, in
    evaluation mode, whose first token holds the mean of all tokens.

    A classifier of Transformers reads the first token, through a pooler, but a text vector of a
    sentence-transformers folder is usually the mean of all tokens. The heads of the new layer
    attend to all tokens alike, and what they read is so much larger than the token itself that
    LayerNorm leaves nothing else. With a pooler that is nearly linear, the classifier is a linear
    model of text vectors, and the folder remains an ordinary BERT.
    """
    layers, width = model.config.num_hidden_layers, model.config.hidden_size
    with shapes_alone():
        longer = Model(
            replace(model.config, num_hidden_layers=layers + 1),
            [],
            pooler=True,
            model_type=model.model_type,
        )
    materialize(longer)
    known, identity = dict(model.named_parameters()), torch.eye(width)
    last, added = f"encoder.blocks.{layers - 1}.", f"encoder.blocks.{layers}."
    for name, own in longer.named_parameters():
        if name.startswith(added):  # some of these weights are replaced below
            own.copy_(known[name.replace(added, last)])
        elif name in known:
            own.copy_(known[name])
    block: Any = longer.encoder.blocks[-1]
    attention, pooler = block.attention, cast(Any, longer.pooler)
    for part in (attention.qkv, attention.output, pooler.dense):
        part.weight.zero_()
        part.bias.zero_()
    attention.qkv.weight[-width:] = identity
    attention.output.weight.copy_(_MEAN_SIZE * identity)
    block.feed_forward.down.weight.zero_()
    block.feed_forward.down.bias.zero_()
    for norm in (m for m in block.modules() if isinstance(m, torch.nn.LayerNorm)):
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    pooler.dense.weight.copy_(_MEAN_POOLED * identity)
    return longer.eval()


# Maximum number of channels for scores; the scores of more labels are approximated by this number.
MOST_CHANNELS = 191
# Size of the largest scores, relative to the mean size of the other channels.
_SIZE = 0.3
# Factor of the scores in the pooler: its tanh is linear up to about .3, and mean scores are small.
_POOLED = 2.0
# Factor of the scores in the new heads, divided out after them: an int8 copy has one scale for all
# heads.
_SCORE_FACTOR = 8.0
# Inverse weight of the penalty, for rows of length 1.
_STRENGTH = 10.0
# Steps of the regression, which is stopped before it converges, because it would then fit noise
# (docs/lab/distilled-network.md).
_STEPS = 20
_TINY = 1e-30  # avoids a division by 0
# Number of texts on which LayerNorm's deviations are measured.
_MEASURED = 64
# One text in eight is held out to measure whether pairs help: the squared error with pairs must be
# less than this share of the error without them.
_HELD_OUT_EVERY, _PAIRS_ERROR = 8, 0.9
# Minimum time left for pairs, as a multiple of the time of the first regression.
_PAIRS_TIME = 6.0


def can_hold_scores(model: Model) -> bool:
    """Whether a model has the structure of Google's BERT, with a classifier on its pooler."""
    spec = model.specs.get("classification")
    pooled = spec is not None and spec.needs_pooler and spec.dense is None and spec.ngrams is None
    return is_plain_bert(model) and pooled


@dataclass(frozen=True)
class TokenScores:
    """A linear model of tokens and of pairs of adjacent tokens.

    Args:
        table: (V + P, C) scores of each token and of each pair.
        bias: (C).
        pairs: (P) sorted numbers of pairs (``token_pairs.pair_counts``).
        special: ids of the special tokens, which have no scores.
        damped: whether repeated tokens count less.
        weights: of the scores that were added up to these.
        offsets: (C) part of the bias that was fitted together with the weights.
        strength: inverse weight of the penalty of the scores fitted to labels.
    """

    table: np.ndarray
    bias: np.ndarray
    pairs: np.ndarray
    special: Sequence[int]
    damped: bool
    weights: np.ndarray = field(default_factory=lambda: np.ones(1))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(1))
    strength: float = 0.3

    @property
    def vocab_size(self) -> int:
        return len(self.table) - len(self.pairs)

    def write(self, path: Path) -> None:
        with atomic_path(path) as new, open(new, "wb") as file:
            np.savez(file, **vars(self))

    @classmethod
    def read(cls, path: Path) -> "TokenScores | None":
        """The scores of a file; None if it is missing or damaged."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                saved = {field.name: arrays[field.name] for field in fields(cls)}
                return cls(**{k: v if v.ndim else v.item() for k, v in saved.items()})
        except (OSError, EOFError, ValueError, KeyError, BadZipFile):
            return None

    def added(self, examples: Sequence[Example]) -> np.ndarray:
        """(N, C): the mean scores of each text, without the bias."""
        return self.counts(examples) @ self.table

    def centred(self, counts: Matrix) -> "TokenScores":
        """Equivalent scores for texts like those of ``counts``, with token scores around 0; the
        bias, which a text without known words gets, is the mean."""
        mean, share = (counts @ self.table).mean(0), counts[:, : self.vocab_size].sum(1).mean()
        table = self.table.copy()
        ordinary = np.setdiff1d(np.arange(self.vocab_size), self.special)
        table[ordinary] -= (mean / max(_TINY, float(share))).astype(table.dtype)
        return replace(self, table=table, bias=(self.bias + mean).astype(self.bias.dtype))

    def counts(self, examples: Sequence[Example]) -> Matrix:
        """(N, V + P): the shares of tokens and pairs in each text."""
        tokens = token_shares(examples, self.special, damped=self.damped)
        return _counts(tokens, len(examples), self.vocab_size, self.pairs)


def fit_token_scores(
    examples: Sequence[Example],
    scores: np.ndarray,
    vocab_size: int,
    special: Sequence[int],
    *,
    damped: bool = False,
    most_pairs: int = 0,
    alone: np.ndarray | None = None,
) -> TokenScores:
    """Fit a linear model of tokens to the ``scores`` (N, C) of linear models of any kind.

    At most ``most_pairs`` pairs are included, only if they reduce the error on held-out texts.
    Repeated tokens count less if ``damped``. ``alone`` (V, C): scores of each token by itself, for
    tokens that are rare in the texts.
    """
    texts, held_out = len(examples), np.arange(len(examples)) % _HELD_OUT_EVERY == 0
    pairs = np.zeros(0, np.int64)
    tokens = token_shares(examples, special, damped=damped)
    features = _counts(tokens, texts, vocab_size, pairs)
    if not features.nnz:
        raise InputError("no word of the texts is in the vocabulary of the network")

    if most_pairs and texts >= 2 * _HELD_OUT_EVERY:
        start = clock_seconds()
        table, bias = _ridge(features[~held_out], scores[~held_out], alone)
        if seconds_left() < _PAIRS_TIME * (clock_seconds() - start):
            return TokenScores(table, bias, pairs, special, damped)
        residual = scores - features @ table - bias
        chosen = informative_pairs(tokens, residual, ~held_out, vocab_size, most_pairs)
        both = _counts(tokens, texts, vocab_size, chosen)
        table, bias = _ridge(both[~held_out], scores[~held_out], alone)
        residual_with_pairs = scores - both @ table - bias
        if (
            np.square(residual_with_pairs[held_out]).sum()
            < _PAIRS_ERROR * np.square(residual[held_out]).sum()
        ):
            pairs, features = chosen, both
    return TokenScores(*_ridge(features, scores, alone), pairs, special, damped)


def fit_to_labels(
    scores: TokenScores, counts: Matrix, targets: Targets, strength: float
) -> TokenScores:
    """Fit scores of the same tokens and pairs to the labels or values of N texts, by linear support
    vector machines or ridge regression; ``strength``: inverse weight of the penalty, ``counts`` (N,
    V + P)."""
    weights = _weights(counts)
    fitted = fit_linear(counts @ sparse.diags(weights), targets, strength, hinge=True)
    table = fitted.weights * weights[:, None]
    return replace(scores, table=table, bias=fitted.bias, strength=strength)


def _counts(tokens: TokenShares, texts: int, vocab_size: int, pairs: np.ndarray) -> Matrix:
    """(N, V + P): the shares of tokens and pairs in each text; those of special tokens are 0."""
    ordinary = tokens.ids >= 0
    of_token = (tokens.share[ordinary], (tokens.row[ordinary], tokens.ids[ordinary]))
    counts = sparse.csr_matrix(of_token, shape=(texts, vocab_size))
    if not len(pairs):
        return counts
    return sparse.hstack([counts, pair_counts(tokens, texts, vocab_size, pairs)], format="csr")


def _ridge(
    counts: Matrix, scores: np.ndarray, alone: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression with a weaker penalty for rare features: table (F, C) and bias (C).

    The scores ``alone``, weighted by the rarity of the tokens, are scaled to fit best, and the
    regression fits the residual. With few texts this is much better than only a regression, which
    knows nothing about tokens that do not occur (docs/lab/distilled-network.md).
    """
    table = np.zeros((counts.shape[1], scores.shape[1]), np.float32)
    if alone is not None:
        table[: len(alone)] = alone * _rarity(counts)[: len(alone), None]
        table *= _slope(counts @ table, scores)
        scores = scores - counts @ table
    weights = _weights(counts)
    features = (counts @ sparse.diags(weights)).astype(np.float32)
    mean = scores.mean(0)
    coefficients = _conjugate_gradients(features, (scores - mean).astype(np.float32))
    return (table + coefficients * weights[:, None]).astype(np.float32), mean.astype(np.float32)


def _rarity(counts: Matrix) -> np.ndarray:
    """(F) weights, larger for features of fewer texts."""
    texts_with = np.bincount(counts.indices[counts.data > 0], minlength=counts.shape[1])
    return np.sqrt(np.log((counts.shape[0] + 1) / (texts_with + 1)) + 1)


def _weights(counts: Matrix) -> np.ndarray:
    """(F) factors of the features in a regression, so that rows have lengths of about 1; 0 for
    features of no text."""
    weights = _rarity(counts) / (np.sqrt(counts.power(2).sum(1).mean()) or 1.0)
    weights[np.bincount(counts.indices, minlength=counts.shape[1]) == 0] = 0.0
    return weights.astype(np.float32)


def _slope(scores: np.ndarray, target: np.ndarray) -> float:
    """The factor that brings ``given`` nearest to ``target``, up to an offset per column."""
    scores, target = (x - x.mean(0) for x in (scores, target))
    return float((scores * target).sum() / max(_TINY, float(np.square(scores).sum())))


def _conjugate_gradients(features: Matrix, targets: np.ndarray) -> np.ndarray:
    """Weights (F, C) of a ridge regression after ``_STEPS`` steps (Hestenes and Stiefel 1952).

    scikit-learn's Ridge takes 3 to 10 times as long, because it solves for one label at a time, and
    it does not stop early if there are more features than texts.
    """
    transposed = features.T.tocsr()
    weights = np.zeros((features.shape[1], targets.shape[1]), np.float32)
    residual = transposed @ targets
    direction, size = residual, np.square(residual).sum(0)
    for _ in range(_STEPS):
        check_time()
        image = transposed @ (features @ direction) + direction / _STRENGTH
        step = size / np.maximum((direction * image).sum(0), _TINY)
        weights += step * direction
        residual = residual - step * image
        size, before = np.square(residual).sum(0), size
        direction = residual + size / np.maximum(before, _TINY) * direction
    return weights


def with_token_scores(model: Model, scores: TokenScores, examples: Sequence[Example]) -> Model:
    """A wider copy of a model, in evaluation mode, whose logits include a multiple of the mean
    scores, approximately. The columns of its classifier from D on belong to the scores.

    The model must satisfy ``can_hold_scores``, with damping also ``can_hold_codes``, with pairs
    also ``can_hold_pairs``. LayerNorm's deviations are measured on ``examples``.
    """
    table, readout = _channels(torch.from_numpy(scores.table))
    config, hidden, rank = model.config, model.config.hidden_size, table.shape[1]
    size, pairs = config.head_size, scores.pairs
    channels = CodeChannels(hidden + rank, scores.damped, len(pairs) > 0)
    added_heads = -(-(channels.zero + 1 - hidden) // size)
    heads = config.num_attention_heads + added_heads
    last: Any = model.heads["classification"]
    if not last.dense.weight.any():
        # Only the scores count, so their divisors may differ from those of the other channels.
        channels = replace(channels, unused=hidden + added_heads * size - channels.zero - 1)
    wider = replace(
        config,
        hidden_size=heads * size,
        num_attention_heads=heads,
        intermediate_size=config.intermediate_size + len(pairs),
    )
    with shapes_alone():
        specs = [*model.specs.values()]
        wide = Model(wider, specs, labels=model.labels, model_type=model.model_type)
    materialize(wide)
    deviations = _deviations(model, examples[:_MEASURED])
    with torch.no_grad():
        _copy(model, wide, deviations, channels.energy)
        first = int(examples[0].token_ids[0])
        deviation = _deviation(wide, hidden, first)
        of_tokens, of_pairs = table.split([scores.vocab_size, len(pairs)])
        _add_scores(wide, hidden, of_tokens * deviation, readout, channels.zero)
        channels.add_codes(wide, deviation, first)
        if channels.damped:
            unused = heads - (2 if channels.paired else 1)
            add_damping(wide, channels, unused, config.num_attention_heads)
        if channels.paired:
            own = slice(hidden, channels.first)
            add_pairs(wide, deviation, channels, own, pairs, of_pairs)
    return wide.eval()


def _channels(table: Tensor) -> tuple[Tensor, Tensor]:
    """The values of tokens and pairs in the channels (V + P, R), and the weights (R, C) that turn
    these into scores."""
    largest = min(MOST_CHANNELS, *table.shape)
    if table.shape[1] <= largest:
        channels, readout = table, torch.eye(table.shape[1])
    else:
        left, values, right = torch.linalg.svd(table, full_matrices=False)
        channels, readout = left[:, :largest] * values[:largest], right[:largest]
    used = channels[channels.abs().sum(1) > 0].abs().flatten().numpy()
    unit = _SIZE / max(float(np.quantile(used, 0.99)) if used.size else 0.0, 1e-6)
    return channels * unit, readout / unit


def _copy(model: Model, wide: Model, deviations: Mapping[str, float], energy: float) -> None:
    """Copy all weights. ``energy``: sum of squares over the channels of codes.

    LayerNorm's weights compensate for the deviation over more channels, most of which are nearly
    empty, and pass the new channels on unchanged, so that their values neither grow nor vanish from
    layer to layer.
    """
    parameters = dict(model.named_parameters())
    hidden, width = (network.config.hidden_size for network in (model, wide))
    norms = {n: m for n, m in wide.named_modules() if isinstance(m, nn.LayerNorm)}
    for name, own in wide.named_parameters():
        own.zero_()
        parts = 3 if ".qkv." in name else 1  # queries, keys and values are side by side
        for new, old in zip(own.chunk(parts), parameters[name].chunk(parts), strict=True):
            new[tuple(map(slice, old.shape))] = old
    for name, norm in norms.items():
        deviation = deviations.get(name, 1.0)
        scale = ((hidden * deviation**2 + energy) / width) ** 0.5 / deviation
        norm.weight[:hidden] *= scale
        norm.weight[hidden:] = deviation * scale
    embeddings: Any = wide.encoder.embeddings
    for table in (embeddings.word, embeddings.position, embeddings.token_type):
        # LayerNorm subtracts the mean over all channels, and new ones would change it.
        own = table.weight[:, :hidden]
        own -= own.mean(1, keepdim=True)


def _deviations(model: Model, examples: Sequence[Example]) -> dict[str, float]:
    """The standard deviation that each LayerNorm of the blocks divides by, keyed by its name: the
    harmonic mean over the tokens of the texts."""
    deviations: dict[str, float] = {}

    def measure(name: str) -> Callable[[nn.Module, tuple[Tensor]], None]:
        def of_input(_: nn.Module, given: tuple[Tensor]) -> None:
            deviations[name] = 1 / float(given[0].std(-1, correction=0).reciprocal().mean())

        return of_input

    hooks = [
        norm.register_forward_pre_hook(measure(name))
        for name, norm in model.named_modules()
        if isinstance(norm, nn.LayerNorm) and ".blocks." in name
    ]
    try:
        inputs_of_head(model, "classification", examples)
    finally:
        for hook in hooks:
            hook.remove()
    return deviations


def _deviation(wide: Model, hidden: int, first: int) -> Tensor:
    """(V, 1) approximate standard deviations by which LayerNorm divides the embedding of each
    token: the root mean square over all positions, or for the token that begins every text, the
    value at its position."""
    embeddings: Any = wide.encoder.embeddings
    words = embeddings.word.weight[:, :hidden] + embeddings.token_type.weight[0, :hidden]
    positions = embeddings.position.weight[:, :hidden]
    mean_position = positions.mean(0)
    square = (words + mean_position).var(1, correction=0, keepdim=True)
    square += (positions - mean_position).var(1, correction=0).mean()
    square[first] = (words[first] + positions[0]).var(correction=0)
    return square.sqrt()


def _add_scores(wide: Model, hidden: int, tokens: Tensor, readout: Tensor, zero: int) -> None:
    """Set the weights of the channels from ``hidden`` on. Channel ``zero`` stays empty."""
    rank = tokens.shape[1]
    embeddings: Any = wide.encoder.embeddings
    embeddings.word.weight[:, hidden : hidden + rank] = tokens
    block: Any = wide.encoder.blocks[-1]
    identity = torch.eye(wide.config.hidden_size - hidden)
    # With queries and keys of zero, the new heads attend to all tokens equally.
    block.attention.qkv.weight.chunk(3)[2][hidden:, hidden:] = _SCORE_FACTOR * identity
    block.attention.output.weight[hidden:, hidden:] = identity / _SCORE_FACTOR
    pooler: Any = wide.pooler
    pooler.dense.weight[hidden:, hidden:] = _POOLED * identity
    head: Any = wide.heads["classification"]
    head.dense.weight[:, hidden : hidden + rank] = readout.T / _POOLED
    # The empty channel shows the mean that LayerNorm subtracts from every channel.
    head.dense.weight[:, zero] = -readout.sum(0) / _POOLED
