"""A fine-tuned network is compared with a linear model on the same rows."""

import csv
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ownbert
from ownbert import OwnBertClassifier, OwnBertRegressor, evaluate, finetune
from ownbert.exceptions import InputError
from ownbert.finetuning import finetuning_run as run
from ownbert.finetuning import linear_baseline
from ownbert.finetuning.linear_baseline import LinearBaseline, can_be_compared, score_baseline
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_class

LINE = "TF-IDF with a linear model: "


def rows_of(task: str, count: int, seed: int) -> list[Row]:
    rng, rows = random.Random(seed), []
    for i in range(count):
        labels = tuple(rng.sample("abcd", rng.choice((1, 2))))
        words = [f"{label}{rng.randint(0, 5)}" for label in labels for _ in range(6)]
        words += [f"w{rng.randint(0, 40)}" for _ in range(8)]
        number = (float(20 * ("a" in labels) + 10 * ("b" in labels)),)
        target = {"classify": labels[0], "multilabel": labels, "regress": number}[task]
        rows.append(Row(i, (" ".join(words),), target))
    return rows


def learnt_task(name: str, rows: list[Row]) -> Task:
    task = task_class(name)(TaskSettings(name=name), ColumnNames(), ())
    if name == "regress":
        task.labels = ("number",)
    task.learn(rows, "")
    return task


@pytest.mark.parametrize(
    ("name", "metric", "least"),
    [("classify", "macro_f1", 0.6), ("multilabel", "micro_f1", 0.9), ("regress", "r2", 0.7)],
)
def test_the_linear_model_is_scored_by_the_metric_of_the_task(name: str, metric: str, least: float):
    train, dev = rows_of(name, 300, 0), rows_of(name, 100, 1)
    task = learnt_task(name, train)
    before = dict(vars(task))
    found = score_baseline(task, train, dev, metric, seconds=60)
    assert isinstance(found, LinearBaseline)
    assert found.value > least
    assert found.rows is None
    assert vars(task) == before


def test_of_very_many_rows_some_are_learnt_from(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear_baseline, "_MOST_WORK", 20_000)
    train = rows_of("multilabel", 300, 0)
    task = learnt_task("multilabel", train)
    found = score_baseline(task, train, rows_of("multilabel", 50, 1), "micro_f1", seconds=60)
    assert isinstance(found, LinearBaseline)
    assert found.rows is not None
    assert 50 < found.rows < 150
    assert found.lines(1.0)[0].endswith(f"trained on {found.rows} of the training rows")


def test_what_fails_is_one_line(monkeypatch: pytest.MonkeyPatch):
    train = rows_of("classify", 60, 0)
    task = learnt_task("classify", train)
    line = score_baseline(task, train, train, "macro_f1", seconds=0)
    assert line == "not compared with a linear model: it would take more than 0 seconds"
    line = score_baseline(task, train, train, "no_metric", seconds=60)
    assert line == "not compared with a linear model: KeyError: 'no_metric'"
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    line = score_baseline(task, train, train, "macro_f1", seconds=60)
    assert isinstance(line, str)
    assert line.endswith("pip install 'ownbert[eval]'")


def test_what_has_no_labels_of_its_own_is_not_compared():
    train = rows_of("classify", 20, 0)
    task = learnt_task("classify", train)
    assert can_be_compared(task, train, train)
    assert not can_be_compared(task, train, None)
    soft = [*train, Row(20, ("a text",), (0.1, 0.2, 0.3, 0.4))]
    assert not can_be_compared(task, soft, train)


def test_numbers_are_compared_by_their_error():
    assert len(LinearBaseline("mae", 2.0, None).lines(1.5)) == 1
    assert len(LinearBaseline("mae", 1.0, None).lines(1.5)) == 2


def test_a_run_ends_with_the_comparison(
    pretrained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name, count, seed in (("train", 200, 0), ("dev", 60, 1)):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            rows = [
                (*row.texts, "|".join(row.target)) for row in rows_of("multilabel", count, seed)
            ]
            csv.writer(file).writerows([("text", "labels"), *rows])
    given: dict[str, Any] = {
        "model": pretrained,
        "train": tmp_path / "train.csv",
        "dev": tmp_path / "dev.csv",
    }
    out = tmp_path / "out"
    ownbert.finetune("multilabel", output=out, max_steps=2, **given)
    shown = " ".join("".join(capsys.readouterr()).split())
    _, saved, after = shown.partition("saved ")
    assert saved
    # The warning comes after the score that it compares with.
    assert LINE + "micro-F1 " in after.partition("warning: the network is worse")[0]
    assert "warning: the network is worse" in after
    assert "TF-IDF with a linear model has micro-F1 " in (out / "README.md").read_text()
    ownbert.finetune("multilabel", output=tmp_path / "off", max_steps=2, baseline=False, **given)
    assert LINE not in " ".join("".join(capsys.readouterr()).split())
    assert not yaml.safe_load((tmp_path / "off" / "recipe.yaml").read_text())["run"]["baseline"]


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
