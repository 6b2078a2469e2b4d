"""A BERT that contains a linear model of its tokens.

A linear model of a bag of tokens is the mean of one vector per token, the scores that the token
adds for each label. BERT computes such a mean where a head of the last block attends to all tokens
alike. So the network gets more channels: the word embeddings hold the scores there, one more head
carries their mean to the first token, and pooler and classifier pass it on. The logits are then the
sum of what the network had and of the linear model; everything can be trained on from there, and
the folder remains an ordinary BERT.

LayerNorm is shared by all channels. Scores are small beside the others, and the first token has
none until the last block, so it works on the others almost as before.

V tokens of the vocabulary, C labels, N rows, D hidden size before, R channels that hold scores.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ownbert.batches.example import Example
from ownbert.nn.model import Model
from ownbert.nn.undrawn import materialize, shapes_alone
from ownbert.views.ngram_counts import Matrix, sparse

# Channels that hold scores, at most: those of more labels are approximated by as many.
MOST_CHANNELS = 191
# The largest scores, as a share of what other channels hold on average.
_SIZE = 0.3
# What the pooler multiplies them by: its tanh is linear up to about .3, and their mean is small.
_POOLED = 2.0
# What the new heads multiply them by, and divide again: an int8 copy has one scale for all heads.
_CARRIED = 8.0
# The inverse weight of the penalty, for rows of length 1.
_STRENGTH = 10.0


def can_hold_scores(model: Model) -> bool:
    """Whether this is a BERT as Google made it, with a classifier on its pooler."""
    config, spec = model.config, model.specs.get("classification")
    plain = model.model_type == "bert" and model.decoder is None and not config.pruned_heads
    usual = (config.position_embedding_type, config.head_width, config.norm_first)
    pooled = spec is not None and spec.needs_pooler and spec.dense is None and spec.ngrams is None
    return plain and pooled and usual == ("absolute", None, False)


def mean_counts(examples: Sequence[Example], vocab_size: int, special: Sequence[int]) -> Matrix:
    """(N, V): how often a token is in each example, over the number of its tokens; the columns of
    special tokens are 0."""
    sizes = [len(example.token_ids) for example in examples]
    ids = np.concatenate([example.token_ids for example in examples])
    row = np.repeat(np.arange(len(sizes)), sizes)
    share = np.repeat(1 / np.asarray(sizes, dtype=np.float32), sizes)
    share[np.isin(ids, special)] = 0.0
    return sparse.csr_matrix((share, (row, ids)), shape=(len(sizes), vocab_size))


def fit_token_scores(counts: Matrix, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The linear model of a bag of tokens that is nearest to scores.

    Ridge regression, whose penalty is weaker for rare tokens.

    Args:
        counts: (N, V), of ``mean_counts``.
        scores: (N, C), of linear models of any kind, which are to be imitated.

    Returns:
        The scores of each token (V, C), and the bias (C), both float32.
    """
    from sklearn.linear_model import Ridge

    texts_with = np.bincount(counts.indices[counts.data > 0], minlength=counts.shape[1])
    weights = np.sqrt(np.log((len(scores) + 1) / (texts_with + 1)) + 1)
    weights /= np.sqrt(counts.power(2).sum(1).mean())
    weights[texts_with == 0] = 0.0
    features = (counts @ sparse.diags(weights.astype(np.float32))).astype(np.float32)
    mean = scores.mean(0)
    # Without an intercept, for which the solver would need dense features.
    fitted = Ridge(alpha=1 / _STRENGTH, solver="cholesky", fit_intercept=False)
    fitted.fit(features, (scores - mean).astype(np.float32))
    found = fitted.coef_.reshape(scores.shape[1], -1).T * weights[:, None]
    return found.astype(np.float32), mean.astype(np.float32)


