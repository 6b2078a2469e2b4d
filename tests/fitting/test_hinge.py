"""Linear models with a squared hinge loss, and when fit takes them."""

import random
from pathlib import Path

import numpy as np
import pytest

from ownbert.fitting import linear_candidates
from ownbert.fitting.linear_candidates import FittedOnFolds, fit_on_folds, fit_view
from ownbert.fitting.rows.labelled_rows import LabelledRows, read_labelled
from ownbert.tasks.task import task_class
from ownbert.time_limit import OutOfTime, time_limit
from ownbert.views.blending import loss
from ownbert.views.linear_models import LinearView, Targets, fit_linear
from ownbert.views.view_features import VIEWS, Texts

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
