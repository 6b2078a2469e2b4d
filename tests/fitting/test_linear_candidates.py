"""The linear candidates of ``fit``: hinge loss, limits of time, rare words, self-training."""

import csv
import random
import time
from pathlib import Path

import numpy as np
import pytest

from ownbert.fitting import linear_candidates
from ownbert.fitting.linear_candidates import FittedOnFolds, fit_on_folds, fit_view, self_train
from ownbert.fitting.rows.labelled_rows import LabelledRows, read_labelled
from ownbert.tasks.task import task_class
from ownbert.time_limit import OutOfTime, time_limit
from ownbert.views.blending import loss
from ownbert.views.linear_models import STRENGTHS, LinearView, Targets, fit_linear
from ownbert.views.view_features import VIEWS, Texts
from support.fit_files import labelled

SKEWED = (90, 30, 10, 6)


def rows_of(folder: Path, counts: tuple[int, ...], task: str = "classify") -> LabelledRows:
    """Rows of a few labels with words of their own; for multilabel every fifth has another too."""
    rng, lines = random.Random(0), []
    for label, count in enumerate(counts):
        for i in range(count):
            words = [f"w{rng.randint(0, 60)}" for _ in range(12)]
            words += [f"l{label}x{rng.randint(0, 20)}" for _ in range(3)]
            names = f"l{label}"
            if task == "multilabel" and i % 5 == 0:
                other = (label + 1) % len(counts)
                words += [f"l{other}x{rng.randint(0, 20)}" for _ in range(3)]
                names += f";l{other}"
            lines.append(f"{names},{' '.join(words)}")
    path = folder / "rows.csv"
    path.write_text("label,text\n" + "\n".join(lines) + "\n")
    return read_labelled(task_class(task)(), path, None, seed=0)


def tfidf(rows: LabelledRows) -> object:
    texts = Texts(rows.texts(), "words")
    return VIEWS["tfidf"].fit(texts, Texts([], "words")).features(texts)


def both(rows: LabelledRows, monkeypatch: pytest.MonkeyPatch) -> tuple[FittedOnFolds, ...]:
    """Fitted on folds without models of a squared hinge loss, and with them."""
    found = fit_on_folds(tfidf(rows), rows)
    monkeypatch.setattr(linear_candidates, "_hinge_helps", lambda rows: False)
    return fit_on_folds(tfidf(rows), rows), found


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_where_labels_are_rare_the_held_out_loss_is_less(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = rows_of(tmp_path, SKEWED, task)
    without, found = both(rows, monkeypatch)
    assert found.model.link == ("softmax" if task == "classify" else "logits")
    held = rows.targets[rows.held_out]
    # Without a temperature: the scores have their scale already.
    assert loss(held, found.scores) < 0.9 * loss(held, without.scores)


def test_a_rare_label_is_found_more_often(tmp_path: Path):
    rows = rows_of(tmp_path, SKEWED)
    features, truth = tfidf(rows), rows.targets[rows.held_out].values
    recalls = []
    for hinge in (False, True):
        found = [
            fit_linear(features[learn], rows.targets[learn], 1.0, hinge=hinge)  # pyright: ignore
            .scores(features[held])  # pyright: ignore
            .argmax(1)
            for learn, held in rows.folds
        ]
        recalls.append((np.concatenate(found)[truth > 1] == truth[truth > 1]).mean())
    assert recalls[1] > recalls[0] + 0.1


def test_where_labels_are_equally_frequent_nothing_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    without, found = both(rows_of(tmp_path, (30, 30, 25)), monkeypatch)
    np.testing.assert_array_equal(found.scores, without.scores)


def test_a_saved_model_has_the_scale_of_the_held_out_rows(tmp_path: Path):
    rows = rows_of(tmp_path, SKEWED)
    texts = Texts(rows.texts(), "words")
    first = tmp_path / "first-fold" / "tfidf"
    unlabelled = Texts(rows.texts() * 2, "words")  # no words are rare
    given = (texts, texts, unlabelled, tmp_path / "tfidf")
    scores, _ = fit_view("tfidf", rows, *given, first=first)
    held = rows.folds[0][1]
    own = LinearView.load(first).scores([texts.rows[i] for i in held])
    np.testing.assert_allclose(own, scores[: len(held)], atol=1e-5)
    final = LinearView.load(tmp_path / "tfidf").scores(texts.rows)
    np.testing.assert_allclose(np.exp(final).sum(1), 1, atol=1e-6)
    assert (final.argmax(1) == rows.targets.values).all()
    assert loss(rows.targets, final) < loss(rows.targets[rows.held_out], scores)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0, 1], [0, 1, 2, 0, 1]])
def test_two_labels_and_one_without_rows(labels: list[int]):
    values = np.asarray(labels * 4)
    texts = Texts([(f"own{label} word word{label}",) for label in values], "words")
    features = VIEWS["tfidf"].fit(texts, texts).features(texts)
    size = 2 if max(labels) == 1 else 4
    model = fit_linear(features, Targets("classify", values, size), 10.0, hinge=True)
    assert (model.scores(features).argmax(1) == values).all()


