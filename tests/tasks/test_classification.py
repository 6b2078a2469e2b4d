"""Fine-tuning, evaluation and prediction on three easy classes."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from ownbert import InputError, evaluate, finetune, predict
from ownbert.inference.open_folder import open_folder
from ownbert.tasks.rows import Row
from ownbert.train.state import newest_state


def labels_and_texts(path: Path) -> tuple[list[str], list[str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [r["label"] for r in rows], [r["text"] for r in rows]


def tune(topics: Path, model: Path, output: Path, **options):
    given = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True, "epochs": 1}
    return finetune(model=model, output=output, **(given | options))


def test_it_learns_the_classes(classifier: Path, topics: Path):
    scores = evaluate(classifier, topics / "test.csv")
    assert scores.macro_f1 > 0.9
    assert sum(row.support for row in scores.labels) == 45


def test_the_folder_keeps_labels_log_curves_recipe_and_no_states(classifier: Path):
    config = json.loads((classifier / "config.json").read_text())
    assert config["id2label"] == {"0": "blue", "1": "green", "2": "red"}
    assert config["architectures"] == ["BertForSequenceClassification"]
    logged = [json.loads(line) for line in (classifier / "log.jsonl").read_text().splitlines()]
    held_out = [row for row in logged if row.get("evaluation")]
    assert [row["step"] for row in held_out] == [0, 4, 8, 12, 16]
    assert {"loss", "accuracy", "macro_f1"} <= held_out[0].keys()
    assert (classifier / "curves.png").exists()
    assert (classifier / "recipe.yaml").exists()
    assert newest_state(classifier) is None


def test_predictions_are_in_order_and_sum_to_one(classifier: Path, topics: Path, tmp_path: Path):
    count = predict(classifier, topics / "test.csv", tmp_path / "out.jsonl", probabilities=True)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    truth, _ = labels_and_texts(topics / "test.csv")
    assert count == len(rows) == len(truth)
    assert all(sum(r["probabilities"].values()) == pytest.approx(1, abs=1e-5) for r in rows)
    assert all(max(r["probabilities"], key=r["probabilities"].get) == r["label"] for r in rows)
    found = f1_score(truth, [r["label"] for r in rows], average="macro")
    assert evaluate(classifier, topics / "test.csv").macro_f1 == pytest.approx(found)


def test_a_text_gets_the_same_probabilities_in_any_company(classifier: Path, topics: Path):
    predictor = open_folder(classifier)
    _, texts = labels_and_texts(topics / "test.csv")
    rows = [Row(i, (text,)) for i, text in enumerate(texts)]
    together = np.stack(predictor(rows))
    alone = np.concatenate([predictor([row]) for row in rows])
    assert predictor.cut == 0
    assert np.abs(together - alone).max() < 1e-5


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
    text = (tmp_path / "out" / "log.jsonl").read_text()
    held_out = [r for line in text.splitlines() if (r := json.loads(line)).get("evaluation")]
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
        text = (output / "log.jsonl").read_text()
        logs.append([(r["step"], r["loss"]) for r in map(json.loads, text.splitlines())])
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
