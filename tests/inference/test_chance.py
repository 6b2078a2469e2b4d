"""Models that are no better than guessing say so."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert.inference.evaluate import like_guessing, metrics_by_chance
from ownbert.tasks.related_rows import permutations


def rows(kind: str, count: int) -> list[dict[str, object]]:
    """Random words with random targets."""
    rng = random.Random(f"{kind} {count}")
    targets = {
        "label": lambda: rng.choice(["no", "no", "yes"]),
        "labels": lambda: [each for each in "abcd" if rng.random() < 0.4],
        "score": lambda: rng.gauss(3, 1),
    }
    return [
        {"text": " ".join(f"w{rng.randint(0, 60)}" for _ in range(9)), kind: targets[kind]()}
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["label", "labels", "score"])
def test_random_targets(kind: str, tmp_path: Path):
    ownbert.fit(rows(kind, 300), minutes=0.05, output=tmp_path / "m", quiet=True)
    report = json.loads((tmp_path / "m/report.json").read_text(encoding="utf-8"))
    assert "better than guessing (" in report["headline"][0]
    assert "better than guessing." in report["advice"][0]["sentence"]
    assert report["metric"] in report["chance"]
    (warning,) = [
        each
        for each in ownbert.evaluate(tmp_path / "m", rows(kind, 250)).warnings
        if "guessing" in each
    ]
    assert " by chance)" in warning


def test_a_model_that_has_learnt_something_has_no_warning():
    truth = np.arange(200) % 4
    answers = np.where(np.arange(200) % 3 == 0, truth, 0)

    def metrics(order: np.ndarray) -> dict[str, float]:
        return {"accuracy": float((truth[order] == answers).mean()), "loss": 1.0}

    chance = metrics_by_chance(metrics, np.arange(200))
    values = metrics(np.arange(200))
    assert like_guessing("accuracy", values, chance) is None
    assert like_guessing("loss", values, chance) is None  # accuracy is clearly better
    assert like_guessing("loss", {"loss": 1.0}, chance) == "no better than guessing"
    assert like_guessing("f1", values, chance) is None  # unknown


def test_rows_of_a_cluster_stay_together():
    clusters = np.asarray([0, 1, 0, 2, 1, 2])
    for order in permutations(clusters, 20):
        assert sorted(order) == [*range(6)]
        own = clusters[order]
        assert own[0] == own[2]
        assert own[1] == own[4]
        assert own[3] == own[5]


def test_labels_in_the_same_order_in_each_cluster():
    """Texts before and after, by patient: a perfect model is better than chance."""
    targets = np.arange(200) % 2

    def metrics(order: np.ndarray) -> dict[str, float]:
        return {"accuracy": float(np.mean(targets[order] == targets))}

    chance = metrics_by_chance(metrics, np.arange(200) // 2)
    assert 0.3 < chance["accuracy"].mean < 0.7
    assert like_guessing("accuracy", {"accuracy": 1.0}, chance) is None
