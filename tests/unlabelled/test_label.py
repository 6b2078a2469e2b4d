"""Texts are chosen for labelling by a folder of ``fit``, labelled, and given back."""

import csv
import json
import random
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import yaml

import ownbert
from ownbert.exceptions import InputError
from ownbert.fitting.rows.added_rows import with_added
from ownbert.pages import cleaned
from ownbert.tables.columns import ColumnNames
from ownbert.tables.label_studio import read_export
from ownbert.tasks.rows import Row
from ownbert.unlabelled.label import (
    choose,
    count_for_rare,
    label_errors,
    rare_labels,
    uncertainty,
    uncertainty_of_sets,
    worth_of_labels,
)
from support import tiny
from support.cli import refusal, run_cli
from support.shared import made_once

TOPICS = ("red", "green", "blue")
WRONG = "red1 red2 red3 red4 red5 red6"


def text_of(topics: tuple[str, ...], rng: random.Random) -> str:
    return " ".join(f"{rng.choice(topics)}{rng.randint(0, 9)}" for _ in range(8))


def write(rows: list[tuple[str, str]], path: Path) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    return path


def read(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training rows with a rare and a wrong label, texts without labels, and what fit makes."""

    def make(folder: Path) -> None:
        rng = random.Random(0)
        rows = [(text_of((topic,), rng), topic) for topic in TOPICS for _ in range(20)]
        rows += [(text_of(("grey",), rng), "grey") for _ in range(4)]
        write([*rows, (WRONG, "blue")], folder / "train.csv")
        texts = [text_of((topic,), rng) for topic in TOPICS for _ in range(80)]
        for two in (("red", "green"), ("green", "blue"), ("red", "blue")):
            texts += [text_of(two, rng) for _ in range(10)]
        texts += [text_of(("grey",), rng) for _ in range(5)]
        texts += [texts[-10]] * 5 + [f" {texts[-10]}  "] + [rows[0][0]]
        rng.shuffle(texts)
        (folder / "corpus.txt").write_text("\n".join(texts), encoding="utf-8")
        # Too little time for a network, enough for linear models on any machine.
        ownbert.fit(folder / "train.csv", minutes=0.3, output=folder / "best", quiet=True)

    return made_once(tmp_path_factory, "to-label", make)


def test_chosen_texts_are_uncertain_and_differ(made: Path):
    texts = (made / "corpus.txt").read_text(encoding="utf-8").splitlines()
    rows = ownbert.to_label(made / "best", texts, count=20, train=made / "train.csv")
    chosen = [row["text"] for row in rows]
    assert len({" ".join(text.split()) for text in chosen}) == len(chosen) == 20
    assert read(made / "train.csv")[0]["text"] not in chosen
    predictor = ownbert.Predictor(made / "best")
    means = [uncertainty(predictor.predict_proba(some)).mean() for some in (chosen, texts)]
    assert means[0] > 2 * means[1]
    kinds = {frozenset(word[:-1] for word in text.split()) for text in chosen}
    assert {frozenset(two) for two in combinations(TOPICS, 2)} <= kinds
    # Of a label with 4 of 65 rows 5 are lacking; they come first.
    rare = [i for i, row in enumerate(rows) if row["suggested"] == "grey"]
    assert rare[:3] == [0, 1, 2]
    assert "rare label grey" in rows[0]["reason"]
    assert all(row["label"] == "" and row["reason"] for row in rows)


def test_clusters_have_one_text_each_and_no_outlier():
    rng = np.random.default_rng(0)
    centres = 5 * rng.standard_normal((6, 10))
    vectors = np.repeat(centres, 20, axis=0) + rng.standard_normal((120, 10))
    scores = rng.random(120)
    rows = choose(scores, vectors, 6)
    assert sorted(rows // 20) == list(range(6))
    assert (np.diff(scores[rows]) <= 0).all()
    distances = np.linalg.norm(vectors - np.repeat(centres, 20, axis=0), axis=1)
    assert distances[rows].mean() < distances.mean()
    assert len(set(choose(np.ones(30), np.ones((30, 4)), 7).tolist())) == 7  # all the same
    assert choose(scores[:3], vectors[:3], 6).shape == (3,)
    assert choose(scores[:3], vectors[:3], 0).shape == (0,)


def test_rare_labels():
    counts = np.asarray([30, 2, 30, 5, 33])
    assert rare_labels(counts).tolist() == [1, 3]
    assert count_for_rare(counts, 100) == 8 + 5
    assert count_for_rare(counts, 8) == 4
    assert count_for_rare(np.asarray([20, 20]), 50) == 0


def test_with_few_labels_typical_texts_are_chosen(made: Path, tmp_path: Path):
    folder = shutil.copytree(made / "best", tmp_path / "few")
    report = json.loads((folder / "report.json").read_text())
    report["train_counts"] = [5, 5, 5, 5]
    (folder / "report.json").write_text(json.dumps(report))
    rows = ownbert.to_label(folder, made / "corpus.txt", count=6)
    reason = "typical of similar texts; there are few labels so far"
    assert {row["reason"] for row in rows} == {reason}
    assert {word[:-1] for row in rows for word in row["text"].split()} >= set(TOPICS)


def test_texts_without_a_common_word_can_be_chosen(made: Path):
    texts = ["18049 36908", "9999999", "88888"]
    assert {row["text"] for row in ownbert.to_label(made / "best", texts, count=2)} < {*texts}


def test_a_fine_tuned_folder_has_no_report(classifier: Path, topics: Path):
    """Its network gives the vectors; no label is known to be rare or to have few rows."""
    said: list[str] = []
    rows = ownbert.to_label(classifier, topics / "corpus.txt", count=5, say=said.append)
    assert len({row["text"] for row in rows}) == 5
    assert not any("rare" in row["reason"] or "few" in row["reason"] for row in rows)
    assert len(said) == 1
    assert "the report has no learning curve" in said[0]


def test_a_file_is_filled_in_and_given_back(made: Path, tmp_path: Path):
    out, errors = tmp_path / "to_label.csv", tmp_path / "errors.csv"
    train = made / "train.csv"
    line = ("--unlabelled", made / "corpus.txt", "-n", 8, "-o", out, "--check", errors)
    done = run_cli("label", made / "best", *line, "--train", train)
    assert done.returncode == 0, done.stderr
    assert "8 texts to label" in done.stdout
    assert "8 more labels" in done.stderr
    rows = read(out)
    errors_line = f"{len(read(errors))} likely label errors; saved {errors}"
    assert errors_line in " ".join(done.stderr.split())
    assert list(rows[0]) == ["text", "label", "suggested", "score", "reason"]
    wrong = next(row for row in read(errors) if row["text"] == WRONG)
    assert (wrong["label"], wrong["given"], wrong["suggested"]) == ("", "blue", "red")
    with pytest.raises(InputError, match="no row has a label yet"):
        with_added(train, out, ColumnNames(), None)

    filled = [(row["text"], "violet" if i < 5 else "") for i, row in enumerate(rows)]
    write([*filled, (rows[0]["text"], "red")], out)
    write([(wrong["text"], "red")], errors)
    added = ("--add", out, "--add", errors)
    done = run_cli("fit", train, *added, "--minutes", "0.3", "-o", tmp_path / "next")
    assert done.returncode == 0, done.stderr
    shown = " ".join((done.stdout + done.stderr).split())
    assert "labelled rows added: 6; without a label, left out: 3" in shown
    assert "repeated texts: 1; the last label counts" in shown
    assert "with the same text: 1; with another label: 1" in shown
    report = json.loads((tmp_path / "next/report.json").read_text())
    counts = dict(zip(report["labels"], report["train_counts"], strict=True))
    assert counts == {"red": 22, "green": 20, "blue": 20, "grey": 4, "violet": 4}
    recipe = yaml.safe_load((tmp_path / "next/recipe.yaml").read_text())
    assert recipe["add"] == [str(out), str(errors)]


def test_errors_of_texts_with_the_same_beginning_are_those_of_their_rows():
    rows = [Row(i, (f"{'word ' * 120}{i}",), "a") for i in range(1, 4)]
    start = cleaned(rows[0].texts[0], 500)
    error = {"text": start, "place": "row 2", "given": 0, "suggested": 1, "score": 0.9}
    report = {"labels": ["a", "b"], "label_errors": [error, {**error, "place": "line 1"}]}
    texts = [row["text"] for row in label_errors(report, rows)]
    assert texts == [rows[1].texts[0], rows[0].texts[0]]
    assert [row["place"] for row in label_errors(report, [])] == ["row 2", "line 1"]
    assert label_errors(report, [Row(2, ("another",), "a")]) == []


@pytest.mark.parametrize("given", [{"output": "a"}, {"output": "out", "check": "b"}])
def test_inputs_are_not_overwritten(given: dict[str, str], tmp_path: Path):
    tiny.made(tmp_path / "model", "classification")
    files = {name: tmp_path / f"{name}.csv" for name in ("a", "b", "out")}
    for name in ("a", "b"):
        write([("a b", "ant"), ("c d", "zebra")], files[name])
    given = {name: files[file] for name, file in given.items()}
    with pytest.raises(InputError, match="read by this command"):
        ownbert.to_label(tmp_path / "model", files["a"], train=files["b"], **given)
    assert [row["text"] for name in ("a", "b") for row in read(files[name])] == ["a b", "c d"] * 2
    assert not files["out"].exists()


def test_added_rows_have_columns_of_their_own(tmp_path: Path):
    train = tmp_path / "train.jsonl"
    train.write_text('{"review": "a b", "sentiment": 1}\n{"review": "c d", "sentiment": 0}\n')
    named = ColumnNames(text="review", label="sentiment")
    labels = {"e": "1", "a  b": "0", "f": None}
    added = [{"text": text, "label": label} for text, label in labels.items()]
    table, notes = with_added(train, added, named, None)
    found = list(table.read(["review", "sentiment"]))
    assert [values for _, values in found] == [("c d", 0), ("e", "1"), ("a  b", "0")]
    assert len(notes) == 2


def test_label_studio_there_and_back(made: Path, tmp_path: Path):
    out = tmp_path / "tasks.json"
    ownbert.to_label(made / "best", made / "corpus.txt", out, count=4)
    tasks = json.loads(out.read_text(encoding="utf-8"))
    result = tasks[0]["predictions"][0]["result"][0]
    assert result["value"]["choices"] == [tasks[0]["data"]["suggested"]]
    assert (result["type"], result["from_name"], result["to_name"]) == ("choices", "label", "text")

    def annotation(label: str, *, cancelled: bool = False) -> dict:
        value = {**result, "value": {"choices": [label]}}
        return {"was_cancelled": cancelled, "result": [value]}

    cancelled = annotation("x", cancelled=True)
    annotations = [[annotation("green"), annotation("red"), cancelled], [cancelled]]
    annotations += [[annotation("violet")], []]
    tasks = [task | {"annotations": own} for task, own in zip(tasks, annotations, strict=True)]
    path = tmp_path / "export.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    labels = [values[0] for _, values in read_export(path).read(["label"])]
    assert labels == ["red", None, "violet", None]
    table, notes = with_added(made / "train.csv", [path], ColumnNames(), None)
    rows = {text: label for _, (text, label) in table.read(["text", "label"])}
    assert rows[tasks[2]["data"]["text"]] == "violet"
    assert tasks[1]["data"]["text"] not in rows
    assert "without a label, left out: 2" in notes[0]


def test_what_more_labels_would_bring():
    curve = {"at": [25, 50, 100, 200], "reason": "", "limit": 0.9, "slope": 2.0, "exponent": 0.5}
    # 2 / sqrt(200) - 2 / sqrt(250) = .0149; with 400 rows .0414.
    text = worth_of_labels({"learning_curve": curve}, 50)
    assert text == "50 more labels would gain about +0.015, twice as many +0.041"
    text = worth_of_labels({"learning_curve": {**curve, "slope": 0.1}}, 50)
    assert text.startswith("the curve is flat: 50 more labels would gain about +0.001")
    unknown = {**curve, "reason": "scores vary", "slope": None}
    assert worth_of_labels({"learning_curve": unknown}, 50).endswith("is unknown: scores vary")
    assert "no learning curve" in worth_of_labels({}, 50)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("BEST", "-o", "out.xyz"), "its name must end with"),
        (("BEST", "-o", "out.csv", "-n", "0"), "1 or more"),
        (("BEST", "-o", "out.csv", "--text-column", "x"), "text"),
        (("missing", "-o", "out.csv"), "no such folder: missing"),
        (("BEST", "-o", "out.csv", "--check", "e.xyz"), "its name must end with"),
        (("BEST", "-o", "out.csv", "--train", "missing.csv"), "missing.csv"),
        (("DAMAGED", "-o", "out.csv"), "report.json"),
        (("WITHOUT", "-o", "out.csv", "--check", "e.csv"), "report.json"),
    ],
)
def test_mistakes_are_one_line(
    made: Path, tmp_path: Path, arguments: tuple, message: str, monkeypatch: pytest.MonkeyPatch
):
    folder, *rest = arguments
    if folder != "missing":
        copy = shutil.copytree(made / "best", tmp_path / folder)
        if folder == "DAMAGED":
            (copy / "report.json").write_text('{"learning_curve": {"at": "x"}}')
        if folder == "WITHOUT":
            (copy / "report.json").unlink()
    texts = made / ("train.csv" if "--text-column" in rest else "corpus.txt")
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    assert message in refusal("label", folder, "--unlabelled", texts, *rest)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"text": "a", "choice": "b"}]', "task 1 is not a task of a Label Studio JSON export"),
        ('[{"data": {"text": "a"}, "annotations": [{}]}]', "task 1 is not a task of a Label"),
        ("[1]", "task 1 is not a task of a Label Studio"),
        ("[", "JSON"),
        ('[{"data": {"text": "a"}, "annotations": []}]', "no row has a label yet"),
    ],
)
def test_exports_that_are_none_are_one_line(made: Path, tmp_path: Path, content: str, message: str):
    path = tmp_path / "export.json"
    path.write_text(content)
    add = ("fit", made / "train.csv", "-o", tmp_path / "out", "--add")
    assert message in refusal(*add, path)
    pool = tmp_path / "pool.csv"
    pool.write_text("text,note\na b,x\nc d,x\n")
    assert "pool.csv has no column 'label'" in refusal(*add, pool)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``made``, with any number of labels per text; grey is rare."""

    def make(folder: Path) -> None:
        rng = random.Random(1)
        kinds = [(), *((t,) for t in TOPICS), ("red", "green"), ("green", "blue"), ("red", "blue")]
        drawn = [kinds[i % len(kinds)] for i in range(140)] + [("grey",)] * 4
        rows = [(text_of(own or ("plain",), rng), "|".join(own)) for own in drawn]
        write(rows, folder / "train.csv")
        texts = [text_of(own or ("plain",), rng) for own in kinds for _ in range(30)]
        texts += [text_of(("grey",), rng) for _ in range(5)]
        texts += [text_of((topic, "plain"), rng) for topic in TOPICS for _ in range(8)]
        rng.shuffle(texts)
        (folder / "corpus.txt").write_text("\n".join(texts), encoding="utf-8")
        options = {"task": "multilabel", "quiet": True}
        ownbert.fit(folder / "train.csv", minutes=0.3, output=folder / "best", **options)

    return made_once(tmp_path_factory, "sets-to-label", make)


def test_sets_of_labels_are_as_uncertain_as_their_labels_on_average():
    found = uncertainty_of_sets(np.asarray([[0.5, 0.5], [1.0, 0.0], [0.5, 1.0], [0.25, 0.75]]))
    np.testing.assert_allclose(found, [1, 0, 0.5, 0.811278], atol=1e-6)


def test_texts_with_several_labels_are_chosen(sets: Path, tmp_path: Path):
    out = tmp_path / "to_label.csv"
    line = ("--unlabelled", sets / "corpus.txt", "-n", 12, "-o", out, "--train", sets / "train.csv")
    done = run_cli("label", sets / "best", *line)
    assert done.returncode == 0, done.stderr
    rows = read(out)
    assert len({row["text"] for row in rows}) == 12
    predictor = ownbert.Predictor(sets / "best")
    for row in rows:
        labels = (each["label"] for each in predictor(row["text"]))
        assert json.loads(row["suggested"]) == sorted(labels, key=list(predictor.labels).index)
        assert 0.5 < float(row["score"]) <= 1
        assert row["reason"].startswith(("undecided about", "may have the rare label grey"))
    rare = ["grey" in row["suggested"] for row in rows]
    assert rare == sorted(rare, reverse=True)  # they come first
    texts = (sets / "corpus.txt").read_text(encoding="utf-8").splitlines()
    known = {" ".join(text.split()) for text in texts}
    means = [
        uncertainty_of_sets(predictor.predict_proba(list(some))).mean()
        for some in ([row["text"] for row in rows], known)
    ]
    assert means[0] > 1.3 * means[1]
    answers = ["red;blue", "[]", '["green"]', "red|grey", *[""] * 8]
    write([(row["text"], own) for row, own in zip(rows, answers, strict=True)], out)
    table, notes = with_added(sets / "train.csv", out, ColumnNames(), "multilabel")
    assert "labelled rows added: 4" in notes[0]
    assert len(list(table.read(["label"]))) == 144 + 4


def test_label_studio_gets_sets_of_labels(sets: Path, tmp_path: Path):
    out = tmp_path / "tasks.json"
    rows = ownbert.to_label(sets / "best", sets / "corpus.txt", out, count=4)
    tasks = json.loads(out.read_text(encoding="utf-8"))
    chosen = [task["predictions"][0]["result"][0]["value"]["choices"] for task in tasks]
    assert chosen == [row["suggested"] for row in rows]
    with pytest.raises(InputError, match="omit check"):
        ownbert.to_label(sets / "best", ["a"], check=tmp_path / "errors.csv")


def test_other_tasks_are_refused(tmp_path: Path):
    train = write([(f"a b {i}", str(i + 0.5)) for i in range(30)], tmp_path / "train.csv")
    ownbert.fit(train, minutes=0.1, output=tmp_path / "out", quiet=True)
    with pytest.raises(InputError, match="labels for single texts"):
        ownbert.to_label(tmp_path / "out", ["a b"])
