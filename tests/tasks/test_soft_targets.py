"""Training rows whose targets are probabilities of the labels, beside rows with labels."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert import InputError, evaluate
from ownbert.batches.batch import Batch, Example, pack
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.finetune_recipe import FinetuneModel, FinetuneRecipe, FinetuneRun, TaskSettings
from ownbert.tasks.multilabel import MultiLabelTask
from ownbert.tasks.row_objectives import MultiLabelObjective, SingleLabelObjective
from ownbert.tasks.rows import Row
from support.floats import assert_close

LABELS = ("blue", "green", "red")
LOGITS = torch.tensor([[0.3, -1.0, 2.0], [0.0, 0.5, -0.25]])


def batch_of(*labels: int | np.ndarray, parts: tuple[int, ...] | None = None) -> Batch:
    ids = np.asarray([2, 5, 3] * len(parts or (1,)))
    return pack([Example(ids, ids * 0, label=label, parts=parts) for label in labels])


def floats(*values: float) -> np.ndarray:
    return np.asarray(values, dtype=np.float32)


def test_the_loss_is_the_cross_entropy_with_the_distribution():
    soft = floats(0.7, 0.2, 0.1), floats(0.0, 0.5, 0.5)
    loss = SingleLabelObjective()(LOGITS, batch_of(*soft))
    logits = LOGITS.double().numpy()
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert_close(loss.total, -(np.stack(soft) * logs).sum())
    # The likely label of the second is the first of two; that of the first row is not predicted.
    assert (int(loss.correct), loss.count) == (1, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 3.0)])
def test_certain_distributions_are_labels(smoothing: float, weights):
    objective = SingleLabelObjective(smoothing=smoothing, label_weights=weights)
    hard = objective(LOGITS, batch_of(2, 0))
    soft = objective(LOGITS, batch_of(floats(0, 0, 1), floats(1, 0, 0)))
    assert_close(soft.total, hard.total)
    assert (int(soft.correct), soft.count) == (int(hard.correct), hard.count)


def test_windows_of_a_document_share_its_distribution():
    objective, windows = SingleLabelObjective(), (3, 3)
    loss = objective(LOGITS, batch_of(floats(0.2, 0.3, 0.5), parts=windows))
    each = objective(LOGITS, batch_of(*[floats(0.2, 0.3, 0.5)] * 2))
    assert_close(loss.total, each.total / 2)
    assert loss.count == 1


def test_the_loss_of_each_label_is_its_binary_cross_entropy():
    soft = floats(0.7, 0.2, 0.1), floats(0.0, 1.0, 0.4)
    loss = MultiLabelObjective()(LOGITS, batch_of(*soft))
    p = 1 / (1 + np.exp(-LOGITS.double().numpy()))
    y = np.stack(soft)
    assert_close(loss.total, -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean(-1).sum())
    # Of the second row, one of 0.5 or more is predicted too many: the first has just 0.5.
    assert int(loss.correct) == 0
    agreeing = MultiLabelObjective()(LOGITS, batch_of(floats(0.5, 0.4, 0.9), floats(0.6, 0.5, 0)))
    assert int(agreeing.correct) == 2


def test_rows_with_labels_become_certain_among_soft_ones():
    task = ClassificationTask(TaskSettings(class_weights="balanced"))
    rows = [Row(1, ("a",), "red"), Row(2, ("b",), "blue"), Row(3, ("c",), (0.25, 0.75))]
    task.learn(rows, "")
    assert task.labels == ("blue", "red")
    assert [t.tolist() for t in task.targets(rows)] == [[0, 1], [1, 0], [0.25, 0.75]]
    assert task.targets(rows[:2]) == [1, 0]
    # 1.25 and 1.75 rows are expected of the labels.
    assert task.weights == pytest.approx((3 / 2.5, 3 / 3.5))
    assert task.label_distribution(rows) == "blue 41.7%, red 58.3%"
    assert task.readable_target(rows[2]) == "blue 25%, red 75%"


def test_labels_that_are_given_order_the_probabilities():
    task = ClassificationTask(TaskSettings(), labels=("red", "blue"))
    task.learn([Row(1, ("a",), np.asarray([0.1, 0.9])), Row(2, ("b",), "red")], "")
    assert task.labels == ("red", "blue")
    task = MultiLabelTask(TaskSettings(name="multilabel"), labels=("red", "blue"))
    rows = [Row(1, ("a",), (0.1, 0.9)), Row(2, ("b",), ("red",)), Row(3, ("b",), ())]
    task.learn(rows, "")
    assert task.labels == ("red", "blue")
    assert_close([task.target(row) for row in rows], [[0.1, 0.9], [1, 0], [0, 0]])
    assert task.label_distribution(rows) == "red 36.7%, blue 30.0%, none 33.3%"
    assert task.readable_target(rows[0]) == "red 10%, blue 90%"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ((0.5, 0.4), "row 3: the probabilities of the labels add up to 0.9, not to 1"),
        ((0.5, 0.3, 0.2), "row 3: 3 probabilities for 2 labels; one for each of blue, red"),
        ((1.5, -0.5), "row 3: a probability is not between 0 and 1"),
        ((float("nan"), 1.0), "row 3: a probability is not between 0 and 1"),
        ((0.5, "red"), "row 3: the probabilities of the labels must be numbers"),
    ],
)
def test_what_is_no_distribution_is_refused(target, said: str):
    task = ClassificationTask(TaskSettings())
    rows = [Row(1, ("a",), "red"), Row(2, ("b",), "blue"), Row(3, ("c",), target)]
    with pytest.raises(InputError, match=said):
        task.learn(rows, "")


@pytest.mark.parametrize("kind", [ClassificationTask, MultiLabelTask])
def test_probabilities_of_unknown_labels_are_refused(kind):
    settings = TaskSettings(name=kind.name)
    rows = [Row(1, ("a",), (0.5, 0.5))]
    with pytest.raises(InputError, match="all targets are probabilities; give the labels"):
        kind(settings).learn(rows, "")
    hard = Row(2, ("b",), "green" if kind is ClassificationTask else ("green",))
    with pytest.raises(InputError, match="the label 'green' is not one of the labels of the prob"):
        kind(settings, labels=("red", "blue")).learn([*rows, hard], "")


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return [Row(i, (r["text"],), r["label"]) for i, r in enumerate(csv.DictReader(file), 2)]


def recipe(pretrained: Path, task: str, epochs: int) -> FinetuneRecipe:
    return FinetuneRecipe(
        model=FinetuneModel(folder=str(pretrained)),
        run=FinetuneRun(epochs=epochs),
        task=TaskSettings(name=task),
    )


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_it_learns_from_probabilities(task: str, pretrained: Path, topics: Path, tmp_path: Path):
    """No row has the label red; that it is likely is all that is learnt of it."""
    train, dev = read(topics / "train.csv"), read(topics / "dev.csv")

    def soft(row: Row) -> Row:
        return replace(row, target=tuple(0.8 if x == row.target else 0.1 for x in LABELS))

    def hard(row: Row) -> Row:
        return row if task == "classify" else replace(row, target=(row.target,))

    rows = [soft(row) if row.target == "red" or i > 9 else hard(row) for i, row in enumerate(train)]
    splits = rows, [hard(row) for row in dev]
    with_card = task == "classify"  # once: it counts the labels of the rows
    settings = recipe(pretrained, task, epochs=4)
    run = FinetuningRun(settings, splits, labels=LABELS, with_card=with_card)
    run.train(FinetuneFolder(tmp_path / "out"), quiet=True)
    assert run.task.labels == LABELS
    scores = evaluate(tmp_path / "out", topics / "test.csv")
    assert scores.values["macro_f1"] > 0.9


def test_dev_rows_need_labels(pretrained: Path, topics: Path):
    train = read(topics / "train.csv")
    dev = [replace(train[0], target=(0.1, 0.1, 0.8))]
    with pytest.raises(InputError, match="row 2: dev rows need labels; probabilities are for"):
        FinetuningRun(recipe(pretrained, "classify", 1), (train, dev))
