"""The hardest and the most typical rows."""

import numpy as np
import pytest

from ownbert.fitting.report.contents import hardest_rows, largest_errors, typical_rows

PROBABILITIES = np.asarray([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
TARGETS = np.asarray([0, 0, 1, 1])


def test_the_hardest():
    found = hardest_rows(PROBABILITIES, TARGETS, PROBABILITIES.argmax(1))[:2]
    assert [(one.row, one.true, one.predicted) for one in found] == [(1, 0, 1), (2, 1, 0)]
    assert [one.score for one in found] == pytest.approx([0.2, 0.4])


def test_the_most_typical_of_each_class():
    assert [one.row for one in typical_rows(PROBABILITIES, TARGETS, PROBABILITIES.argmax(1))] == [
        0,
        3,
    ]
    assert typical_rows(np.zeros((0, 2)), np.zeros(0, int), np.zeros(0, int)) == ()


def test_the_largest_errors():
    one, _ = largest_errors(np.asarray([1.0, 5.0]), np.asarray([1.5, 2.0]))
    assert (one.row, one.true, one.predicted, one.score) == (1, 2, 5, 3)
