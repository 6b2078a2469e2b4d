"""Planted label errors are found; correct and rare labels are left alone."""

import numpy as np
import pytest

from ownbert.exceptions import InputError
from ownbert.tasks.metrics import find_label_errors


def planted(rows: int = 1200, classes: int = 6, wrong: int = 60, seed: int = 0):
    """Probabilities (N, C) of a good model, labels (N), and which of them were exchanged."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, rows)
    scores = rng.normal(size=(rows, classes))
    scores[np.arange(rows), truth] += 6.0
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    exchanged = rng.choice(rows, wrong, replace=False)
    labels = truth.copy()
    labels[exchanged] = (truth[exchanged] + rng.integers(1, classes, wrong)) % classes
    return probabilities, labels, truth, set(exchanged.tolist())


def test_planted_errors_are_found_first():
    probabilities, labels, truth, exchanged = planted()
    found = find_label_errors(probabilities, labels)
    rows = [one.row for one in found]
    assert len(exchanged & set(rows)) > 0.85 * len(exchanged)
    first = rows[: len(exchanged) // 2]
    assert len(exchanged & set(first)) > 0.9 * len(first)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    right = [one.suggested == truth[one.row] for one in found if one.row in exchanged]
    assert np.mean(right) > 0.95
    assert all(one.given == labels[one.row] != one.suggested for one in found)


def test_correct_labels_and_rare_classes():
    probabilities, _, truth, _ = planted(wrong=0)
    assert len(find_label_errors(probabilities, truth)) < 0.01 * len(truth)
    # A class with a single row that the model does not know must not attract the others.
    rare = np.concatenate([probabilities, np.full((len(truth), 1), 1e-3)], axis=1)
    labels = truth.copy()
    labels[0] = 6
    assert not [one for one in find_label_errors(rare, labels) if one.suggested == 6]
    # A class without rows does no harm.
    assert find_label_errors(rare, truth) == find_label_errors(probabilities, truth)


def test_no_rows_and_wrong_shapes():
    assert find_label_errors(np.zeros((0, 3)), np.zeros(0, int)) == []
    with pytest.raises(InputError, match="labels \\(rows\\)"):
        find_label_errors(np.zeros((2, 3)), np.zeros(3, int))
    with pytest.raises(InputError, match="indices of the 3 classes"):
        find_label_errors(np.zeros((1, 3)), np.asarray([3]))
