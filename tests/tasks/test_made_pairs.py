"""Pairs that are made from single texts: which, from which files, and what is learnt from them."""

import gzip
import random
from pathlib import Path
from unicodedata import category

import numpy as np
import pytest
from typer.testing import CliRunner

from ownbert import InputError, evaluate, finetune
from ownbert.cli import app
from ownbert.finetuning.finetune import preview_finetuning
from ownbert.inference.open_folder import open_folder
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.embed import EmbeddingTask, hold_out
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import TextInputBuilder
from support.cli import refusal, run_cli
from support.floats import assert_close
from support.task_runs import read_jsonl, write_jsonl

LONG = " ".join(f"a{i}" for i in range(20))


def made(path: object, columns: ColumnNames | None = None) -> tuple[list[tuple[str, ...]], dict]:
    task = EmbeddingTask(columns=columns)
    rows = task.read(task.source(path, labelled=True))
    (counted,) = task.made_from.values()
    return [row.texts for row in rows], dict(counted.texts)


# Which pairs.


def test_pieces_lines_and_the_same_text_twice(tmp_path: Path):
    text = f"{LONG}\n\nw1 w2\n\none line\nand two\nand three\n\nw1 w2\n"
    (tmp_path / "texts.txt").write_text(text)
    pairs, counted = made(tmp_path / "texts.txt")
    assert " ".join(pairs[0]) == LONG
    assert 6 <= len(pairs[0][0].split()) <= 14
    assert pairs[1:] == [("w1 w2", "w1 w2"), ("one line", "and two and three")]
    assert counted == {"pieces": 1, "twice": 1, "lines": 1}


def test_a_long_text_gives_several_pairs_and_loses_nothing(tmp_path: Path):
    words = [f"a{i}" for i in range(1000)]
    (tmp_path / "texts.txt").write_text(" ".join(words) + "\n")
    pairs, _ = made(tmp_path / "texts.txt")
    assert len(pairs) > 3
    assert " ".join(piece for pair in pairs for piece in pair).split() == words


def test_pieces_do_not_start_with_a_vowel_sign(tmp_path: Path):
    text = "ที่นี่กี่ครั้ง" * 100
    (tmp_path / "texts.txt").write_text(text + "\n")
    pieces = [piece for pair in made(tmp_path / "texts.txt")[0] for piece in pair]
    assert len(pieces) > 6
    assert "".join(pieces) == text
    assert not any(category(piece[0]).startswith("M") for piece in pieces)


def test_pieces_of_one_text_differ_in_length(tmp_path: Path):
    texts = [" ".join(f"{i}b{j}" for j in range(40 + i)) for i in range(50)]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    pairs, _ = made(tmp_path / "texts.txt")
    shares = [len(one.split()) / len(f"{one} {two}".split()) for one, two in pairs]
    assert np.std(shares) > 0.05
    assert min(shares) > 0.25
    assert max(shares) < 0.75


def test_text_without_blanks_is_cut_between_characters(tmp_path: Path):
    text = "今天天气很好我们一起去公园散步然后回家吃饭吧"
    (tmp_path / "texts.txt").write_text(f"{text}\n你好\n", encoding="utf-8")
    pairs, counted = made(tmp_path / "texts.txt")
    assert "".join(pairs[0]) == text
    assert pairs[1] == ("你好", "你好")
    assert counted == {"pieces": 1, "twice": 1}


# From which files.


def test_every_kind_of_file_gives_the_same_pairs(tmp_path: Path):
    texts = [LONG, "w1 w2", "w3 w4 w5"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("\n".join(texts))
    numbered = "".join(f"{i},{text}\n" for i, text in enumerate(texts))
    (tmp_path / "a.csv").write_text(f"id,text\n{numbered}")
    (tmp_path / "labels.csv").write_text("label,text\n" + "".join(f"x,{t}\n" for t in texts))
    write_jsonl(tmp_path / "a.jsonl", [{"content": text} for text in texts])
    expected = made(texts)
    assert len(expected[0]) == 3
    for name in ("a.txt", "a.txt.gz", "a.csv", "labels.csv", "a.jsonl"):
        assert made(tmp_path / name) == expected, name
    (tmp_path / "two.csv").write_text("note,text\n" + "".join(f"x y,{t}\n" for t in texts))
    assert made(tmp_path / "two.csv", ColumnNames(text="text")) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na b,c d\n", "it is unclear whether a row is one text or a pair; to mak"),
        ("question,answer\na b,c d\n", "text_column='question' second_column='answer'"),
        ("question,answer\na b,c d\n", "the columns are: question, answer"),
        ("text,score\na,1\n", "has one text per row, but two are needed"),
        ("text,negative\na,b\n", "has one text per row, but two are needed"),
        ("text\n\n", "rows.csv has no"),
    ],
)
def test_what_is_no_file_of_single_texts(tmp_path: Path, text: str, message: str):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        EmbeddingTask().read(tmp_path / "rows.csv")


# What is held out.


