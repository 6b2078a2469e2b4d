"""Fine-tuning, evaluation and prediction on three easy classes."""

import csv
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from ownbert import InputError, evaluate, finetune, predict
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.rows import OutputOptions, Row
from ownbert.tasks.task import KEY, restored_task
from ownbert.train.state import newest_state
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned


def labels_and_texts(path: Path) -> tuple[list[str], list[str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [r["label"] for r in rows], [r["text"] for r in rows]


tune = partial(tuned, "classify")


def test_it_learns_the_classes(classifier: Path, topics: Path):
    scores = evaluate(classifier, topics / "test.csv")
    assert scores.macro_f1 > 0.9
    assert sum(row.support for row in scores.labels) == 45


def test_the_folder_keeps_labels_log_curves_recipe_and_no_states(classifier: Path):
    config = json.loads((classifier / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "green", "2": "red"}
    assert config["architectures"] == ["BertForSequenceClassification"]
    held_out = [row for row in read_jsonl(classifier / "log.jsonl") if row.get("evaluation")]
    assert [row["step"] for row in held_out] == [0, 4, 8, 12, 16]
    assert {"loss", "accuracy", "macro_f1"} <= held_out[0].keys()
    assert (classifier / "curves.png").exists()
    assert (classifier / "recipe.yaml").exists()
    assert newest_state(classifier) is None


def test_predictions_are_in_order_and_sum_to_one(classifier: Path, topics: Path, tmp_path: Path):
    count = predict(classifier, topics / "test.csv", tmp_path / "out.jsonl", probabilities=True)
    rows = read_jsonl(tmp_path / "out.jsonl")
    truth, _ = labels_and_texts(topics / "test.csv")
    assert count == len(rows) == len(truth)
    assert all(sum(r["probabilities"].values()) == pytest.approx(1, abs=1e-5) for r in rows)
    assert all(max(r["probabilities"], key=r["probabilities"].get) == r["label"] for r in rows)
    found = f1_score(truth, [r["label"] for r in rows], average="macro")
    assert evaluate(classifier, topics / "test.csv").macro_f1 == pytest.approx(found)


def test_a_text_gets_the_same_probabilities_in_any_company(classifier: Path, topics: Path):
    assert_same_in_any_company(classifier, topics / "test.csv")


def test_pretraining_helps_with_few_labels(pretrained: Path, topics: Path, tmp_path: Path):
    scores = []
    for scratch in (False, True):
        output = tmp_path / str(scratch)
        options = {"labels_per_class": 4, "epochs": 6, "from_scratch": scratch or None}
        tune(topics, pretrained, output, **options)
        scores.append(evaluate(output, topics / "test.csv").macro_f1)
    assert scores[0] > scores[1] + 0.05


def test_long_documents_are_cut_and_counted(pretrained: Path, topics: Path, tmp_path: Path, capfd):
    long = tmp_path / "long.csv"
    text = topics.joinpath("train.csv").read_text()
    long.write_text(text + "red," + "red1 " * 500 + "\n")
    tune(topics, pretrained, tmp_path / "out", train=long, quiet=False)
    assert "warning: 1 of 61 training documents are longer than the model's 48 tokens" in (
        capfd.readouterr().out
    )
    (tmp_path / "one.txt").write_text("red1 " * 500 + "\n\nred2\n")
    said: list[str] = []
    predict(tmp_path / "out", tmp_path / "one.txt", tmp_path / "p.jsonl", say=said.append)
    assert "1 of 3 documents" in said[0]
    assert len((tmp_path / "p.jsonl").read_text().splitlines()) == 3


def test_few_labels_are_the_named_number_and_the_best_weights_are_kept(
    pretrained: Path, topics: Path, tmp_path: Path, capfd
):
    options = {"labels_per_class": 5, "epochs": 30, "patience": 2, "quiet": False}
    tune(topics, pretrained, tmp_path / "out", **options)
    assert "15 training and 30 dev documents, 3 labels" in capfd.readouterr().out
    held_out = [row for row in read_jsonl(tmp_path / "out/log.jsonl") if row.get("evaluation")]
    assert len(held_out) < 30  # stopped early
    best = max(row["macro_f1"] for row in held_out)
    assert evaluate(tmp_path / "out", topics / "dev.csv", precision="auto").macro_f1 == (
        pytest.approx(best, abs=1e-6)
    )


def test_a_stopped_run_goes_on(pretrained: Path, topics: Path, tmp_path: Path):
    """The same losses whether the run was one piece or two."""
    logs = []
    for name in ("whole", "parts"):
        output = tmp_path / name
        if name == "parts":
            with pytest.raises(KeyboardInterrupt):
                _stop_after(topics, pretrained, output, step=5)
        tune(topics, pretrained, output, epochs=3, log_every=1, resume=name == "parts")
        logs.append([(row["step"], row["loss"]) for row in read_jsonl(output / "log.jsonl")])
    assert logs[0] == logs[1]


def _stop_after(topics: Path, model: Path, output: Path, *, step: int) -> None:
    import _thread
    import threading
    import time

    def watch() -> None:
        log = output / "log.jsonl"
        while not log.exists() or len(log.read_text().splitlines()) < step:
            time.sleep(0.002)
        _thread.interrupt_main()

    threading.Thread(target=watch, daemon=True).start()
    tune(topics, model, output, epochs=3, log_every=1)


def test_labels_that_cannot_be_are_refused(
    pretrained: Path, classifier: Path, topics: Path, tmp_path: Path
):
    odd = tmp_path / "odd.csv"
    odd.write_text("label,text\nred,red1 9\nmauve,red2 9\n")
    output = tmp_path / "out"
    with pytest.raises(InputError, match=r"odd.csv, line 3: label 'mauve' is not in the training"):
        tune(topics, pretrained, output, dev=odd)
    with pytest.raises(InputError, match=r"odd.csv, line 3: label 'mauve' is not in the model"):
        evaluate(classifier, odd)
    odd.write_text("label,text\nred,red1 9\nred,red2 9\n")
    with pytest.raises(InputError, match="all rows have the label 'red'"):
        tune(topics, pretrained, output, train=odd)
    assert not output.exists()


def test_whole_numbers_as_labels_are_in_their_order(pretrained: Path, topics: Path, tmp_path: Path):
    numbers = tmp_path / "numbers.tsv"
    rows = [f"{n}\t{topic}1 {topic}2 9" for n, topic in ((10, "red"), (2, "blue"), (0, "green"))]
    numbers.write_text("label\ttext\n" + "\n".join(rows * 4) + "\n")
    model = tune(topics, pretrained, tmp_path / "out", train=numbers, dev=numbers)
    assert model.labels == ("0", "2", "10")


def test_a_folder_that_is_no_classifier_is_refused(pretrained: Path, topics: Path, tmp_path: Path):
    with pytest.raises(InputError, match="has no task head"):
        predict(pretrained, topics / "test.csv", tmp_path / "p.jsonl")
    assert not (tmp_path / "p.jsonl").exists()


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="runs in one process"):
        finetune(model="m", train="t", dev="d", output=tmp_path / "run")


# The label that is chosen is a decision of its own; probabilities do not depend on it.


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
