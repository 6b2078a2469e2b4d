"""Linear models on features. N rows, F features, C labels or regression values.

"Scores" can be added across models: log-probabilities (classify), logits (multilabel), or
values (regress).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

from ownbert.corpus.sparse import Matrix
from ownbert.exceptions import InputError, needing
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import atomic_path, make_folder
from ownbert.threads import adapt_threads
from ownbert.time_limit import check_time, clock_seconds, seconds_left
from ownbert.views import LINEAR
from ownbert.views.view_features import VIEWS, Texts, View

LINKS = ("softmax", "one-vs-rest", "logits", "numbers")
# Inverse regularisation strengths to try, in this order, for logistic regression and for squared
# hinge loss, by task.
STRENGTHS = (10.0, 1.0, 100.0)
HINGE_STRENGTHS = {"classify": (10.0, 1.0), "multilabel": (1.0, 0.3)}
_DUAL_UP_TO = 10.0
_SMALLEST = -30.0  # minimum log-probability
# Training rows without features define the prior of such rows, plus this many pseudo-rows with the
# overall label frequencies.
_PRIOR_ROWS = 5.0
# Maximum iterations of a regression on dense features, and the minimum after a timeout, because
# weights before convergence are better than none.
_FEWEST_ITERATIONS, _MOST_ITERATIONS = 10, 200
# Lower bound of the standard deviation of dense features, relative to their root mean square. A
# trained network has .1 to 1 and an untrained one .01; rounding to bfloat16 adds up to .004.
_LEAST_DEVIATION = 0.05
_FORMAT = 2  # version 1 used single characters for LSA and word vectors of Chinese


@dataclass(frozen=True)
class Targets:
    """Targets of N rows of a task (classify, multilabel or regress): label indices (N), for
    multilabel (N, C) of 0 and 1, or numbers (N, C); C is ``size``. ``each_row``: (N) weights of the
    rows, for regression and for labels from dense features."""

    task: str
    values: np.ndarray
    size: int
    each_row: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Targets":
        each_row = None if self.each_row is None else self.each_row[rows]
        return replace(self, values=self.values[rows], each_row=each_row)


@dataclass(frozen=True)
class LinearModel:
    """A linear model."""

    weights: np.ndarray  # (F, C)
    bias: np.ndarray  # (C)
    link: str  # outputs to scores: softmax; one-vs-rest, sigmoids divided by their sum; or none
    # (C) scores of rows without any known feature, from the label frequencies. None in folders of
    # earlier versions, which use the bias.
    prior: np.ndarray | None = None

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], link: Any) -> "LinearModel":
        """Create a model from arrays read from a file; ``ValueError`` if they do not form one."""
        weights, bias, prior = arrays["weights"], arrays["bias"], arrays.get("prior")
        shape = weights.shape[1:]
        if weights.ndim != 2 or bias.shape != shape or (prior is not None and prior.shape != shape):
            others = bias.shape if prior is None else (bias.shape, prior.shape)
            raise ValueError(f"weights are {weights.shape}, and bias and prior {others}")
        if link not in LINKS:
            raise ValueError(f"the link is {link!r}, not one of {', '.join(LINKS)}")
        return cls(weights, bias, link, prior)

    def scaled(self, factor: float, offsets: np.ndarray) -> "LinearModel":
        """A model whose outputs are multiplied by a factor and shifted by offsets (C)."""
        weights, bias = self.weights * np.float32(factor), self.bias * np.float32(factor)
        return replace(self, weights=weights, bias=(bias + offsets).astype(np.float32))

    def scores(self, features: Matrix | np.ndarray) -> np.ndarray:
        """(N, C) log-probabilities, logits, or regression values."""
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
        """(N) whether rows have no feature with a weight, given their scores (N, C)."""
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
    """Fit a linear model to features (N, F).

    For labels: logistic regression on sparse features is fitted by scikit-learn one label at a
    time, which is several times as fast as jointly; dense features use a single multinomial
    regression. For regression values: ridge regression.

    With ``hinge``, linear support vector machines (squared hinge loss) replace logistic regression
    on sparse features, with balanced class weights for single-label tasks. The outputs are margins,
    which must be calibrated on held-out rows to be log-probabilities or logits.

    Args:
        strength: inverse regularisation strength.
        naive_bayes: whether to scale the features by each label's log-count ratios (Wang and
            Manning 2012).
        seconds: time after which a regression on dense features stops early.

    Raises:
        InputError: scikit-learn is not installed.
        OutOfTime: the time limit has passed before all labels were fitted.
    """
    single, numbers = targets.task == "classify", targets.task == "regress"
    if not features.shape[1]:  # no word occurs in two texts: label frequencies or mean values
        prior = _prior(targets, np.ones(len(targets), dtype=bool))
        link = "softmax" if single else "numbers" if numbers else "logits"
        return LinearModel(np.zeros((0, targets.size), dtype=np.float32), prior, link, prior)
    with needing("linear models need scikit-learn: pip install 'ownbert[eval]'"):
        if numbers:
            model = _ridge(features, targets, strength)
        elif isinstance(features, np.ndarray):
            model = _dense_regression(features, targets, strength, seconds)
        else:
            model = _one_by_one(features, targets, strength, naive_bayes, hinge)
    known = np.asarray(features @ model.weights).any(1)
    return replace(model, prior=_prior(targets, np.logical_not(known)))


def _one_by_one(
    features: Matrix, targets: Targets, strength: float, naive_bayes: bool, hinge: bool
) -> LinearModel:
    """A regression or a support vector machine for each label."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    # The dual solver takes half the time, but three times as long with weak regularisation.
    dual = strength <= _DUAL_UP_TO

    def fit(features: Matrix, positive: np.ndarray, counts: Any) -> tuple[np.ndarray, float]:
        """Weights (F) and bias of a model that separates the ``positive`` rows from the others."""
        if positive.all() or not positive.any():
            return np.zeros(features.shape[1], dtype=np.float32), _log_odds(positive)
        model: Any = LogisticRegression(
            solver="liblinear", C=strength, dual=dual, tol=0.1 if dual else 0.01, random_state=0
        )
        if hinge:  # a tolerance of .001 takes 1.2 to 3.3 times as long; macro-F1 is equal to .003
            settings: Any = {"dual": True}  # scikit-learn's annotation only allows strings
            model = LinearSVC(
                C=strength, class_weight=counts, tol=0.1, max_iter=5000, random_state=0, **settings
            )
        ratio = _log_count_ratio(features, positive) if naive_bayes else None
        if ratio is not None:
            features = features.copy()
            features.data = features.data * ratio[features.indices]
        model.fit(features, positive)
        weights = model.coef_[0].astype(np.float32)
        return weights if ratio is None else weights * ratio, float(model.intercept_[0])

    weights = np.zeros((features.shape[1], targets.size), dtype=np.float32)
    bias = np.zeros(targets.size, dtype=np.float32)
    features = _int32_indices(features)
    single = targets.task == "classify"
    link = "logits" if not single else "softmax" if hinge else "one-vs-rest"
    if single and targets.size == 2:  # one binary model
        weights[:, 1], bias[1] = fit(features, targets.values == 1, "balanced")
        weights[:, 0], bias[0] = -weights[:, 1], -bias[1]
        return LinearModel(weights, bias, link)
    # Most hashed features are empty, and the time per label depends on the number of features.
    columns = np.arange(features.shape[1])
    if features.nnz and not naive_bayes:
        columns = np.unique(features.indices)
        features = _int32_indices(features[:, columns])
    for label in range(targets.size):
        check_time()
        positive = targets.values == label if single else targets.values[:, label] > 0
        # Class weights as in scikit-learn: mean rows per label divided by the rows of this label.
        count = len(positive) / (targets.size * max(1, positive.sum())) if single else 1.0
        weights[columns, label], bias[label] = fit(features, positive, {True: count})
    return LinearModel(weights, bias, link)