def test_other_texts_are_held_out():
    rows = [Row(i // 2, (f"a{i}", f"b{i}")) for i in range(400)]
    rows += [Row(1000 + i, ("c", "c")) for i in range(50)]
    train, dev = hold_out(rows, seed=0)
    assert dev is not None
    assert len(dev) == 20
    held = {row.line for row in dev}
    assert len(held) == 20
    assert not held & {row.line for row in train}
    assert len(train) == 450 - 40
    assert hold_out(rows, seed=0) == (train, dev)
    assert hold_out(rows, seed=1)[1] != dev
    few = rows[:80]
    assert hold_out(few, seed=0) == (few, None)


# Learning.


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of nine narrow topics, and some short ones; a topic's words differ in both halves."""
    path, rng = tmp_path_factory.mktemp("single") / "texts.txt", random.Random(3)
    lines = []
    for i in range(240):
        topic, number = ("red", "green", "blue")[i % 3], i // 3 % 3
        halves = [
            [f"{topic}{4 * number + 2 * side + rng.randint(0, 1)}" for _ in range(9)]
            for side in (0, 1)
        ]
        lines.append(" ".join(halves[0] + halves[1]))
    lines += [f"w{i} w{i + 1}" for i in range(9)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def learnt(texts: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "vectors"
    options = ["--model", str(pretrained), "--train", str(texts), "--epochs", "2"]
    done = CliRunner().invoke(app, ["finetune", "embed", *options, "-o", str(folder)])
    assert done.exit_code == 0, done.output
    (folder.parent / "output.txt").write_text(done.output)
    return folder


def test_the_run_says_what_pairs_it_made_and_compares_with_words(learnt: Path):
    shown = (learnt.parent / "output.txt").read_text()
    assert "made pairs of two pieces of a text from " in shown
    assert "made pairs of a text with itself from 9 short texts" in shown
    assert "held out pairs of 24 texts for evaluation" in shown
    assert "only TF-IDF: MRR 0." in shown or "only TF-IDF: MRR 1." in shown
    assert "TF-IDF without a network has MRR" in (learnt / "README.md").read_text()
    held_out = [row for row in read_jsonl(learnt / "log.jsonl") if row.get("evaluation")]
    assert held_out[0]["step"] == 0
    assert held_out[-1]["mrr"] > held_out[0]["mrr"]


def test_pieces_are_cut_at_other_places_in_each_epoch(learnt: Path, texts: Path):
    predictor, task = open_folder(learnt), EmbeddingTask()
    builder = TextInputBuilder(predictor.tokenizer, predictor.models[0].config, 64)
    rows = task.read(texts)
    task.learn(rows, texts)
    data = task.encode(rows, builder, training=True)
    lengths = {data.example(epoch, 0).parts for epoch in range(8)}
    assert len(lengths) > 2
    whole = data.examples[0].token_ids
    for epoch in range(4):
        example = data.example(epoch, 0)
        assert example.parts is not None
        assert sum(example.parts) == len(example.token_ids) == len(example.type_ids) == len(whole)
        size = example.parts[0]
        first, second = example.token_ids[:size], example.token_ids[size:]
        assert (first[0], first[-1]) == (second[0], second[-1]) == (whole[0], whole[-1])
        np.testing.assert_array_equal(
            np.concatenate([first[1:-1], second[1:-1]]), whole[_inner(data.examples[0].parts)]
        )
    short = len(rows) - 1
    assert data.example(3, short) is data.examples[short]


def _inner(parts: tuple[int, ...] | None) -> list[int]:
    """The places of the tokens of two texts, without special tokens."""
    assert parts is not None
    one, two = parts
    return [*range(1, one - 1), *range(one + 1, one + two - 1)]


def test_it_is_measured_on_texts_and_on_scored_pairs(
    learnt: Path, texts: Path, pretrained: Path, tmp_path: Path
):
    assert list(evaluate(learnt, texts).values) == [
        *("mrr", "recall_at_1", "recall_at_5", "recall_at_10")
    ]
    lines = ["text1,text2,score"]
    lines += [f"red{i} red{i + 1},{'red' if i % 2 else 'blue'}{i + 1},{i % 2}" for i in range(9)]
    (tmp_path / "scores.csv").write_text("\n".join(lines) + "\n")
    options = {"train": texts.read_text().splitlines(), "dev": tmp_path / "scores.csv"}
    output = tmp_path / "out"
    with pytest.raises(InputError, match="'loss'; embed has spearman, pearson"):
        finetune("embed", model=pretrained, output=output, measure="loss", quiet=True, **options)
    finetune("embed", model=pretrained, output=output, max_steps=2, quiet=True, **options)
    measured = [row for row in read_jsonl(output / "log.jsonl") if row.get("evaluation")]
    assert "spearman" in measured[0]
    assert "loss" not in measured[0]
    assert_close(evaluate(output, tmp_path / "scores.csv").spearman, measured[-1]["spearman"])


def test_labels_are_not_used_without_a_word(
    learnt: Path, texts: Path, pretrained: Path, tmp_path: Path
):
    """Only pairs with scores measure a folder without a task head; embed says what it made."""
    made = [*texts.read_text().splitlines()[:12], "red1 red2"]
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(made))
    (tmp_path / "labelled.csv").write_text(f"text,label\n{rows}")
    assert "has no task head" in refusal("evaluate", pretrained, tmp_path / "labelled.csv")
    done = run_cli("evaluate", learnt, tmp_path / "labelled.csv")
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        "note: made pairs of two pieces of a text from 12 texts",
        "note: texts that are too short for two pieces and are not used: 1",
        "note: the column 'label' is not used: pairs are made from the texts alone",
    ]


def test_short_texts_alone(learnt: Path, pretrained: Path, tmp_path: Path):
    texts = [f"red{i} blue{i}" for i in range(12)]
    with pytest.raises(InputError, match="data: its texts are too short to be cut into pieces"):
        evaluate(learnt, texts)
    shown = preview_finetuning("embed", model=pretrained, train=texts)
    assert "12 training and no dev pairs" in shown
    for options, message in (
        ({"train": texts, "dev": texts[:5]}, "dev: its texts are too short to be cut into pieces"),
        ({"train": texts, "dropout": 0.0}, "model.dropout is 0, and the training texts are too"),
        ({"train": ["red1 red2"] * 5}, "at least two pairs that differ"),
    ):
        with pytest.raises(InputError, match=message):
            preview_finetuning("embed", model=pretrained, **options)
