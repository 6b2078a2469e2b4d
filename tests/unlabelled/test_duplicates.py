"""Duplicates: exact and near ones, inside of a file and between files, and which one is kept."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ownbert
from ownbert.unlabelled.duplicates import HASHES, normalised, signatures
from support.cli import refusal, run_cli
from support.tiny import made

WORDS = [f"{a}{b}" for a in ("al", "bor", "cin", "dul", "fen", "gar") for b in ("eto", "usk", "im")]


def sentence(rng: random.Random, words: int = 30) -> list[str]:
    return [rng.choice(WORDS) for _ in range(words)]


@pytest.fixture
def texts() -> list[str]:
    """Twelve: 5 is 0 in capitals and with signs, 7 is 1 with another word, 9 is 1 and more."""
    rng = random.Random(3)
    found = [" ".join(sentence(rng)) for _ in range(12)]
    found[5] = f"{found[0].upper()} !"
    found[7] = found[1].replace(found[1].split()[4], "zzz", 1)
    found[9] = f"{found[1]} xylo"
    return found


def test_exact_and_near_duplicates_are_grouped(texts: list[str]):
    found = ownbert.duplicates(texts)
    assert found.dropped.tolist() == [5, 7, 9]
    assert found.kept.tolist() == [0, 1, 2, 3, 4, 6, 8, 10, 11]
    assert (found.exact, found.leaks) == (1, 0)
    rows = [[(each.row, each.kept) for each in group] for group in found.groups]
    assert rows == [[(1, True), (6, False)], [(2, True), (8, False), (10, False)]]
    assert found.groups[0][1].similarity == 1
    assert 0.8 <= found.groups[1][1].similarity < 1


def test_words_with_other_vowel_signs_are_no_duplicates():
    """Combining marks are not punctuation: these words differ in nothing else."""
    texts = ["दिन अच्छा है", "दान अच्छा है", "ปิด", "ปีด", "g\u0303a", "g a", "ñ"]
    assert ownbert.duplicates([*texts, "दिन, अच्छा है।", "n\u0303!"]).dropped.tolist() == [7, 8]
    assert normalised("❤\ufe0f good ☺\ufe0f") == "good"


def test_a_missing_text_is_a_blank_row(texts: list[str], pretrained: Path, tmp_path: Path):
    """Null in jsonl, None in a DataFrame and an empty cell, for all that read single texts."""
    some = [*texts[:3], None, *texts[3:6]]
    lines = (json.dumps({"text": text, "n": 0}) + "\n" for text in some)
    (tmp_path / "a.jsonl").write_text("".join(lines))
    pd.DataFrame({"text": some, "n": 0}).to_csv(tmp_path / "a.csv", index=False)
    sources = [tmp_path / "a.jsonl", tmp_path / "a.csv", pd.DataFrame({"text": some})]
    index = tmp_path / "index"
    for source in sources:
        assert ownbert.duplicates(source).dropped.tolist() == [6]
        assert [scored.text for scored in ownbert.score(pretrained, source)][3] == ""
        assert len(ownbert.topics(pretrained, source, count=2).of_text) == 7
        assert len(ownbert.build_index(pretrained, source, index, overwrite=True)) == 7


@pytest.mark.parametrize(
    ("options", "dropped"), [({"keep": "longest"}, [0, 1, 7]), ({"threshold": 1}, [5])]
)
def test_the_longest_is_kept_and_equal_texts_alone_are_found_if_asked(
    options: dict, dropped: list[int], texts: list[str]
):
    assert ownbert.duplicates(texts, **options).dropped.tolist() == dropped


def test_rows_of_others_stay(texts: list[str]):
    others = [texts[9], texts[3], "something else entirely"]
    found = ownbert.duplicates(texts[:9], others)
    assert found.dropped.tolist() == [1, 3, 5, 7]
    assert (found.exact, found.leaks) == (2, 3)
    assert len(found.groups) == 3


@pytest.mark.parametrize("vectors", [False, True])
def test_rows_of_others_stay_apart(vectors: bool, texts: list[str], pretrained: Path):
    """A row equals one of the others, even if that one is near another or has the same pieces."""
    some = [texts[1], texts[7], texts[9], "aaaaaaaa", "aaaaaaaaa"]
    options = {"model": pretrained, "threshold": 0.1} if vectors else {}
    found = ownbert.duplicates(some, some, **options)
    assert (found.exact, found.leaks) == (5, 5)
    rows = sorted((each.row, each.similarity) for group in found.groups for each in group)
    assert rows == sorted([(number, 1.0) for number in range(1, 6)] * 2)


def test_what_is_dropped_is_like_what_is_kept():
    """In a chain of small changes the ends are no duplicates of each other."""
    rng = random.Random(5)
    words, chain = sentence(rng, 40), []
    for place in range(40):
        words[place] = f"new{place}"
        chain.append(" ".join(words))
    found = ownbert.duplicates(chain)
    assert 2 < len(found.kept) < 20
    assert all(each.similarity >= 0.8 for group in found.groups for each in group)


def test_signatures_estimate_the_share_of_common_pieces():
    rng = random.Random(1)
    one = sentence(rng, 60)
    two = [*one[:40], *sentence(rng, 20)]
    sets = []
    for words in (one, two):
        padded = f" {' '.join(words)} "
        sets.append({padded[i : i + 5] for i in range(len(padded) - 4)})
    exact = len(sets[0] & sets[1]) / len(sets[0] | sets[1])
    signed = signatures([" ".join(one), " ".join(two)])
    assert signed.shape == (2, HASHES)
    assert abs((signed[0] == signed[1]).mean() - exact) < 4 * np.sqrt(0.25 / HASHES)


@pytest.mark.parametrize(
    ("one", "two"),
    [("Hello, World!", "hello world"), ("ａｂｃ  1", "ABC 1"), ("", "  "), ("！？", "!?")],
)
def test_normalised_texts_are_equal(one: str, two: str):
    assert normalised(one) == normalised(two)


def test_texts_without_pieces_are_compared_as_they_are():
    assert normalised("!") != normalised("?")
    assert ownbert.duplicates(["a", "b", "", "A", " ", "?"]).dropped.tolist() == [3]


def test_vectors_of_a_model_find_duplicates(pretrained: Path):
    texts = ["red1 red2 red3 9", "green1 w2 9", "Red1 red2, red3 9", "red2 red1 red3 9", "blue9 w7"]
    found = ownbert.duplicates(texts, model=pretrained, threshold=0.9)
    vectors = ownbert.Embedder(pretrained).encode(texts, normalize=True)
    cosines = vectors @ vectors.T
    assert 2 in found.dropped  # the same after normalising, whatever the vectors
    for row in (1, 3, 4):
        before = [i for i in found.kept if i < row]
        assert (row in found.dropped) == (cosines[row, before].max() >= 0.9)


def test_a_table_keeps_its_columns(texts: list[str], tmp_path: Path):
    rows = [{"label": f"l{i}", "text": text, "note": 'a "b", c'} for i, text in enumerate(texts)]
    for name, given in (("train", rows), ("test", rows[3:5])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["label", "text", "note"])
            writer.writeheader()
            writer.writerows(given)
    names = {name: tmp_path / name for name in ("clean.csv", "groups.jsonl")}
    options = ("-o", names["clean.csv"], "--groups", names["groups.jsonl"])
    line = ("duplicates", tmp_path / "train.csv", "--against", tmp_path / "test.csv")
    done = run_cli(*line, *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("12 rows, 5 of them duplicates: 3 exact, 2 near\n2 of them")
    with names["clean.csv"].open(newline="") as file:
        assert list(csv.DictReader(file)) == [rows[i] for i in (0, 1, 2, 6, 8, 10, 11)]
    groups = [json.loads(line) for line in names["groups.jsonl"].read_text().splitlines()]
    assert len(groups) == 9
    kept = {(Path(each["source"]).name, each["row"]) for each in groups if each["keep"]}
    assert kept == {("train.csv", 1), ("train.csv", 2), ("test.csv", 1), ("test.csv", 2)}


def test_lines_stay_as_they_are(tmp_path: Path):
    rows = [{"text": "red one here"}, {"text": "Red one, here", "more": [1]}, {"text": "b", "x": 2}]
    lines = [json.dumps(row, indent=None, separators=(", ", ":  ")) for row in rows]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    ownbert.duplicates(tmp_path / "in.jsonl", output=tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [lines[0], lines[2]]
    (tmp_path / "in.txt").write_text("one text\nanother one\n\nONE TEXT\n")
    ownbert.duplicates(tmp_path / "in.txt", output=tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == "one text\nanother one\n\n"


def test_blank_lines_between_documents_stay(tmp_path: Path):
    lines = ["one text", "more of it", "", "another one", "", "one text", " ", "last"]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    found = ownbert.duplicates(tmp_path / "in.txt", output=tmp_path / "out.txt")
    assert found.dropped.tolist() == [5]
    assert (tmp_path / "out.txt").read_text().splitlines() == lines[:5] + lines[6:]


def test_no_text_is_dropped_as_a_duplicate_of_a_blank_row(tmp_path: Path):
    """The vector of a blank text is like those of short ones."""
    made(tmp_path)
    assert ownbert.duplicates(["", "a", "a b", " "], model=tmp_path).kept.tolist() == [0, 1, 3]
    found = ownbert.duplicates(["a", "a b"], against=["", " "], model=tmp_path)
    assert (found.kept.tolist(), found.leaks) == ([0], 0)


def test_a_device_is_for_a_model(tmp_path: Path):
    (tmp_path / "rows.txt").write_text("one\ntwo\n")
    line = refusal("duplicates", tmp_path / "rows.txt", "--device", "cpu", "-o", tmp_path / "out")
    assert "--device" in line
    assert "--model" in line
    assert not (tmp_path / "out").exists()


def test_mistakes_leave_nothing(tmp_path: Path):
    (tmp_path / "rows.csv").write_text("label,text\nx,w1 w2\ny,w1 w2\n")
    (tmp_path / "broken.csv").write_text('label,text\nx,w1\ny,"w2\n')
    before = sorted(tmp_path.rglob("*"))
    rows, output = tmp_path / "rows.csv", tmp_path / "new" / "out.csv"
    for wrong in (
        ("duplicates", tmp_path / "none.csv", "-o", output),
        ("duplicates", tmp_path / "broken.csv", "-o", output),
        ("duplicates", rows, "--against", tmp_path / "none.csv", "-o", output),
        ("duplicates", rows, "--threshold", "1.5", "-o", output),
        ("duplicates", rows, "--threshold", "0", "-o", output),
        ("duplicates", rows, "--keep", "last", "-o", output),
        ("duplicates", rows, "-o", rows),
        ("duplicates", rows, "-o", tmp_path / "new" / "out.txt"),
        ("duplicates", rows, "-o", output, "--groups", tmp_path / "new" / "groups.png"),
        ("duplicates", rows, "-o", output, "--model", tmp_path / "none"),
    ):
        refusal(*wrong)
        assert sorted(tmp_path.rglob("*")) == before, wrong
