"""Linear models that would take too long."""

import random
import time

import numpy as np
import pytest

from ownbert.fitting.linear_candidates import fit_on_folds
from ownbert.fitting.rows.labelled_rows import LabelledRows, read_labelled
from ownbert.tasks.task import task_class
from ownbert.time_limit import OutOfTime, time_limit
from ownbert.views.linear_models import Targets, fit_linear
from ownbert.views.view_features import VIEWS, Texts


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[LabelledRows, object]:
    """600 rows of 60 labels, and their TF-IDF."""
    rng, path = random.Random(0), tmp_path_factory.mktemp("many") / "train.csv"
    lines = [
        f"label{i % 60}," + " ".join(f"w{rng.randint(0, 300)}" for _ in range(30)) + f" own{i % 60}"
        for i in range(600)
    ]
    path.write_text("label,text\n" + "\n".join(lines) + "\n")
    rows = read_labelled(task_class("classify")(), path, None, seed=0)
    texts = Texts(rows.texts(), "words")
    return rows, VIEWS["tfidf"].fit(texts, Texts([], "words")).features(texts)


@pytest.mark.slow
def test_a_model_that_takes_too_long_is_given_up(many: tuple[LabelledRows, object]):
    began = time.process_time()
    fit_on_folds(many[1], many[0])
    whole = time.process_time() - began
    began = time.process_time()
    with pytest.raises(OutOfTime), time_limit(1e-3):
        fit_on_folds(many[1], many[0])
    assert time.process_time() - began < whole / 5


@pytest.mark.slow
def test_without_a_limit_one_strength_is_fitted_anyway(many: tuple[LabelledRows, object]):
    rows, features = many
    found = fit_on_folds(features, rows, seconds=1e-3)
    assert found.scores.shape == (600, 60)
    assert (found.scores.argmax(1) == rows.targets[rows.held_out].values).mean() > 0.8
    alone = fit_on_folds(features, rows, seconds=0)
    np.testing.assert_array_equal(found.model.weights, alone.model.weights)
    _, held = rows.folds[0]
    first = found.first.scores(features[held])
    np.testing.assert_array_equal(first, found.scores[: len(held)])


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_a_dense_regression_finds_the_optimum_and_stops_when_told(task: str):
    """Compared with scikit-learn, which takes its labels one by one."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    features = rng.standard_normal((300, 8)).astype(np.float32)
    scores = features @ rng.standard_normal((8, 3)) + rng.standard_normal((300, 3))
    if task == "classify":
        targets = Targets(task, scores.argmax(1), 3)
        known = LogisticRegression(C=10.0, max_iter=1000, tol=1e-8).fit(features, targets.values)
        weights, link = known.coef_.T, "softmax"
    else:
        targets = Targets(task, (scores > 0).astype(np.float32), 3)
        weights = np.stack(
            [
                LogisticRegression(C=10.0, max_iter=1000, tol=1e-8).fit(features, own).coef_[0]
                for own in targets.values.T
            ],
            axis=1,
        )
        link = "logits"
    model = fit_linear(features, targets, 10.0)
    assert model.link == link
    apart = model.weights - model.weights.mean(1, keepdims=True) * (task == "classify")
    np.testing.assert_allclose(apart, weights, atol=0.02)
    early = fit_linear(features, targets, 10.0, seconds=0)
    assert np.isfinite(early.weights).all()
    assert not np.allclose(early.weights, 0)