def with_token_scores(model: Model, table: np.ndarray) -> Model:
    """A wider copy of a model, whose logits are those of the model plus about a multiple of the
    mean score of the tokens.

    Args:
        model: one that ``can_hold_scores``.
        table: (V, C), the scores of each token.

    Returns:
        The model in evaluation mode. The last columns of its classifier, from D on, are for the
        scores.
    """
    channels, readout = _channels(torch.from_numpy(table))
    config, hidden = model.config, model.config.hidden_size
    size = config.head_size
    more = -(-(channels.shape[1] + 1) // size)  # heads; one channel holds no scores
    heads = config.num_attention_heads + more
    wider = replace(config, hidden_size=heads * size, num_attention_heads=heads)
    with shapes_alone():
        wide = Model(
            wider, [*model.specs.values()], labels=model.labels, model_type=model.model_type
        )
    materialize(wide)
    with torch.no_grad():
        _copy(model, wide, (hidden / wider.hidden_size) ** 0.5)
        _add_scores(wide, hidden, channels, readout)
    return wide.eval()


def _channels(table: Tensor) -> tuple[Tensor, Tensor]:
    """What tokens (V, R) have in the channels, and what (R, C) these are worth for labels."""
    largest = min(MOST_CHANNELS, *table.shape)
    if table.shape[1] <= largest:
        channels, readout = table, torch.eye(table.shape[1])
    else:
        left, values, right = torch.linalg.svd(table, full_matrices=False)
        channels, readout = left[:, :largest] * values[:largest], right[:largest]
    used = channels[channels.abs().sum(1) > 0].abs().flatten().numpy()
    unit = _SIZE / max(float(np.quantile(used, 0.99)) if used.size else 0.0, 1e-6)
    return channels * unit, readout / unit


def _copy(model: Model, wide: Model, scale: float) -> None:
    """Take over all weights. With channels that hold almost nothing the deviation over all of them
    is smaller by ``scale``, and LayerNorm's weights with it."""
    of = dict(model.named_parameters())
    norms = {f"{n}.weight" for n, m in wide.named_modules() if isinstance(m, nn.LayerNorm)}
    for name, own in wide.named_parameters():
        own.fill_(1.0 if name in norms else 0.0)
        parts = 3 if ".qkv." in name else 1  # queries, keys and values are side by side
        for new, old in zip(own.chunk(parts), of[name].chunk(parts), strict=True):
            new[tuple(map(slice, old.shape))] = old
        if name in norms:
            own *= scale
    embeddings: Any = wide.encoder.embeddings
    for table in (embeddings.word, embeddings.position, embeddings.token_type):
        # LayerNorm subtracts the mean over all channels, and new ones would change it.
        own = table.weight[:, : model.config.hidden_size]
        own -= own.mean(1, keepdim=True)


def _add_scores(wide: Model, hidden: int, channels: Tensor, readout: Tensor) -> None:
    """Set the weights of the channels from ``hidden`` on."""
    embeddings: Any = wide.encoder.embeddings
    word, rank = embeddings.word.weight, channels.shape[1]
    usual = (
        embeddings.position.weight[:, :hidden].mean(0) + embeddings.token_type.weight[0, :hidden]
    )
    # LayerNorm will divide by about this.
    deviation = (word[:, :hidden] + usual).std(1, correction=0, keepdim=True)
    word[:, hidden : hidden + rank] = channels * deviation
    block: Any = wide.encoder.blocks[-1]
    same = torch.eye(wide.config.hidden_size - hidden)
    # Without queries and keys the new heads attend to all tokens alike.
    block.attention.qkv.weight.chunk(3)[2][hidden:, hidden:] = _CARRIED * same
    block.attention.output.weight[hidden:, hidden:] = same / _CARRIED
    pooler: Any = wide.pooler
    pooler.dense.weight[hidden:, hidden:] = _POOLED * same
    head: Any = wide.heads["classification"]
    head.dense.weight[:, hidden : hidden + rank] = readout.T / _POOLED
    # What LayerNorm subtracts from every channel is seen in one without scores.
    head.dense.weight[:, hidden + rank] = -readout.sum(0) / _POOLED
