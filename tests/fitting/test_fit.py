"""``fit`` from the rows to a folder that answers: real models on small data."""

import csv
import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ownbert
from ownbert.inference.engines import Compute
from ownbert.inference.finished_files import copy_files, finished_files
from ownbert.inference.open_folder import open_folder
from ownbert.tasks.rows import Row
from support.cli import run_cli
from support.fit_files import fit_files, json_of, texts_of

# Enough on any machine: all that there is to do ends earlier.
MINUTES = 10


def test_the_blend_and_its_network_answer_new_texts(fitted: Path, topics: Path):
    blend = ownbert.evaluate(fitted, topics / "test.csv")
    network = ownbert.evaluate(fitted, topics / "test.csv", network=True)
    assert blend.macro_f1 > 0.9
    assert network.macro_f1 > 0.7


def test_the_folder_is_an_ordinary_model_folder(fitted: Path, topics: Path, transformers: Any):
    tokenizer = transformers.AutoTokenizer.from_pretrained(fitted)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(fitted).eval()
    text = texts_of(topics / "test.csv")[0]
    logits = model(**tokenizer(text, return_tensors="pt")).logits
    (ours,) = open_folder(fitted, Compute(network=True))([Row(1, (text,))])
    np.testing.assert_allclose(logits.softmax(-1)[0].detach().numpy(), ours, atol=1e-5)


def test_an_evaluation_of_training_rows_says_so(
    fitted: Path, classifier: Path, topics: Path, tmp_path: Path
):
    said: list[str] = []
    ownbert.evaluate(fitted, topics / "train.csv", say=said.append)
    ownbert.evaluate(classifier, topics / "train.csv", say=said.append)
    assert len([line for line in said if "is the training data of" in line]) == 2
    said.clear()
    ownbert.evaluate(fitted, topics / "test.csv", say=said.append)
    ownbert.evaluate(classifier, topics / "test.csv", say=said.append)
    assert not [line for line in said if "is the training data of" in line]


def test_predict_and_evaluate_use_the_blend_unless_told(fitted: Path, topics: Path, tmp_path: Path):
    outputs = []
    for name, options in (("blend", ()), ("network", ("--network",))):
        output = tmp_path / f"{name}.jsonl"
        done = run_cli(
            "predict",
            fitted,
            "--input",
            topics / "test.csv",
            "-o",
            output,
            "--probabilities",
            *options,
        )
        assert done.returncode == 0, done.stderr
        lines = output.read_text().splitlines()
        outputs.append([json.loads(line)["probabilities"] for line in lines])
    assert len(outputs[0]) == 45
    assert outputs[0] != outputs[1]
    rows = [Row(0, (text,)) for text in texts_of(topics / "test.csv")]
    expected = np.asarray(open_folder(fitted)(rows))
    found = np.asarray([list(row.values()) for row in outputs[0]])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_report_says_what_was_compared(fitted: Path):
    report = json_of(fitted)
    kinds = {row["kind"] for row in report["leaderboard"]}
    blend = json_of(fitted, "blend.json")
    assert all(member["weight"] > 0 for member in blend["members"])
    assert all((fitted / f).is_dir() for m in blend["members"] for f in m["folders"])
    assert all(row["test_score"] > 0.5 for row in report["leaderboard"])
    assert kinds == {"linear", "network", "distilled", "blend"}
    assert (fitted / "report.html").read_text().startswith("<!doctype html>")
    assert "macro" in (fitted / "report.txt").read_text()
    card = (fitted / "README.md").read_text()
    assert "TF-IDF of 1 to 2 words" in card
    assert "Only the network, in Transformers:" in card
    assert str(fitted.parent) not in card  # no paths of this machine in what may be published


def test_a_copy_of_the_needed_files_answers_alike_and_has_no_text(
    fitted: Path, topics: Path, tmp_path: Path
):
    texts = texts_of(topics / "test.csv")
    copy_files(fitted, tmp_path / "copy", finished_files(fitted))
    for network in (False, True):
        one, two = (ownbert.Predictor(f, network=network) for f in (fitted, tmp_path / "copy"))
        assert (one.predict_proba(texts) == two.predict_proba(texts)).all()
    read = "".join(
        path.read_text(errors="replace")
        for path in (tmp_path / "copy").rglob("*")
        if path.suffix in (".md", ".json", ".txt")
    )
    assert not [text for text in [*texts, *texts_of(topics / "train.csv")] if text in read]


@pytest.mark.parametrize("task", ["multilabel", pytest.param("regress", marks=pytest.mark.slow)])
def test_other_tasks_are_fitted_in_memory(task: str, topics: Path, pretrained: Path):
    texts = texts_of(topics / "train.csv")
    rng = random.Random(0)
    if task == "regress":
        labels = [text.count("red") + rng.random() / 10 for text in texts]
    else:
        labels = [[t for t in ("red", "green", "blue") if t in text] for text in texts]
    dev = (texts[40:], labels[40:])
    predictor = ownbert.fit(
        (texts, labels), dev=dev, model=pretrained, seeds=1, minutes=MINUTES, quiet=True
    )
    assert predictor.task.name == task
    answers = predictor.rows_predictor([Row(0, (text,)) for text in texts])
    if task == "regress":
        found = np.asarray([float(answer[0]) for answer in answers])
        assert np.corrcoef(found, labels)[0, 1] > 0.8
    else:
        truth = np.asarray([[t in text for t in predictor.task.labels] for text in texts])
        assert ((np.asarray(answers) >= predictor.task.threshold) == truth).mean() > 0.8
        report = (predictor.folder / "report.txt").read_text()
        (shown,) = re.findall(r"^threshold +([.\d]+) *$", report, flags=re.M)
        assert 0 < float(shown) < 1
    shutil.rmtree(predictor.folder)


