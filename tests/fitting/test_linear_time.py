"""Linear models that would take too long."""

import random
import time

import numpy as np
import pytest

from ownbert.fitting.candidates import fit_on_folds
from ownbert.fitting.labelled_rows import LabelledRows, read_labelled
from ownbert.tasks.task import task_class
from ownbert.views.features import VIEWS, Texts
from ownbert.views.linear import TooSlow


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
def test_a_model_that_would_take_too_long_is_given_up_early(many: tuple[LabelledRows, object]):
    began = time.process_time()
    fit_on_folds(many[1], many[0], seconds=1e9)
    whole = time.process_time() - began
    began = time.process_time()
    with pytest.raises(TooSlow):
        fit_on_folds(many[1], many[0], seconds=1e-3)
    assert time.process_time() - began < whole / 5


@pytest.mark.slow
def test_the_only_model_is_fitted_anyway_with_one_strength(many: tuple[LabelledRows, object]):
    rows, features = many
    model, scores = fit_on_folds(features, rows, seconds=1e-3, required=True)
    assert scores.shape == (600, 60)
    assert (scores.argmax(1) == rows.targets[rows.held_out].values).mean() > 0.8
    alone, _ = fit_on_folds(features, rows, seconds=0, required=True)
    np.testing.assert_array_equal(model.weights, alone.weights)
