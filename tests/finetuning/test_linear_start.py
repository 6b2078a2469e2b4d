"""A head that starts as a linear model on the frozen network."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert import OwnBertClassifier, OwnBertRegressor, evaluate, finetune
from ownbert.exceptions import InputError
from ownbert.finetuning import finetuning_run as run

TOPICS = ("red", "green", "blue")


def rows(task: str, words: int) -> tuple[list[str], list[Any]]:
    rng = random.Random(words)
    topics = [TOPICS[i % 3] for i in range(30)]
    texts = [
        " ".join(
            rng.choice((f"{t}{rng.randint(0, 11)}", f"w{rng.randint(0, 30)}")) for _ in range(words)
        )
        for t in topics
    ]
    if task == "multilabel":
        return texts, [[t, "all"] for t in topics]
    if task == "regress":
        return texts, [10.0 + 100 * TOPICS.index(t) for t in topics]
    return texts, topics


def evaluations(folder: Path) -> list[dict[str, Any]]:
    logged = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row for row in logged if row.get("evaluation")]


@pytest.mark.parametrize("words", [20, 100])  # longer than the model's 48 tokens: in windows
@pytest.mark.parametrize(
    ("task", "metric"), [("classify", "macro_f1"), ("multilabel", "micro_f1"), ("regress", "r2")]
)
def test_the_first_evaluation_is_that_of_the_linear_model(
    task: str, metric: str, words: int, pretrained: Path, tmp_path: Path
):
    train = rows(task, words)
    given: dict[str, Any] = {"model": pretrained, "train": train, "dev": train, "quiet": True}
    given |= {"max_steps": 1, "learning_rate": 1e-9, "baseline": False, "output": tmp_path / "out"}
    finetune(task, **given)
    first, last = evaluations(tmp_path / "out")
    assert first["step"] == 0
    assert first[metric] > 0.9
    assert last[metric] == pytest.approx(first[metric], abs=1e-3)
    finetune(task, head_init="random", overwrite=True, **given)
    (only,) = evaluations(tmp_path / "out")
    assert only["loss"] > 1.5 * first["loss"]


def test_the_network_is_not_below_its_start(pretrained: Path, tmp_path: Path):
    train = rows("classify", 12)
    out = tmp_path / "out"
    given: dict[str, Any] = {"model": pretrained, "train": train, "dev": train, "quiet": True}
    finetune("classify", output=out, learning_rate=1.0, epochs=1, **given)  # ruins it
    first, *_, last = evaluations(out)
    assert last["macro_f1"] < first["macro_f1"]
    assert evaluate(out, train).values["macro_f1"] == pytest.approx(first["macro_f1"], abs=0.02)


def test_weighted_rows_start_at_a_weighted_linear_model(pretrained: Path):
    given: dict[str, Any] = {"model": pretrained, "epochs": 1, "learning_rate": 1e-9}
    texts, topics = rows("classify", 20)
    weights = np.resize([0.5, 1.5, 0.0], len(topics))  # "blue" counts nothing
    classifier = OwnBertClassifier(**given).fit(texts, topics, weights)
    assert classifier.score(texts, topics, weights) > 0.9
    assert "blue" not in classifier.predict(texts)
    texts, numbers = rows("regress", 20)
    wrong = [*numbers[:15], *(1000.0 - number for number in numbers[15:])]
    regressor = OwnBertRegressor(**given).fit(texts, wrong, np.repeat([1.0, 0.0], 15))
    assert regressor.score(texts[:15], numbers[:15]) > 0.9


def test_another_start_is_refused(pretrained: Path, tmp_path: Path):
    with pytest.raises(InputError, match="head_init"):
        finetune(model=pretrained, train=rows("classify", 9), output=tmp_path, head_init="zero")


def test_documents_that_would_take_too_long_have_a_random_head_and_its_rate(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run, "MOST_TOKENS", 100)
    train = rows("classify", 12)
    given: dict[str, Any] = {"model": pretrained, "train": train, "dev": train, "quiet": True}
    finetune("classify", output=tmp_path / "out", epochs=1, **given)
    assert evaluations(tmp_path / "out")[0]["step"] > 0
    assert "learning_rate: 0.001" in (tmp_path / "out" / "recipe.yaml").read_text()
