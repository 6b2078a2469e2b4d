"""Linear models that learn from texts without labels."""

import random
from pathlib import Path

import numpy as np
import pytest

from ownbert.fitting.linear_candidates import fit_view, self_train
from ownbert.fitting.rows.labelled_rows import LabelledRows, read_labelled
from ownbert.tasks.task import task_class
from ownbert.time_limit import OutOfTime, time_limit
from ownbert.views.blending import loss
from ownbert.views.linear_models import LinearView
from ownbert.views.view_features import Texts

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