def centre_and_scale(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and scale (F) that standardise vectors (N, F) to a norm of about 1, as in the views.

    The scale has a lower bound: dividing by the tiny deviations of an untrained network would
    amplify rounding errors.
    """
    least = max(_LEAST_DEVIATION * float(np.sqrt(np.mean(np.square(vectors)))), 1e-6)
    return vectors.mean(0), np.maximum(vectors.std(0), least) * np.sqrt(vectors.shape[1])


def log_softmax(scores: np.ndarray) -> np.ndarray:
    """Log-softmax over C of (N, C), at least -30."""
    shifted = scores - scores.max(-1, keepdims=True)
    result = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return np.maximum(result, _SMALLEST)


def loss_and_slope(
    targets: Targets,
    scores: np.ndarray,
    each_row: np.ndarray | None = None,
    *,
    smoothing: float = 0.0,
) -> tuple[float, np.ndarray]:
    """The mean loss and its gradient with respect to the scores (N, C): cross entropy (per label
    for multilabel) with label ``smoothing``, or half the squared error for regression.
    ``each_row``: (N) weights of the rows in single-label tasks."""
    rows = np.arange(len(scores))
    if targets.task == "classify":
        counts = np.ones(len(scores)) if each_row is None else each_row
        counts = counts / counts.sum()
        logs = log_softmax(scores)
        truth = np.full(scores.shape, smoothing / max(1, targets.size - 1))
        truth[rows, targets.values] = 1 - smoothing
        losses = -np.where(truth > 0, truth * logs, 0.0).sum(1)
        return float(losses @ counts), (np.exp(logs) - truth) * counts[:, None]
    if targets.task == "multilabel":
        truth = smoothing + (1 - 2 * smoothing) * targets.values
        each = np.logaddexp(0, scores) - truth * scores
        slope = 1 / (1 + np.exp(-np.clip(scores, _SMALLEST, -_SMALLEST))) - truth
        return float(each.mean()), slope / scores.size
    errors = scores - targets.values
    return float((errors**2).mean() / 2), errors / scores.size


def _dense_regression(
    features: np.ndarray, targets: Targets, strength: float, seconds: float
) -> LinearModel:
    """A joint regression for all labels, stopped when the time is up."""
    from scipy.optimize import minimize

    link = "softmax" if targets.task == "classify" else "logits"
    shape = features.shape[1] + 1, targets.size
    # The loss summed over rows and labels, divided by the number of rows.
    scale = 1.0 if link == "softmax" else float(targets.size)
    penalty = 1 / (strength * max(1, len(targets)))
    start = np.zeros(shape)
    if link == "logits":
        start[-1] = [_log_odds(column > 0) for column in targets.values.T]

    # With torch, whose threads do not wait for each other on a busy machine.
    matrix = torch.from_numpy(np.ascontiguousarray(features, dtype=np.float32))

    def product(left: torch.Tensor, right: np.ndarray) -> np.ndarray:
        return (left @ torch.from_numpy(right.astype(np.float32))).numpy().astype(np.float64)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients = flat.reshape(shape)
        weights, bias = coefficients[:-1], coefficients[-1]
        scores = product(matrix, weights) + bias
        loss, slope = loss_and_slope(targets, scores, targets.each_row)
        across = product(matrix.T, slope)
        gradient = np.concatenate([scale * across + penalty * weights, [scale * slope.sum(0)]])
        return scale * loss + penalty / 2 * float((weights**2).sum()), gradient.ravel()

    iterations = 0

    def stop(_: np.ndarray) -> None:
        nonlocal iterations
        iterations += 1
        adapt_threads()
        spent = clock_seconds() - started
        if iterations >= _FEWEST_ITERATIONS and (spent > seconds or seconds_left() <= 0):
            raise StopIteration

    started = clock_seconds()
    optimum: Any = minimize(
        objective,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        callback=stop,
        options={"maxiter": _MOST_ITERATIONS, "gtol": 1e-4},
    )
    both = optimum.x.reshape(shape).astype(np.float32)
    bias = both[-1].copy()
    if targets.task == "classify":  # labels without rows
        bias[np.bincount(targets.values, minlength=targets.size) == 0] = _SMALLEST
    return LinearModel(np.ascontiguousarray(both[:-1]), bias, link)


def _ridge(features: Any, targets: Targets, strength: float) -> LinearModel:
    from sklearn.linear_model import Ridge

    solver = "cholesky" if isinstance(features, np.ndarray) else "sparse_cg"
    fitted = Ridge(alpha=1 / strength, solver=solver, tol=1e-3)
    fitted.fit(_int32_indices(features), targets.values, sample_weight=targets.each_row)
    weights = np.asarray(fitted.coef_, dtype=np.float32).reshape(targets.size, -1).T
    bias = np.broadcast_to(np.asarray(fitted.intercept_, dtype=np.float32), targets.size)
    return LinearModel(np.ascontiguousarray(weights), bias.copy(), "numbers")


def _prior(targets: Targets, unknown: np.ndarray) -> np.ndarray:
    """(C) scores of rows without features: label frequencies or mean values among the rows marked
    in ``unknown`` (N), shrunk towards those of all rows."""
    single, numbers = targets.task == "classify", targets.task == "regress"
    values = np.eye(targets.size)[targets.values] if single else np.asarray(targets.values, float)
    # Add half a row per label, so that none is impossible.
    more = 0.0 if numbers else 0.5
    rows = len(values) + more * (targets.size if single else 2)
    mean = (values.sum(0) + more) / rows
    means = values[unknown].sum(0) + _PRIOR_ROWS * mean
    means /= unknown.sum() + _PRIOR_ROWS
    if numbers:
        return means.astype(np.float32)
    return (np.log(means) - (0.0 if single else np.log1p(-means))).astype(np.float32)


def _log_odds(positive: np.ndarray) -> float:
    return float(np.log((positive.sum() + 0.5) / ((~positive).sum() + 0.5)))


def _log_count_ratio(features: Matrix, positive: np.ndarray) -> np.ndarray:
    """(F) log ratio of a feature's frequency in rows with the label to that in rows without."""
    present = features.copy()
    present.data = np.sign(present.data)  # entries of dropped features are 0
    p = 1 + np.asarray(present[np.flatnonzero(positive)].sum(0)).ravel()
    q = 1 + np.asarray(present[np.flatnonzero(~positive)].sum(0)).ravel()
    return np.log((p / p.sum()) / (q / q.sum())).astype(np.float32)


def _int32_indices(features: Any) -> Any:
    """Convert indices to int32, because liblinear does not accept int64."""
    if isinstance(features, np.ndarray):
        return features
    features = features.tocsr()
    features.indices = features.indices.astype(np.int32)
    features.indptr = features.indptr.astype(np.int32)
    return features


@dataclass(frozen=True)
class LinearView:
    """Computes scores of texts."""

    view: View
    model: LinearModel
    kind: str

    def scores(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """(N, C) log-probabilities, logits, or values of N texts or pairs of texts."""
        return self.model.scores(self.view.features(Texts(texts, self.kind)))

    def save(self, folder: Path, *, beside: bool = False) -> None:
        """Write the model into a folder. ``beside``: skip the view, which may be large; it is
        loaded from ``folder/../../NAME``, where NAME is the view's name."""
        arrays = {} if beside else {f"view.{k}": v for k, v in self.view.arrays().items()}
        settings = {"view": self.view.name, "kind": self.kind, "beside": beside}
        save_linear(folder, LINEAR, self.model, arrays, settings)

    @classmethod
    def load(cls, folder: Path) -> "LinearView":
        """Read a model written by ``save``; ``InputError`` if a file is missing, damaged, or of
        another version."""
        with reading_linear(folder, LINEAR) as (model, arrays, settings):
            name = settings.get("view")
            if name not in list(VIEWS):
                raise InputError(
                    "{folder}.json was written by another version of ownbert", folder / LINEAR
                )
            if settings.get("beside"):
                view = cls.load(folder.resolve().parents[1] / name).view
            else:
                own = {k: v for k, v in arrays.items() if k.startswith("view.")}
                view = VIEWS[name].from_arrays({k.removeprefix("view."): own[k] for k in own})
            return cls(view, model, str(settings["kind"]))


def save_linear(
    folder: Path,
    name: str,
    model: LinearModel,
    arrays: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
) -> None:
    """Write a linear model, and the arrays and settings of its features, into files ``name`` of a
    folder."""
    arrays = {**arrays, "weights": model.weights, "bias": model.bias}
    if model.prior is not None:
        arrays["prior"] = model.prior
    make_folder(folder)
    with atomic_path(folder / f"{name}.safetensors") as path:
        # Errors of safetensors.save_file do not distinguish a full disk from other problems.
        path.write_bytes(to_bytes({k: np.ascontiguousarray(v) for k, v in arrays.items()}))
    write_json(folder / f"{name}.json", {"format": _FORMAT, **settings, "link": model.link})


@contextmanager
def reading_linear(
    folder: Path, name: str
) -> Iterator[tuple[LinearModel, Mapping[str, np.ndarray], Mapping[str, Any]]]:
    """Yield the model, arrays and settings written by ``save_linear``.

    Raises:
        InputError: a file is missing, damaged, or of another version; or the block fails.
    """
    path = folder / f"{name}.safetensors"
    settings = read_json(folder / f"{name}.json")
    if settings.get("format") != _FORMAT:
        raise InputError("{folder}.json was written by another version of ownbert", folder / name)
    try:
        arrays = load_file(path)
        if not all(np.isfinite(v).all() for v in arrays.values()):
            raise ValueError("some numbers are not finite")
        yield LinearModel.from_arrays(arrays, settings["link"]), arrays, settings
    except InputError:
        raise
    except (OSError, LookupError, ValueError, TypeError, ArithmeticError, SafetensorError) as error:
        raise InputError("{path} cannot be read: {error}", path, error) from None