def test_the_time_limit_holds(tmp_path: Path):
    rows = rows_of(tmp_path, SKEWED)
    features = tfidf(rows)
    with pytest.raises(OutOfTime), time_limit(0):
        fit_linear(features, rows.targets, 1.0, hinge=True)  # pyright: ignore
    alone = fit_on_folds(features, rows, seconds=0)
    assert alone.model.link == "one-vs-rest"


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


def test_words_that_are_rare_without_the_held_out_rows_do_not_count(tmp_path: Path):
    rng, path = random.Random(0), tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = [(" ".join(str(int(rng.paretovariate(0.5))) for _ in range(8)), i % 2)
                 for i in range(100)]  # fmt: skip
        csv.writer(file).writerows([("text", "label"), *lines])
    rows = labelled(path)
    none, every = Texts([], "ids"), Texts(rows.texts(), "ids")
    view = VIEWS["nb"].fit(every, none)
    assert view.elsewhere is not None
    features = view.features(every)
    found = fit_on_folds(features, rows, elsewhere=view.elsewhere, seconds=0).scores
    expected = []
    for learn, held in rows.folds:
        own = VIEWS["nb"].fit(Texts(rows.texts(learn), "ids"), none)
        known, new = (own.features(Texts(rows.texts(part), "ids")) for part in (learn, held))
        model = fit_linear(known, rows.targets[learn], STRENGTHS[0])
        expected.append(model.scores(new))
    np.testing.assert_allclose(found, np.concatenate(expected), atol=0.02)
    shared = fit_on_folds(features, rows, seconds=0).scores
    assert np.abs(shared - found).max() > 0.1


NAMES = ("tfidf", "lsa")
WEIGHTS = np.array([0.5, 0.5])


def drawn(rng: random.Random, topic: int) -> str:
    """Ten words, most of them of the topic's eighty: two texts hardly have one in common."""
    return " ".join(
        f"t{topic}w{rng.randrange(80)}" if rng.random() < 0.6 else f"w{rng.randrange(50)}"
        for _ in range(10)
    )


@pytest.fixture(scope="module", params=["folds", "dev"])
def few(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[LabelledRows, Texts, Texts, Path, list[np.ndarray]]:
    """Four labelled texts of each of four topics, 600 others, and linear models of the first."""
    rng, folder = random.Random(3), tmp_path_factory.mktemp("few")
    for name, count in (("train", 16), ("dev", 120)):
        lines = [f"{i % 4},{drawn(rng, i % 4)}" for i in range(count)]
        (folder / f"{name}.csv").write_text("label,text\n" + "\n".join(lines) + "\n")
    dev = folder / "dev.csv" if request.param == "dev" else None
    rows = read_labelled(task_class("classify")(), folder / "train.csv", dev, seed=0)
    labelled, learnt = Texts(rows.texts(), "words"), Texts(rows.texts(rows.learnt), "words")
    others = Texts([(drawn(rng, i % 4),) for i in range(600)], "words")
    scores = [fit_view(name, rows, labelled, learnt, others, folder / name)[0] for name in NAMES]
    return rows, labelled, others, folder, scores


Few = tuple[LabelledRows, Texts, Texts, Path, list[np.ndarray]]


def test_models_that_taught_themselves_are_better_and_are_saved(few: Few):
    rows, labelled, others, folder, before = few
    new = folder / "self-trained"
    scores, _ = self_train(NAMES, WEIGHTS, rows, labelled, others, new)
    truth = rows.targets[rows.held_out]
    assert scores.shape == (len(truth), 4)
    assert (scores.argmax(1) == truth.values).mean() > 0.8
    assert loss(truth, scores) < min(loss(truth, own) for own in before)
    models, first = ([LinearView.load(f / n) for n in NAMES] for f in (new, folder))
    rng = random.Random(9)
    texts = Texts([(drawn(rng, i % 4),) for i in range(200)], "words")
    truths = np.asarray([rows.task.labels.index(str(i % 4)) for i in range(200)])
    right = [
        (np.mean([model.scores(texts.rows) for model in own], axis=0).argmax(1) == truths).mean()
        for own in (models, first)
    ]
    assert right[0] > right[1]
    if not rows.refit:  # the saved models are those that were measured
        held = np.mean([model.scores(rows.texts(rows.held_out)) for model in models], axis=0)
        np.testing.assert_allclose(held, scores, rtol=1e-4, atol=1e-4)
    # They hold no second copy of their views.
    sizes = [(f / "lsa" / "linear.safetensors").stat().st_size for f in (new, folder)]
    assert sizes[0] < sizes[1] / 2


def test_self_training_that_would_take_too_long_is_given_up(few: Few):
    rows, labelled, others, folder, _ = few
    with pytest.raises(OutOfTime), time_limit(0):
        self_train(NAMES, WEIGHTS, rows, labelled, others, folder / "slow")
    assert not (folder / "slow").exists()
