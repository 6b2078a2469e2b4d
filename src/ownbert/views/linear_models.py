"""Linear models on features. N rows, F features, C labels or numbers.

A model gives scores that can be added over models: log-probabilities of one label per row, logits
of any number of labels, or numbers.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from ownbert.errors import InputError
from ownbert.threads import adapt_threads
from ownbert.time_limit import check_time, seconds_left
from ownbert.views.ngram_counts import Matrix

LINKS = ("softmax", "one-vs-rest", "logits", "numbers")
# Inverse weights of the penalty that are tried, in this order: of logistic regressions, and of
# models with a squared hinge loss, by task.
STRENGTHS = (10.0, 1.0, 100.0)
HINGE_STRENGTHS = {"classify": (10.0, 1.0), "multilabel": (1.0, 0.3)}
_DUAL_UP_TO = 10.0
_SMALLEST = -30.0  # log-probability
# Training rows without features say how often labels are in such rows; the frequencies in all rows
# count as this many more.
_PRIOR_ROWS = 5.0
# Iterations of a regression on dense features: the most, and those that are made even if the time
# is over, since weights that have not converged are better than none.
_FEWEST_ITERATIONS, _MOST_ITERATIONS = 10, 200
# Standard deviations of dense features, at least, as a share of their root mean square: those of a
# network that has learnt something are .1 to 1, those of an untrained one .01, and bfloat16 rounds
# by up to .004.
_LEAST_DEVIATION = 0.05


@dataclass(frozen=True)
class Targets:
    """What rows are to be answered with.

    Args:
        task: classify, multilabel or regress.
        values: classify: (N) indices of labels; multilabel: (N, C) of 0 and 1; regress: (N, C)
            numbers.
        size: C.
    """

    task: str
    values: np.ndarray
    size: int

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Targets":
        return Targets(self.task, self.values[rows], self.size)


@dataclass(frozen=True)
class LinearModel:
    """A linear model.

    Args:
        weights: (F, C).
        bias: (C).
        link: how outputs become scores: softmax; one-vs-rest, sigmoids divided by their sum;
            logits or numbers, as they are.
        prior: (C) the scores of rows that have no feature with a weight, such as texts without any
            known word: how often each label is, not what the bias happens to be. None: of a
            folder of an earlier version, which answers with the bias.
    """

    weights: np.ndarray
    bias: np.ndarray
    link: str
    prior: np.ndarray | None = None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], link: Any) -> "LinearModel":
        """The model whose weights and bias these are, from a file.

        Raises:
            ValueError: they are none of a model.
        """
        weights, bias, prior = arrays["weights"], arrays["bias"], arrays.get("prior")
        if weights.ndim != 2 or bias.shape != weights.shape[1:]:
            raise ValueError(f"weights are {weights.shape} and the bias is {bias.shape}")
        if prior is not None and prior.shape != bias.shape:
            raise ValueError(f"the prior is {prior.shape} and the bias is {bias.shape}")
        if not (np.isfinite(weights).all() and np.isfinite(bias).all()):
            raise ValueError("some weights are not finite")
        if link not in LINKS:
            raise ValueError(f"the link is {link!r}, not one of {', '.join(LINKS)}")
        return cls(weights, bias, link, prior)

    def scaled(self, factor: float, offsets: np.ndarray) -> "LinearModel":
        """The model whose outputs are those of this one times a factor, plus offsets (C)."""
        weights, bias = self.weights * np.float32(factor), self.bias * np.float32(factor)
        return replace(self, weights=weights, bias=(bias + offsets).astype(np.float32))

    def scores(self, features: Matrix | np.ndarray) -> np.ndarray:
        """(N, C): log-probabilities, logits, or numbers."""
        products = np.asarray(features @ self.weights, dtype=np.float64)
        outputs = products + self.bias
        if self.link == "softmax":
            outputs = log_softmax(outputs)
        elif self.link == "one-vs-rest":
            outputs = log_softmax(-np.logaddexp(0, -outputs))
        if self.prior is not None:
            outputs[~products.any(1)] = self.prior
        return outputs

    def knows_nothing(self, scores: np.ndarray) -> np.ndarray:
        """(N) which rows, by their scores (N, C), have no feature with a weight."""
        if self.prior is None:
            return np.zeros(len(scores), dtype=bool)
        return (scores == self.prior).all(1)


def fit_linear(
    features: Matrix | np.ndarray,
    targets: Targets,
    strength: float,
    *,
    naive_bayes: bool = False,
    hinge: bool = False,
    seconds: float = math.inf,
) -> LinearModel:
    """Fit a linear model.

    On sparse features logistic regressions of scikit-learn, one for each label, whose solver is
    several times as fast as one for all labels; on dense ones a single regression for all labels.
    Ridge regression for numbers.

    With ``hinge`` linear support vector machines take the place of logistic regressions on sparse
    features. Where rows have one label, those of a rare one count more. The outputs are margins,
    which need a scale of held-out rows to be good log-probabilities or logits.

    Args:
        features: (N, F).
        targets: of the N rows.
        strength: the inverse of the penalty's weight.
        naive_bayes: scale the features for each label by the logarithm of how much likelier they
            are with it than without (Wang and Manning 2012).
        hinge: minimise the squared hinge loss.
        seconds: after which a regression on dense features stops where it is.

    Raises:
        InputError: scikit-learn is not installed.
        OutOfTime: the time limit has passed before all labels were fitted.
    """
    if not features.shape[1]:  # no word is in two texts
        return _constant(targets)
    given = naive_bayes, hinge, seconds
    model = _fit_without_prior(features, targets, strength, *given)
    known = np.asarray(features @ model.weights).any(1)
    return replace(model, prior=_prior(targets, np.logical_not(known)))


def _fit_without_prior(
    features: Matrix | np.ndarray,
    targets: Targets,
    strength: float,
    naive_bayes: bool,
    hinge: bool,
    seconds: float,
) -> LinearModel:
    if targets.task == "regress":
        return _ridge(features, targets, strength)
    if isinstance(features, np.ndarray):
        return _dense_regression(features, targets, strength, seconds)
    weights = np.zeros((features.shape[1], targets.size), dtype=np.float32)
    bias = np.zeros(targets.size, dtype=np.float32)
    features = _int32_indices(features)
    single = targets.task == "classify"
    link = "logits" if not single else "softmax" if hinge else "one-vs-rest"
    if single and targets.size == 2:  # one model says both
        own = targets.values == 1
        fitted = _svm(strength, "balanced") if hinge else _logistic(strength)
        weights[:, 1], bias[1] = _separate(features, own, fitted, naive_bayes)
        weights[:, 0], bias[0] = -weights[:, 1], -bias[1]
        return LinearModel(weights, bias, link)
    # Hashed features are mostly empty, and the solver's time for a label depends on their number.
    columns = np.arange(features.shape[1])
    if not isinstance(features, np.ndarray) and features.nnz and not naive_bayes:
        columns = np.unique(features.indices)
        features = _int32_indices(features[:, columns])
    for label in range(targets.size):
        check_time()
        own = targets.values == label if single else targets.values[:, label] > 0
        # As scikit-learn weights several classes: the mean number of rows over that of this one.
        count = len(own) / (targets.size * max(1, own.sum())) if single else 1.0
        fitted = _svm(strength, {True: count}) if hinge else _logistic(strength)
        weights[columns, label], bias[label] = _separate(features, own, fitted, naive_bayes)
    return LinearModel(weights, bias, link)


def centre_and_scale(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What (F) is subtracted from vectors (N, F), and what (F) they are divided by then, so that
    each feature varies alike and vectors have a length of about 1, as those of the views. Features
    that hardly vary, as those of an untrained network, would be rounding errors then."""
    least = max(_LEAST_DEVIATION * float(np.sqrt(np.mean(np.square(vectors)))), 1e-6)
    return vectors.mean(0), np.maximum(vectors.std(0), least) * np.sqrt(vectors.shape[1])


