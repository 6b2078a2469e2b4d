"""Scores of tokens that are built into a network."""

import random
from pathlib import Path

import numpy as np
import pytest

from ownbert.fitting import joined_network
from ownbert.fitting.comparison import ComparedModel, Comparison
from ownbert.fitting.joined_network import _fit_scores, _read, start_of
from ownbert.tables.memory import table_of
from ownbert.tables.tables import Source
from ownbert.views.blending import loss
from support.fit_files import labelled

TOPICS = ("red", "green", "blue")


def test_the_penalty_of_scores_fitted_to_labels_is_the_best_on_held_out_rows(
    pretrained: Path, monkeypatch: pytest.MonkeyPatch
):
    """With one for all texts, the network for 409 long documents had a micro-F1 of .939, and the
    linear models that it contains one of .98."""
    draw = random.Random(0)

    def table(count: int) -> Source:
        """Texts of common words, one of 12 words of a topic among them."""
        given = []
        for i in range(count):
            words = [f"w{draw.randint(0, 30)}" for _ in range(40)]
            words[draw.randint(0, 39)] = f"{TOPICS[i % 3]}{draw.randint(0, 11)}"
            given.append({"text": " ".join(words), "label": TOPICS[i % 3]})
        return table_of(given)

    train = table(150)
    rows = labelled(train, table(120))
    scores = np.zeros((len(rows.held_out), 3))
    compared = Comparison(rows, [ComparedModel("tfidf", "", "linear", (), 0.0, scores=scores)])
    start = start_of(compared, pretrained, device="cpu", seed=0)
    learnt, (texts, held_out) = rows.folds[0][0], rows.first_fold
    examples, targets = _read(start.run, texts), rows.targets[rows.held_out]
    counts_of = _read(start.run, held_out)

    def fit(like: joined_network.TokenScores | None = None) -> joined_network.TokenScores:
        given = (examples, np.zeros((len(texts), 3)), learnt, like)
        return _fit_scores(compared, start, *given, most_pairs=0, alone=None)

    def loss_of(fitted: joined_network.TokenScores) -> float:
        return loss(targets, fitted.added(counts_of) + fitted.bias)

    best = fit()
    assert best.strength > 0.3
    assert fit(like=best).strength == best.strength
    monkeypatch.setattr(joined_network, "_FIRST", 0)
    for strength in (0.3, 0.03):
        monkeypatch.setattr(joined_network, "_STRENGTHS", (strength,))
        assert loss_of(fit()) > loss_of(best)
