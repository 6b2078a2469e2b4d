"""The label that is chosen is a decision of its own; probabilities do not depend on it."""

import json

import numpy as np
import pytest

from ownbert.exceptions import InputError
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.rows import OutputOptions, Row
from ownbert.tasks.task import KEY, restored_task

ROW = Row(1, ("a text",))


def task_with(decision: tuple[float, ...] | None) -> ClassificationTask:
    task = ClassificationTask(TaskSettings(name="classify"), labels=("no", "yes"))
    task.decision = decision
    return task


def test_a_rare_label_is_predicted_below_one_half_and_keeps_its_probability():
    raw = np.array([0.7, 0.3])
    task = task_with((0.0, float(np.log(4))))  # yes from .2 on
    decided = task.decide(raw, ROW, None)
    assert task.plain(decided, ROW) == "yes"
    assert task.answer(decided, ROW) == {"label": "yes", "score": 0.3}
    row = task.output_row(decided, ROW, OutputOptions(top=2, probabilities=True))
    assert [row["label"], row["score"], row["label_2"], row["score_2"]] == ["yes", 0.3, "no", 0.7]
    assert row["probabilities"] == {"no": 0.7, "yes": 0.3}
    assert task.plain(task.decide(np.array([0.81, 0.19]), ROW, None), ROW) == "no"
    assert task.plain(task_with(None).decide(raw, ROW, None), ROW) == "no"
    np.testing.assert_array_equal(np.stack([decided]), [raw])


def test_the_most_frequent_label_is_predicted_where_nothing_of_a_text_is_known():
    task = task_with((0.0, float(np.log(4))))
    assert task.plain(task.decide(np.array([0.7, 0.3]), ROW, True), ROW) == "no"


def test_metrics_are_those_of_the_decisions():
    rows = [Row(i, ("t",), target) for i, target in enumerate(["no", "no", "yes", "yes"])]
    raws = np.array([[0.9, 0.1], [0.85, 0.15], [0.7, 0.3], [0.4, 0.6]])
    for decision, right in (((0.0, float(np.log(4))), 1.0), (None, 0.75)):
        task = task_with(decision)
        decided = [task.decide(raw, row, None) for raw, row in zip(raws, rows, strict=True)]
        assert task.score(rows, decided).accuracy == right


def test_a_folder_keeps_the_decision_and_a_damaged_one_is_refused():
    task = task_with((0.0, 1.5))
    saved = json.loads(json.dumps(task.values()[KEY]))
    assert restored_task("classify", saved, task.labels).decision == (0.0, 1.5)  # pyright: ignore
    for wrong in ([1.0], ["a", 0.0], [float("nan"), 0.0], [1e9, 0.0], 3):
        with pytest.raises(InputError, match="decision"):
            restored_task("classify", {**saved, "decision": wrong}, task.labels)
