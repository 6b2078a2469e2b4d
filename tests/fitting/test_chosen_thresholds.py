"""Thresholds of labels, from ``fit`` and ``finetune`` to ``predict`` and the server."""

import csv
import json
import random
import shutil
from pathlib import Path

import pytest

import ownbert
from ownbert.exceptions import InputError
from support.cli import printed_rows, refusal, run_cli
from support.fit_files import json_of
from support.serving import served
from support.shared import made_once
from support.tiny import change_config, made


def write_rows(path: Path, count: int, seed: int, *, several: bool = False) -> Path:
    """Texts of ids of which a tenth are yes; or with labels of 40, 15 and 6 % of the rows."""
    draw = random.Random(seed)
    rates = {"a": 0.4, "b": 0.15, "c": 0.06} if several else {"yes": 0.1}
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "labels" if several else "label"])
        for _ in range(count):
            labels = [label for label, rate in rates.items() if draw.random() < rate]
            words = [f"w{draw.randrange(40)}" for _ in range(12)]
            for label in (*labels, draw.choice([*rates])):
                for _ in range(2 if label in labels else 1):
                    words[draw.randrange(12)] = f"{label}{draw.randrange(6)}"
            rows.writerow([" ".join(words), "|".join(labels) if several else (*labels, "no")[0]])
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        for name, count, several in (("two", 500, False), ("several", 500, True)):
            write_rows(folder / f"{name}.csv", count, 0, several=several)
            write_rows(folder / f"{name}-new.csv", 800, 1, several=several)
        for name in ("two", "several"):
            ownbert.fit(folder / f"{name}.csv", output=folder / name, minutes=0.1, quiet=True)

    return made_once(tmp_path_factory, "thresholds", make)


def recall(folder: Path | ownbert.Predictor, data: Path, **options: object) -> dict[str, float]:
    scores = ownbert.evaluate(folder, data, **options)  # type: ignore
    return {each.label: each.recall for each in scores.labels}


def decision(folder: Path) -> object:
    return json_of(folder, "blend.json")["ownbert_task"].get("decision")


def test_evaluate_uses_a_threshold_that_is_given_or_chosen_on_held_out_rows(data: Path):
    new, texts = data / "two-new.csv", []
    with new.open() as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    yes = ownbert.Predictor(data / "two").predict_proba(texts)[:, 1]
    found = ownbert.Predictor(data / "two", threshold={"yes": 0.3})
    assert [each == "yes" for each in found.predict(texts)] == (yes >= 0.3).tolist()
    plain = recall(data / "two", new)["yes"]
    said: list[str] = []
    high = recall(data / "two", new, threshold="yes=recall:0.95", say=said.append)["yes"]
    assert high > max(plain, 0.8)
    assert any("'yes' is predicted from 0." in line and "recall:0.95" in line for line in said)
    assert recall(data / "two", new, threshold={"yes": 0.99999})["yes"] < plain
    # The other label's threshold is the counterpart.
    same = [recall(data / "two", new, threshold=t) for t in ("yes=0.3", "no=0.7")]
    assert same[0] == pytest.approx(same[1])


def test_a_threshold_is_stored_and_used_by_every_command(data: Path, tmp_path: Path):
    folder, new = tmp_path / "two", data / "two-new.csv"
    shutil.copytree(data / "two", folder)
    wanted = recall(folder, new, threshold="yes=recall:0.95")
    done = run_cli("evaluate", folder, new, "--threshold", "yes=recall:0.95", "--save-threshold")
    assert done.returncode == 0, done.stderr
    assert decision(folder) != decision(data / "two")
    assert recall(folder, new) == wanted
    predicted = [row["label"] for row in printed_rows("predict", folder, new)]
    assert ownbert.Predictor(folder).predict(new_texts(new)).tolist() == predicted
    # What is compared with held-out rows is compared with those of the new threshold.
    drift = ownbert.drift(folder, new).to_dict()
    (labels,) = (each for each in drift["distances"] if each["name"] == "predicted labels")
    assert labels["distance"] <= labels["by_chance"]
    refused = [row["unknown"] for row in printed_rows("predict", folder, new, "--unknown", 0.05)]
    assert sum(refused) < 0.15 * len(refused)
    assert {"no", "yes"} <= set(predicted)


def new_texts(path: Path) -> list[str]:
    with path.open() as file:
        return [row["text"] for row in csv.DictReader(file)]


