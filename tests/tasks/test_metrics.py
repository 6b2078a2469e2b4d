"""Measures against scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    precision_recall_fscore_support,
)

from ownbert.tasks.metrics import score_labels

LABELS = ("a", "b", "c", "d")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_scores_equal_scikit_learns(pairs):
    truth, predicted = (list(column) for column in zip(*pairs, strict=True))
    scores = score_labels(truth, predicted, LABELS)
    assert scores.accuracy == pytest.approx(accuracy_score(truth, predicted))
    macro = f1_score(truth, predicted, average="macro", zero_division=0)
    assert scores.macro_f1 == pytest.approx(macro)
    each = precision_recall_fscore_support(truth, predicted, labels=range(4), zero_division=0)
    for row, p, r, f, n in zip(scores.labels, *each, strict=True):
        assert (row.precision, row.recall, row.f1, row.support) == pytest.approx((p, r, f, n))
    assert np.array_equal(scores.confusion, confusion_matrix(truth, predicted, labels=range(4)))