def _separate(
    features: Any, own: np.ndarray, fitted: Any, naive_bayes: bool
) -> tuple[np.ndarray, float]:
    """The weights (F) and the bias of a model of scikit-learn, ``fitted`` to tell the rows in
    ``own`` from the others."""
    if own.all() or not own.any():
        return np.zeros(features.shape[1], dtype=np.float32), _log_odds(own)
    ratio = _log_count_ratio(features, own) if naive_bayes else None
    if ratio is not None:
        features = features.copy()
        features.data = features.data * ratio[features.indices]
    fitted.fit(features, own)
    weights = fitted.coef_[0].astype(np.float32)
    return weights if ratio is None else weights * ratio, float(fitted.intercept_[0])


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """(N, C) normalised over C, and not below -30."""
    shifted = scores - scores.max(-1, keepdims=True)
    found = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return np.maximum(found, _SMALLEST)


def loss_and_slope(
    targets: Targets,
    scores: np.ndarray,
    each_row: np.ndarray | None = None,
    *,
    smoothing: float = 0.0,
) -> tuple[float, np.ndarray]:
    """The mean loss, and its derivative by the scores (N, C).

    Cross entropy (of each label for multilabel), or half the squared error of numbers.

    Args:
        targets: of the rows.
        scores: (N, C).
        each_row: (N) how much a row counts, where rows have one label.
        smoothing: the probability that a label is taken to be wrong.
    """
    rows = np.arange(len(scores))
    if targets.task == "classify":
        counts = np.ones(len(scores)) if each_row is None else each_row
        counts = counts / counts.sum()
        logs = log_softmax(scores)
        truth = np.full(scores.shape, smoothing / max(1, targets.size - 1))
        truth[rows, targets.values] = 1 - smoothing
        own = -np.where(truth > 0, truth * logs, 0.0).sum(1)
        return float(own @ counts), (np.exp(logs) - truth) * counts[:, None]
    if targets.task == "multilabel":
        truth = smoothing + (1 - 2 * smoothing) * targets.values
        each = np.logaddexp(0, scores) - truth * scores
        slope = 1 / (1 + np.exp(-np.clip(scores, _SMALLEST, -_SMALLEST))) - truth
        return float(each.mean()), slope / scores.size
    apart = scores - targets.values
    return float((apart**2).mean() / 2), apart / scores.size