def test_fit_chooses_the_threshold_on_held_out_rows(data: Path, tmp_path: Path):
    folder = tmp_path / "model"
    done = run_cli(
        *("fit", data / "two.csv", "-o", folder, "--minutes", 0.1),
        *("--threshold", "yes=recall:0.95"),
    )
    assert done.returncode == 0, done.stderr
    assert "threshold: yes 0." in done.stdout + done.stderr
    report = json_of(folder)
    held_out = report["scores"]["labels"]["yes"]["recall"]
    assert 0.85 < held_out <= 1  # by cross-fitting, so about what was asked for
    # The threshold is not one for macro-F1: models are compared without it.
    assert report["metric"] == "average_precision"
    assert f"recall {held_out:.3f})" in report["data"]["threshold"]
    assert not any("predicted poorly" in each["sentence"] for each in report["advice"])
    assert recall(folder, data / "two-new.csv")["yes"] > 0.8
    # The same rule chooses the same threshold on the rows that the folder keeps.
    stored = decision(folder)
    ownbert.evaluate(folder, data / "two-new.csv", threshold="yes=recall:0.95", save_threshold=True)
    first, second = (each[1] - each[0] for each in (stored, decision(folder)))  # type: ignore
    assert first == pytest.approx(second, abs=1e-3)


def test_several_labels_have_thresholds_of_their_own(data: Path, tmp_path: Path):
    new, folder = data / "several-new.csv", tmp_path / "several"
    shutil.copytree(data / "several", folder)
    before = recall(folder, new)
    scores = ownbert.evaluate(folder, new, threshold="c=0.02", save_threshold=True)
    found = {each.label: each.recall for each in scores.labels}
    assert found["c"] > before["c"]
    assert {k: found[k] for k in "ab"} == {k: before[k] for k in "ab"}
    assert recall(folder, new) == found
    assert recall(folder, new, threshold=0.999999)["a"] < before["a"]


def test_the_metric_chooses_the_thresholds_of_several_labels(data: Path, tmp_path: Path):
    """They were those with the best micro-F1 whatever the metric."""
    stored = []
    for metric in ("micro_f1", "macro_f1"):
        folder = tmp_path / metric
        ownbert.fit(data / "several.csv", output=folder, minutes=0.1, metric=metric, quiet=True)
        stored.append(json_of(folder, "blend.json")["ownbert_task"]["threshold"])
    assert isinstance(stored[0], float)
    assert len(set(stored[1])) == 3


def test_the_server_uses_a_threshold(data: Path):
    pytest.importorskip("fastapi")
    texts = new_texts(data / "two-new.csv")[:60]
    expected = ownbert.Predictor(data / "two", threshold="yes=0.02").predict(texts).tolist()
    assert expected != ownbert.Predictor(data / "two").predict(texts).tolist()
    with served(data / "two", "--threshold", "yes=0.02") as server:
        status, found, _ = server.post("/v1/classify", {"inputs": texts})
    assert status == 200
    assert [each["label"] for each in found["answers"]] == expected


def test_finetune_chooses_a_threshold_on_dev_rows_and_a_folder_of_it_is_changed(
    data: Path, pretrained: Path, tmp_path: Path
):
    options = {"model": pretrained, "train": data / "two.csv", "quiet": True, "max_steps": 12}
    with pytest.raises(InputError, match="chosen on dev rows, and there are none"):
        ownbert.finetune(
            "classify", output=tmp_path / "none", threshold={"yes": "recall:0.9"}, **options
        )
    folder = tmp_path / "model"
    dev = write_rows(tmp_path / "dev.csv", 200, 2)
    ownbert.finetune("classify", output=folder, dev=dev, threshold="yes=recall:0.9", **options)
    assert recall(folder, dev)["yes"] >= 0.9
    ownbert.evaluate(folder, dev, threshold="yes=0.999", save_threshold=True)
    assert recall(folder, dev)["yes"] < 0.9
    saved = json.loads((folder / "config.json").read_text())["ownbert_task"]["decision"]
    assert saved == pytest.approx([0, -6.9], abs=0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--threshold", "maybe=0.9"), "one of the labels no, yes"),
        (("--threshold", "0.9"), "of which label? Write yes=0.9"),
        (("--threshold", "yes=high"), "of 'yes' is 'high'"),
        (("--save-threshold",), "--save-threshold requires --threshold"),
    ],
)
def test_wrong_thresholds_are_refused(arguments: tuple[str, ...], said: str, data: Path):
    assert said in refusal("evaluate", data / "two", data / "two-new.csv", *arguments)


def test_tasks_without_labels_have_no_threshold(tmp_path: Path):
    made(folder := tmp_path / "numbers", "classification", labels=("score",))
    change_config(folder, problem_type="regression")
    assert "does not apply to regress" in refusal(
        "predict", folder, "a", "--threshold", "score=0.5"
    )


def test_rows_of_calibration_choose_the_threshold_and_are_read_once(data: Path, tmp_path: Path):
    folder, new = tmp_path / "two", data / "two-new.csv"
    shutil.copytree(data / "two", folder)
    rows = write_rows(tmp_path / "rows.csv", 300, 3)
    done = run_cli(
        *("predict", folder, new, "-o", tmp_path / "found.csv", "--calibrate", rows),
        *("--threshold", "yes=recall:0.9", "--coverage", 0.8),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("calibrated on 300 rows") == 1
    assert f"chosen for recall:0.9 on 300 rows of {rows}" in done.stderr.replace("\n", " ")
    unused = ("--threshold", "yes=0.4", "--calibrate", rows)
    assert "--calibrate requires" in refusal("predict", folder, "w1 w2", *unused)
