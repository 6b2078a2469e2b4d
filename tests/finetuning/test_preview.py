"""The dry run: what a newcomer sees before anything is trained."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ownbert.batches.batch import Example
from ownbert.finetuning.finetune import preview_finetuning
from ownbert.language import translated
from ownbert.tasks.text_input import UnknownWords, readable
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli
from support.tokenizer_folders import roberta_folder


def dry_run(*options: object) -> str:
    done = run_cli("finetune", *options, "--dry-run")
    assert done.returncode == 0, done.stderr
    return done.stdout


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_the_command_shows_all_and_writes_nothing(pretrained: Path, topics: Path, tmp_path: Path):
    odd = tmp_path / "train.csv"
    lines = (topics / "train.csv").read_text().splitlines()
    dev = (topics / "dev.csv").read_text().splitlines()
    swapped = "blue," + lines[1].partition(",")[2]
    odd.write_text("\n".join([*lines, swapped, "red,", "red," + "red1 " * 80, dev[3]]) + "\n")
    given = ("--model", pretrained, "--train", odd, "--dev", topics / "dev.csv")
    text = dry_run("classify", *given, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    recipe, _, rest = text.partition("\n\n")
    assert yaml.safe_load(recipe)["data"]["train"] == str(odd)
    assert rest.startswith("64 training and 30 dev documents, 3 labels")
    assert "columns: 'text' as input, 'label' as target" in rest
    assert line_of(rest, "labels, dev:") == "labels, dev: blue 33.3%, green 33.3%, red 33.3%"
    assert "longest 48; 1 documents are cut at 48" in line_of(rest, "tokens per sequence")
    assert f"{odd}, line 2 (red) and {odd}, line 62 (blue)" in rest
    assert f"1 training documents have an empty text: {odd}, line 63" in rest
    assert f"{topics / 'dev.csv'}, line 4 and {odd}, line 65" in rest
    shown = rest.partition("examples, as the model sees them:\n")[2].splitlines()
    assert len(shown) == 5
    assert all(": [CLS] " in line and line.endswith("[SEP]") for line in shown)


def test_lengths_are_those_of_the_texts(pretrained: Path, topics: Path):
    text = preview_finetuning(model=pretrained, train=topics / "train.csv")
    texts = [line.split(",")[1] for line in (topics / "train.csv").read_text().splitlines()[1:]]
    sizes = np.asarray([len(t.split()) + 2 for t in texts])
    sizes = np.minimum(sizes, 48)
    half, most, nearly = (round(float(np.percentile(sizes, p))) for p in (50, 90, 99))
    assert line_of(text, "tokens per sequence") == (
        f"tokens per sequence: median {half}, 90% up to {most}, 99% up to {nearly}, longest "
        f"{sizes.max()}; none is cut at 48"
    )


def test_of_many_labels_those_that_stand_out(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rng, path = random.Random(0), tmp_path / "many.csv"
    labels = [f"topic{i:02}" for i in range(30) for _ in range(i + 1)]
    rows = [f"{label},red{rng.randint(0, 11)} w{i % 31} 9" for i, label in enumerate(labels)]
    path.write_text("label,text\n" + "\n".join(rows) + "\n")
    line = line_of(preview_finetuning(model=pretrained, train=path), "labels, training:")
    assert line.startswith("labels, training: 30 in all; the most frequent: topic29 30 (6.5%), ")
    frequent, _, rarest = line.partition("; the rarest: ")
    assert frequent.count("topic") == 10
    assert rarest.split(", ")[-1] == "topic00 1 (0.2%)"
    assert rarest.count("topic") == 5
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    assert translated(line).startswith("标签（训练）：共 30 种；最常见的：topic29 30 (6.5%), ")


def test_texts_that_the_vocabulary_does_not_know_are_a_warning(pretrained: Path, tmp_path: Path):
    path = tmp_path / "train.csv"
    path.write_text("label,text\n" + "a,red1 unheard of 9\nb,green2 9\n" * 5)
    text = preview_finetuning(model=pretrained, train=path)
    # Two of the six words of each pair of rows; [CLS] and [SEP] do not count.
    assert "warning: 33.3% of the tokens are [UNK]" in text
    path.write_text("label,text\n" + "a,red1 9\nb,green2 9\n" * 5)
    assert "unknown tokens: 0.00%" in preview_finetuning(model=pretrained, train=path)


def test_pairs_are_shown_one_below_the_other(pretrained: Path, tmp_path: Path):
    path = tmp_path / "pairs.tsv"
    rows = ["red1 9\tblue2 9\tsame", "red2 9\tw1 9\tother"] * 4
    path.write_text("premise\thypothesis\tlabel\n" + "\n".join(rows) + "\n")
    text = preview_finetuning(model=pretrained, train=path)
    assert "'premise' and 'hypothesis' as input" in text
    assert "same:\n    [CLS] red1 9 [SEP]\n    blue2 9 [SEP]\n" in text


def test_choices_are_a_line_each(pretrained: Path, tmp_path: Path):
    path = tmp_path / "choices.tsv"
    rows = [f"red{i}\tblue1\tgreen2\t{i % 2}" for i in range(8)]
    path.write_text("prompt\tchoice0\tchoice1\tlabel\n" + "\n".join(rows) + "\n")
    text = dry_run("choose", "--model", pretrained, "--train", path, "-o", tmp_path / "out")
    assert "    [CLS] red0 [SEP] blue1 [SEP]\n    [CLS] red0 [SEP] green2 [SEP]\n" in text
    assert "tokens per sequence (up to 2 of them together): median 5" in text


def test_long_texts_lose_their_middle(pretrained: Path):
    tokenizer = Tokenizer.load(pretrained)
    words = tokenizer.encode_batch([" ".join(["red1"] * 200)])[0]
    ids = np.asarray([tokenizer.cls_id, *words, tokenizer.sep_id])
    (shown,) = readable(Example(ids, np.zeros_like(ids)), tokenizer)
    assert len(shown) == 200
    assert shown.startswith("[CLS] red1 ")
    assert "..." in shown
    assert shown.endswith(" red1 [SEP]")


def test_two_texts_with_two_separators_between_them(tmp_path: Path):
    tokenizer = Tokenizer.load(roberta_folder(tmp_path))
    one, two = tokenizer.encode_batch(["a", "b"])
    sep = tokenizer.sep_id
    ids = np.asarray([tokenizer.cls_id, *one, sep, sep, *two, sep])
    first, second = readable(Example(ids, np.zeros_like(ids)), tokenizer)
    assert first.startswith("<s> ")
    assert first.endswith(" </s>")
    assert second.startswith("</s> ")
    assert second.endswith(" </s>")


def test_the_share_of_unknown_tokens_of_no_text_at_all(pretrained: Path):
    tokenizer = Tokenizer.load(pretrained)
    ids = np.asarray([tokenizer.cls_id, tokenizer.sep_id])
    unknown = UnknownWords(tokenizer)
    unknown.count([ids])
    assert unknown.share == 0
    unknown.count([np.asarray([tokenizer.unk_id] * 9)])
    assert unknown.warning() == (
        "warning: 100.0% of the tokens are [UNK]: the model's vocabulary contains no word of these "
        "texts; use another model, or make one: ownbert vocab TEXTS -o MODEL, then ownbert "
        "prepare and ownbert pretrain"
    )


def test_labels_that_look_missing_get_a_warning(pretrained: Path, tmp_path: Path):
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "red1 9,NA\nred2 9,a\nred3 9,a\nred4 9,a\n" * 2)
    text = preview_finetuning("classify", model=pretrained, train=path)
    assert "\nwarning: the label 'NA' (rows: 2) looks like a missing value; if it" in text


@pytest.mark.parametrize("column", ["mood", "joy,anger"])
def test_columns_of_numbers_are_named(pretrained: Path, tmp_path: Path, column: str):
    path = tmp_path / "numbers.csv"
    rows = [f"{i},{i + 1},{i % 3},red{i} 9" for i in range(8)]
    path.write_text("mood,joy,anger,text\n" + "\n".join(rows) + "\n")
    text = preview_finetuning("regress", model=pretrained, train=path, label_column=column)
    named = ", ".join(repr(name) for name in column.split(","))
    assert f"columns: 'text' as input, {named} as target" in text


def test_training_warns_of_the_same_rows(pretrained: Path, topics: Path, tmp_path: Path, capfd):
    from ownbert import finetune

    rows = topics / "train.csv"
    finetune(model=pretrained, train=rows, dev=rows, output=tmp_path / "out", max_steps=1)
    said = capfd.readouterr().out
    assert "warning: 60 of 60 dev documents are training documents too" in said


def test_training_names_the_columns_that_are_not_used(pretrained: Path, tmp_path: Path, capfd):
    from ownbert import finetune

    rows = [{"Verlauf": f"red{i} 9", "text_pair": "x", "label": "ab"[i % 2]} for i in range(8)]
    how: Any = {"model": pretrained, "output": tmp_path / "out", "max_steps": 1}
    finetune(train=rows, text_column="Verlauf", **how)
    said = capfd.readouterr().out
    assert "columns: 'Verlauf' as input, 'label' as target (not used: text_pair)" in said