def _dense_regression(
    features: np.ndarray, targets: Targets, strength: float, seconds: float
) -> LinearModel:
    """One regression for all labels, stopped when the time is over."""
    from scipy.optimize import minimize

    link = "softmax" if targets.task == "classify" else "logits"
    shape = features.shape[1] + 1, targets.size
    # The loss of all rows and labels, over the number of rows.
    scale = 1.0 if link == "softmax" else float(targets.size)
    penalty = 1 / (strength * max(1, len(targets)))
    start = np.zeros(shape)
    if link == "logits":
        start[-1] = [_log_odds(own > 0) for own in targets.values.T]

    # By torch, whose threads do not wait for each other on a busy machine.
    matrix = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))

    def product(left: torch.Tensor, right: np.ndarray) -> np.ndarray:
        return (left @ torch.from_numpy(right.astype(np.float32))).numpy().astype(np.float64)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        found = flat.reshape(shape)
        weights, bias = found[:-1], found[-1]
        own, slope = loss_and_slope(targets, product(matrix, weights) + bias)
        across = product(matrix.T, slope)
        gradient = np.concatenate([scale * across + penalty * weights, [scale * slope.sum(0)]])
        return scale * own + penalty / 2 * float((weights**2).sum()), gradient.ravel()

    iterations = 0

    def stop(_: np.ndarray) -> None:
        nonlocal iterations
        iterations += 1
        adapt_threads()
        spent = time.monotonic() - began
        if iterations >= _FEWEST_ITERATIONS and (spent > seconds or seconds_left() <= 0):
            raise StopIteration

    began = time.monotonic()
    found: Any = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=stop,
        options={"maxiter": _MOST_ITERATIONS, "gtol": 1e-4},
    )
    both = found.x.reshape(shape).astype(np.float32)
    bias = both[-1].copy()
    if targets.task == "classify":  # labels that no row has
        bias[np.bincount(targets.values, minlength=targets.size) == 0] = _SMALLEST
    return LinearModel(np.ascontiguousarray(both[:-1]), bias, link)


