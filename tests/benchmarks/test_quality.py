"""benchmarks/quality.py fills its table, resumes after an interruption, and chooses on dev rows."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import quality
from quality_baselines import BLEND, LINEAR, Candidate, Features, blend, choose
from quality_sets import DATA, TextSet, article_class, hold_out, load_set, several_labels


@pytest.fixture(scope="module")
def folder(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``topics`` with its corpus as the unlabelled text."""
    made = tmp_path_factory.mktemp("quality") / "topics"
    made.mkdir()
    for name in ("train.csv", "dev.csv", "test.csv"):
        shutil.copy(topics / name, made / name)
    shutil.copy(topics / "corpus.txt", made / "unlabelled.txt")
    return made


def run(folder: Path, out: Path, *arguments: str) -> list[quality.Cell]:
    quality.main(["--sets", str(folder), "--out", str(out), *arguments])
    return [json.loads(line) for line in out.read_text().splitlines()]


@pytest.mark.slow
def test_every_cell_is_filled(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ("--counts", "5", "all", "--draws", "1", "--methods", "majority", "linear")
    cells = run(folder, tmp_path / "out" / "cells.jsonl", *arguments)
    methods = ["majority", *LINEAR, BLEND]
    assert [(cell["labels_per_class"], cell["method"]) for cell in cells] == [
        (count, method) for count in (5, "all") for method in methods
    ]
    assert {cell["training_rows"] for cell in cells} == {15, 60}
    score = {(c["labels_per_class"], c["method"]): c["macro_f1"] for c in cells}
    assert score["all", "majority"] == pytest.approx(1 / 6)  # a third of the rows, one class of 3
    assert all(score["all", method] > 0.8 for method in methods[1:])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert [line.count("|") for line in lines] == [6] * 4
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        f"| {folder.name}, {n}" for n in (5, "all")
    ]
    best = max(score["all", method] for method in LINEAR)
    assert f"| {best:.3f} (".replace("0.", ".") in lines[3]


def test_an_interrupted_run_continues(folder: Path, tmp_path: Path):
    arguments = ("--counts", "5", "--draws", "2", "--methods", "majority", "TF-IDF + SVM")
    whole = run(folder, tmp_path / "whole.jsonl", *arguments)
    assert [cell["draw"] for cell in whole] == [0, 0, 1, 1]
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    part = tmp_path / "part.jsonl"
    part.write_text("".join(lines[:1]) + lines[1][:40])  # killed while it wrote the second one
    continued = run(folder, part, *arguments)
    assert part.read_text().startswith(lines[0])
    for cells in (whole, continued):
        for cell in cells:
            cell.pop("seconds")
    assert continued == whole
    size = part.stat().st_size
    run(folder, part, *arguments)
    assert part.stat().st_size == size


def test_folds_test_every_row_once(folder: Path):
    features = Features(load_set(str(folder)))
    splits = features.splits(5)
    tested = np.concatenate([test for _, test in splits])
    assert sorted(tested) == list(range(75))
    for dev, test in splits:
        assert sorted((*dev, *test)) == list(range(75))
        assert sorted(features.labels[test]) == ["blue"] * 5 + ["green"] * 5 + ["red"] * 5


def test_the_setting_is_chosen_on_dev_rows():
    rows = (["a", "b"], ["x", "y"])
    features = Features(TextSet("two", rows, rows, rows))
    right_on_dev = Candidate("dev", np.array([[1, 0], [0, 1], [0, 1], [1, 0]]))
    right_on_test = Candidate("test", np.array([[0, 1], [1, 0], [1, 0], [0, 1]]))
    result = choose(features, [right_on_test, right_on_dev], features.splits(1))
    assert result.settings == ("dev",)
    assert (result.dev_macro_f1, result.macro_f1, result.accuracy) == (1, 0, 0)


def test_the_blend_ignores_a_member_that_guesses():
    rng = np.random.default_rng(0)
    labels = [("a", "b", "c")[i] for i in rng.integers(0, 3, 200)]
    rows = (labels, ["x"] * 200)
    features = Features(TextSet("three", rows, rows, rows))
    splits = features.splits(1)
    wanted = np.array([["a", "b", "c"].index(label) for label in (*labels, *labels)])
    good = 2 * np.eye(3)[wanted] + rng.normal(size=(400, 3))
    guess = 5 * rng.normal(size=(400, 3))
    members = [choose(features, [Candidate("", s)], splits) for s in (good, guess)]
    found = blend(features, members, splits)
    assert found.macro_f1 > members[0].macro_f1 - 0.03
    assert members[1].macro_f1 < 0.45 < members[0].macro_f1


def test_rows_held_out_are_stratified():
    labels = ["a"] * 70 + ["b"] * 20 + ["c"] * 10
    rest, held = hold_out(labels, 11)
    assert sorted((*rest, *held)) == list(range(100))
    counts = [sum(labels[row] == label for row in held) for label in "abc"]
    assert counts == [8, 2, 1]


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        (
            "布雷斯地区布尔格站（）是法国的一个铁路车站，位于法国东部城市布雷斯地区布尔格。",
            "station",
        ),
        ("崔楷（），字季则，博陵郡安平县人，出自博陵崔氏的博陵第二房，北魏官员。", "official"),
        ("某某是一家公司，后来成为一所大学。", None),  # two classes
        ("富兰克林广场是美国华盛顿的一个城市广场。", None),
    ],
)
def test_the_class_of_an_article(sentence: str, label: str | None):
    assert article_class(sentence) == label


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason=f"its texts are in {DATA}")
def test_reports_have_any_number_of_labels():
    rows = several_labels()
    assert {part: len(own) for part, own in rows.items()} == {
        "train": 8000,
        "dev": 1000,
        "test": 2000,
    }
    assert len({label for labels, _ in rows["train"] for label in labels}) == 17
    counts = np.bincount([len(labels) for labels, _ in rows["train"]])
    assert len(counts) == 4
    assert 0.2 < counts[0] / counts.sum() < 0.3
    tokens = {token for _, text in rows["train"] for token in text.split()}
    assert len(tokens) <= 858
    assert all(token.isdigit() for token in tokens)
    assert rows == several_labels()
