"""Pairs out of files, and the ordinary ways in which files are wrong."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer
from ownbert.translation.translation_pairs import PairData, Pairs, hold_out, read_pairs
from ownbert.translation.translation_recipe import PairFiles

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def written(folder: Path, name: str, *lines: str) -> str:
    path = folder / name
    text = "".join(f"{line}\n" for line in lines)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return str(path)


def test_two_files(tmp_path: Path):
    source = written(tmp_path, "a.de.gz", "ein Hund", "", "zwei Katzen")
    target = written(tmp_path, "a.en", "a dog", "nothing", "two cats")
    pairs = read_pairs(PairFiles(source=source, target=target))
    assert pairs == Pairs(["ein Hund", "zwei Katzen"], ["a dog", "two cats"], empty=1)
    assert read_pairs(PairFiles(source=source, target=target), dev=True) is None


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("a.tsv", ["de\ten", "ein Hund\ta dog"]),
        ("a.csv", ["de,en", "ein Hund,a dog"]),
        ("a.jsonl", ['{"de": "ein Hund", "en": "a dog"}']),
    ],
)
def test_tables(tmp_path: Path, name: str, lines: list[str]):
    path = written(tmp_path, name, *lines)
    assert read_pairs(PairFiles(pairs=path)) == Pairs(["ein Hund"], ["a dog"])
    files = PairFiles(dev_pairs=path, source_column="en", target_column="de")
    assert read_pairs(files, dev=True) == Pairs(["a dog"], ["ein Hund"])


def test_a_table_without_a_header(tmp_path: Path):
    path = written(tmp_path, "a.tsv", "ein Hund\ta dog", "zwei Katzen\ttwo cats")
    with pytest.warns(match="the first line, 'ein Hund, a dog', is read as a header"):
        assert read_pairs(PairFiles(pairs=path)) == Pairs(["zwei Katzen"], ["two cats"])


def test_wrong_files(tmp_path: Path):
    two, three = written(tmp_path, "2", "a", "b"), written(tmp_path, "3", "a", "b", "c")
    table = written(tmp_path, "t.tsv", "de\ten\tfr", "ein\tone\tun")
    blank = written(tmp_path, "blank", "", " ")
    for files, said in (
        (PairFiles(source=two, target=three), "has 2 lines and .*3 3; line n"),
        (PairFiles(source=two), "target is needed"),
        (PairFiles(target=two), "source is needed"),
        (PairFiles(source=two, target=two, pairs=table), "pairs and source are both given"),
        (PairFiles(pairs=table), "columns de, en, fr; choose with source_column"),
        (PairFiles(source=two, target=blank), "no pair has text on both sides"),
        (PairFiles(source=two, target=table), "is a table; give it as pairs"),
        (PairFiles(source=two, target="nothing.txt"), "no such file"),
    ):
        with pytest.raises(InputError, match=said):
            read_pairs(files)


def test_examples():
    tokenizer = Tokenizer.blank([*SPECIAL, *"abcd"])
    data = PairData(Pairs(["a b", "c"], ["b", "d d c"]), tokenizer, tokenizer, max_length=8)
    example = data.example(0, 1)
    assert example.source is not None
    assert example.tags is not None
    assert example.source.token_ids.tolist() == [2, 7, 3]
    assert example.token_ids.tolist() == [2, 8, 8, 7]
    assert example.tags.tolist() == [8, 8, 7, 3]
    assert np.array_equal(data.sizes, [4 + 2, 3 + 4])
    assert data.identity().startswith("2 pairs")


def test_long_pairs_are_left_out_and_counted():
    tokenizer = Tokenizer.blank([*SPECIAL, *"abcd"])
    pairs = Pairs(["a a a a", "a", "a"], ["b", "b", "b b b b"])
    data = PairData(pairs, tokenizer, tokenizer, max_length=5)
    assert (len(data), data.long) == (1, 2)
    with pytest.raises(InputError, match="all 3 pairs have more than 2 tokens"):
        PairData(pairs, tokenizer, tokenizer, max_length=2)


def test_held_out_is_apart_and_the_same_again():
    pairs = Pairs([str(i) for i in range(100)], [str(-i) for i in range(100)])
    learnt, dev = hold_out(pairs, 0.1, 3)
    assert (len(learnt), len(dev)) == (90, 10)
    assert not set(learnt.sources) & set(dev.sources)
    assert hold_out(pairs, 0.1, 3) == (learnt, dev)
    with pytest.raises(InputError, match="only one pair"):
        hold_out(Pairs(["a"], ["b"]), 0.1, 0)