def _ridge(features: Any, targets: Targets, strength: float) -> LinearModel:
    try:
        from sklearn.linear_model import Ridge
    except ImportError:
        raise _no_sklearn() from None
    solver = "cholesky" if isinstance(features, np.ndarray) else "sparse_cg"
    fitted = Ridge(alpha=1 / strength, solver=solver, tol=1e-3)
    fitted.fit(_int32_indices(features), targets.values)
    weights = np.asarray(fitted.coef_, dtype=np.float32).reshape(targets.size, -1).T
    bias = np.broadcast_to(np.asarray(fitted.intercept_, dtype=np.float32), targets.size)
    return LinearModel(np.ascontiguousarray(weights), bias.copy(), "numbers")


def _constant(targets: Targets) -> LinearModel:
    """A model without features: how often each label is, or the mean of the numbers."""
    bias = _prior(targets, np.ones(len(targets), dtype=bool))
    link = {"classify": "softmax", "multilabel": "logits"}.get(targets.task, "numbers")
    return LinearModel(np.zeros((0, targets.size), dtype=np.float32), bias, link, bias)


def _prior(targets: Targets, unknown: np.ndarray) -> np.ndarray:
    """(C) scores of rows without features: how often each label is, or the mean of the numbers, in
    the rows (N) that are unknown, drawn towards that in all rows."""
    single, numbers = targets.task == "classify", targets.task == "regress"
    values = np.eye(targets.size)[targets.values] if single else np.asarray(targets.values, float)
    # Half a row more with each answer, so that none is impossible.
    more = 0.0 if numbers else 0.5
    rows = len(values) + more * (targets.size if single else 2)
    mean = (values.sum(0) + more) / rows
    found = values[unknown].sum(0) + _PRIOR_ROWS * mean
    found /= unknown.sum() + _PRIOR_ROWS
    if numbers:
        return found.astype(np.float32)
    return (np.log(found) - (0.0 if single else np.log1p(-found))).astype(np.float32)


def _logistic(strength: float) -> Any:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise _no_sklearn() from None
    # The dual problem is solved in half the time, and with a weak penalty in three times as much.
    dual = strength <= _DUAL_UP_TO
    return LogisticRegression(
        solver="liblinear", C=strength, dual=dual, tol=0.1 if dual else 0.01, random_state=0
    )


def _svm(strength: float, counts: Any) -> Any:
    """A linear SVM of scikit-learn. counts: how much rows count, its ``class_weight``."""
    try:
        from sklearn.svm import LinearSVC
    except ImportError:
        raise _no_sklearn() from None
    # A tolerance of 0.001 takes 1.2 to 3.3 times as long; test macro-F1 is the same to .003.
    settings: Any = {"dual": True}  # scikit-learn's own annotation has strings alone
    return LinearSVC(
        C=strength, class_weight=counts, tol=0.1, max_iter=5000, random_state=0, **settings
    )


def _no_sklearn() -> InputError:
    return InputError("linear models are fitted by scikit-learn: pip install 'ownbert[eval]'")


def _log_odds(own: np.ndarray) -> float:
    return float(np.log((own.sum() + 0.5) / ((~own).sum() + 0.5)))


def _log_count_ratio(features: Matrix, own: np.ndarray) -> np.ndarray:
    """(F) log of how often a feature occurs in rows with the label over that in rows without."""
    present = features.copy()
    present.data = np.ones_like(present.data)
    p = 1 + np.asarray(present[np.flatnonzero(own)].sum(0)).ravel()
    q = 1 + np.asarray(present[np.flatnonzero(~own)].sum(0)).ravel()
    return np.log((p / p.sum()) / (q / q.sum())).astype(np.float32)


def _int32_indices(features: Any) -> Any:
    """liblinear takes 32-bit indices only."""
    if isinstance(features, np.ndarray):
        return features
    features = features.tocsr()
    features.indices = features.indices.astype(np.int32)
    features.indptr = features.indptr.astype(np.int32)
    return features