@pytest.mark.slow
def test_pairs_of_texts_are_fitted(pretrained: Path, tmp_path: Path):
    rng = random.Random(1)
    path = tmp_path / "pairs.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text1", "text2", "label"])
        for i in range(60):
            a = f"red{rng.randint(0, 11)} w{rng.randint(0, 30)}"
            b = a if i % 2 else f"blue{rng.randint(0, 11)} w{rng.randint(0, 30)}"
            writer.writerow([a, b, "same" if i % 2 else "other"])
    out = tmp_path / "out"
    predictor = ownbert.fit(
        path, model=pretrained, seeds=1, minutes=MINUTES, output=out, quiet=True
    )
    pairs = [("red1 w2", "red1 w2"), ("red1 w2", "blue3 w4")]
    same, other = predictor.predict_proba(pairs)
    assert same[predictor.task.labels.index("same")] > other[predictor.task.labels.index("same")]


def test_several_columns_of_numbers_are_seen(topics: Path, tmp_path: Path):
    rng = random.Random(3)
    data = {"text": texts_of(topics / "train.csv")}
    data |= {name: [rng.random() for _ in data["text"]] for name in ("x", "y")}
    predictor = ownbert.fit(data, label_column="x,y", minutes=0.01, quiet=True)
    assert (predictor.task.name, tuple(predictor.task.labels)) == ("regress", ("x", "y"))
    shutil.rmtree(predictor.folder)


def test_few_texts_have_linear_models_alone(tmp_path: Path):
    """Too few to pretrain on; two rows; and rows without a common word."""
    given = {"minutes": 0.2, "quiet": True}
    predictor = ownbert.fit((["x y", "z w"], ["a", "b"]), output=tmp_path / "few", **given)
    assert predictor("x y")[0]["label"] in ("a", "b")
    kinds = {row["kind"] for row in json_of(tmp_path / "few")["leaderboard"]}
    assert kinds == {"linear", "blend"}
    predictor = ownbert.fit((["ab", "cd"], ["x", "y"]), output=tmp_path / "two", **given)
    assert "Transformers" not in (tmp_path / "two" / "README.md").read_text()  # has no network
    assert predictor.predict_proba("ab").argmax() == 0
    texts = [f"{chr(97 + i)}zz" for i in range(20)]
    options = {"output": tmp_path / "apart", "size": "tiny", **given}
    predictor = ownbert.fit((texts, ["x", "y", "x", "x"] * 5), **options)
    assert predictor.predict("other") == "x"


def test_unlabelled_questions_are_no_patterns_of_files(topics: Path, tmp_path: Path):
    texts = ["is red1 one?", "or is it [blue2]?"]
    given = {"minutes": 0.01, "output": tmp_path / "out", "quiet": True}
    ownbert.fit(topics / "train.csv", unlabelled=texts, **given)
    report = json_of(tmp_path / "out")
    assert report["data"]["texts without labels"] == 2


@pytest.fixture(scope="module")
def imbalanced(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fit on rows of which most have one label, and words say little; test.csv beside it."""
    folder, rng = tmp_path_factory.mktemp("imbalanced"), random.Random(0)
    topics = ("red", "green", "blue")

    def rows(count: int) -> str:
        lines = ["label,text"]
        for _ in range(count):
            topic = rng.choices(topics, (16, 2, 1))[0]
            said = [topic if rng.random() < 0.5 else rng.choice(topics) for _ in range(4)]
            words = [f"{own}{rng.randint(0, 11)}" for own in said]
            lines.append(f"{topic},{' '.join(words)}")
        return "\n".join(lines) + "\n"

    for name, count in (("train", 150), ("dev", 300), ("test", 300)):
        (folder / f"{name}.csv").write_text(rows(count))
    fit_files(folder, pretrained, folder / "best")
    return folder


@pytest.mark.slow
def test_rare_labels_are_found_in_the_blend_and_in_the_plain_folder(
    imbalanced: Path, transformers: Any
):
    best = imbalanced / "best"
    blend = json_of(best, "blend.json")
    assert max(blend["ownbert_task"]["decision"]) > 0.2
    found = ownbert.evaluate(best, imbalanced / "test.csv")
    blend["ownbert_task"]["decision"] = None
    without = shutil.copytree(best, imbalanced / "without")
    (without / "blend.json").write_text(json.dumps(blend))
    before = ownbert.evaluate(without, imbalanced / "test.csv")
    recall = [np.mean([label.recall for label in own.labels]) for own in (before, found)]
    assert recall[1] > recall[0] + 0.01
    # What Transformers loads gives the same probabilities as the folder's network.
    tokenizer = transformers.AutoTokenizer.from_pretrained(best)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(best).eval()
    texts = texts_of(imbalanced / "test.csv")
    logits = model(**tokenizer(texts, return_tensors="pt", padding=True)).logits
    ours = open_folder(best, Compute(network=True))([Row(1, (text,)) for text in texts])
    np.testing.assert_allclose(logits.softmax(-1).detach().numpy(), np.stack(ours), atol=1e-5)


@pytest.mark.slow
def test_the_report_has_the_scores_that_the_folder_has(imbalanced: Path):
    report = json_of(imbalanced / "best")
    board = {row["name"]: row for row in report["leaderboard"]}
    blend = ownbert.evaluate(imbalanced / "best", imbalanced / "test.csv")
    assert board["blend of all"]["test_score"] == pytest.approx(blend.macro_f1, abs=1e-6)
    network = ownbert.evaluate(imbalanced / "best", imbalanced / "test.csv", network=True)
    assert board[report["network"]]["test_score"] == pytest.approx(network.macro_f1, abs=0.01)
