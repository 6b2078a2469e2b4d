"""Drift of samples of one kind, of two, and of none."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ownbert.fitting.report.drift import compare_texts

WORDS = np.asarray([f"w{i}" for i in range(400)])


def sample(seed: int, texts: int, shift: float = 0.0, length: int = 25) -> list[list[str]]:
    """Texts of words with Zipf's frequencies; ``shift`` of the tokens are of fifty other words."""
    rng = np.random.default_rng(seed)
    rates = 1 / np.arange(1, 351)
    own = np.concatenate([(1 - shift) * rates / rates.sum(), np.full(50, shift / 50)])
    return [WORDS[rng.choice(400, rng.poisson(length) + 1, p=own)].tolist() for _ in range(texts)]


def test_samples_of_one_kind_cannot_be_told_apart():
    drift = compare_texts(sample(1, 300), sample(2, 900))
    assert drift.separability == pytest.approx(0.5, abs=0.07)
    assert "are similar" in drift.summary
    assert max(abs(one.score) for one in drift.tokens) < 4.5
    assert drift.lengths == pytest.approx(drift.unlabelled_lengths, abs=3)


def test_texts_of_another_kind_are_told_apart():
    drift = compare_texts(sample(1, 300, shift=0.15), sample(2, 900, length=60))
    assert drift.separability is not None
    assert drift.separability > 0.9
    assert "differ clearly" in drift.summary
    assert drift.unknown == pytest.approx(0.15, abs=0.02)
    assert drift.unlabelled_unknown < 0.05
    own = [one for one in drift.tokens if one.score > 0]
    assert all(int(one.token[1:]) >= 350 and one.unlabelled == 0 for one in own)
    assert len(own) == 12
    assert drift.lengths[2] < drift.unlabelled_lengths[2]


def test_the_figure_is_the_area_under_the_curve():
    # One word decides, and half of the labelled texts have it: two scores for all texts.
    labelled, unlabelled = [["a"] * 5] * 50 + [["b"] * 5] * 50, [["b"] * 5] * 100
    truth, scores = [1] * 100 + [0] * 100, [1] * 50 + [0] * 150
    drift = compare_texts(labelled, unlabelled)
    assert drift.separability == pytest.approx(roc_auc_score(truth, scores), abs=1e-6)


def test_a_token_of_one_text_is_not_that_of_a_side():
    drift = compare_texts([*sample(1, 100), ["mine"] * 500], sample(2, 100))
    assert "mine" not in {one.token for one in drift.tokens}


@pytest.mark.parametrize("labelled", [[], [[]], [["a", "b"]]])
def test_too_few_texts(labelled: list[list[str]]):
    drift = compare_texts(labelled, [["a"]] * 30)
    assert drift.separability is None
    assert "cannot be measured" in drift.summary
