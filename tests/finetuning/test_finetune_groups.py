"""Groups and times in ``finetune``: folds, dev rows and what is left out."""

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ownbert.exceptions import InputError
from ownbert.finetuning.finetune import preview_finetuning, recipe_options
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.several_runs import _fold_members
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from support.cli import run_cli


def table(path: Path, patients: range, visits: int) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "text", "label", "second", "day"])
        for patient in patients:
            for visit in range(visits):
                text = f"red{patient % 7} blue{visit} green{patient}"
                label, day = ("ab"[patient % 2], f"2024-{1 + visit:02}-{1 + patient % 28:02}")
                writer.writerow([patient, text, label, f"common{patient}x{visit}", day])
    return path


def run(model: Path, train: Path, task: str = "classify", **options: Any) -> FinetuningRun:
    given = {"model": str(model), "train": str(train), "text_column": "text", **options}
    return FinetuningRun(resolve(FinetuneRecipe, options=recipe_options(task, given)))


def groups(rows: Any) -> set[str]:
    return {row.group for row in rows}


def test_folds_keep_groups_together(pretrained: Path, tmp_path: Path):
    train = table(tmp_path / "t.csv", range(12), 3)
    made = run(pretrained, train, folds=4, group="patient")
    for member in _fold_members(made):
        rest, held_out = member.rows
        assert len(held_out or ()) == 9
        assert not groups(rest) & groups(held_out)
    made = run(pretrained, table(tmp_path / "few.csv", range(3), 6), folds=4, group="patient")
    with pytest.raises(InputError, match="rows that share a text or a group stay together"):
        _fold_members(made)


def test_training_rows_of_dev_groups_are_left_out(pretrained: Path, tmp_path: Path):
    train = table(tmp_path / "t.csv", range(12), 3)
    dev = table(tmp_path / "d.csv", range(10, 16), 2)
    made = run(pretrained, train, dev=str(dev), group="patient")
    assert len(made.splits.train_rows) == 30
    assert not groups(made.splits.train_rows) & groups(made.splits.dev_rows)
    assert "6 training rows share a group with a dev row: they are not trained on" in made.summary()
    warned = run(pretrained, train, dev=str(dev)).summary()
    assert any("several rows have the same 'patient'" in line for line in warned)
    with pytest.raises(InputError, match=r"nearly all rows of .* belong to groups of"):
        run(pretrained, train, dev=str(train), group="patient")


@pytest.mark.parametrize("group", [{}, {"group": "patient"}])
def test_the_latest_rows_become_dev_rows(group: dict, pretrained: Path, tmp_path: Path):
    train = table(tmp_path / "t.csv", range(12), 5)
    given = {"text_column": "text", "time_column": "day"}
    if group:
        with pytest.raises(InputError, match="so there is nothing to train on"):
            run(pretrained, train, **given, **group)  # each patient has late rows
        return
    made = run(pretrained, train, **given, labels_per_class=10)
    assert {row.texts[0].split()[1] for row in made.splits.dev_rows or ()} == {"blue4"}
    assert len(made.splits.dev_rows or ()) == 12
    assert len(made.splits.train_rows) == 20
    assert made.splits.parts[1].source == str(train)


def test_pairs_of_texts_of_a_group_that_is_held_out_are_not_trained_on(
    pretrained: Path, tmp_path: Path
):
    train = tmp_path / "t.csv"
    sentences = [" ".join(f"Red{i} blue{k} green{i}." for k in range(9)) for i in range(200)]
    lines = [f"{i % 30},{text}" for i, text in enumerate(sentences)]
    train.write_text("\n".join(["patient,text", *lines]))
    given: Any = {"text_column": "text", "group": "patient"}
    made = run(pretrained, train, "embed", **given).splits
    assert made.dev_rows
    assert made.train_rows
    assert not groups(made.train_rows) & groups(made.dev_rows)


def test_copies_of_a_text_make_no_pairs(pretrained: Path, tmp_path: Path):
    """They were on both sides of a split if they differed in a space, case or punctuation."""
    train = tmp_path / "t.txt"
    texts = [" ".join(f"Red{i} blue{k} green{i}." for k in range(9)) for i in range(100)]
    train.write_text("\n".join([*texts, *(f"{text.upper()} !" for text in texts)]))
    made = run(pretrained, train, "embed", text_column=None).splits
    assert len({row.line for row in (*made.train_rows, *(made.dev_rows or ()))}) == 100


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"group": "patient"}, "group has no effect without held-out rows"),
        ({"group": "label", "folds": 2}, "group is 'label', the column of the labels"),
        ({"group": "person", "folds": 2}, "no column 'person'"),
        ({"time_column": "day", "folds": 2}, "are both set, and each chooses the rows"),
        ({"time_column": "day", "dev": "t.csv"}, "both choose the dev rows"),
        ({"time_column": "text"}, "which is not a time"),
    ],
)
def test_what_cannot_be_split_is_one_line(given: dict, message: str, pretrained: Path, tmp_path):
    train = table(tmp_path / "t.csv", range(8), 3)
    given = {k: str(tmp_path / v) if k == "dev" else v for k, v in given.items()}
    with pytest.raises(InputError, match=message):
        run(pretrained, train, **given)


def test_other_tasks_have_groups_too(pretrained: Path, tmp_path: Path):
    words = tmp_path / "words.conll"
    words.write_text("red B-x\nblue O\n\ngreen O\nred B-x\n")
    with pytest.raises(InputError, match="plain text and has no columns"):
        run(pretrained, words, "tag", group="patient", folds=2, text_column=None)
    train = tmp_path / "tags.csv"
    rows = [f"{i % 6},red{i} blue{i},B-x O" for i in range(30)]
    train.write_text("\n".join(["doc,words,tags", *rows]))
    made = run(pretrained, train, "tag", group="doc", folds=3, text_column="words")
    for member in _fold_members(made):
        assert not groups(member.rows[0]) & groups(member.rows[1])


def test_the_command_explains_the_options(pretrained: Path, tmp_path: Path):
    train = table(tmp_path / "t.csv", range(8), 3)
    shown = preview_finetuning(
        "classify", model=pretrained, train=train, text_column="text", folds=2, group="patient"
    )
    assert "group: patient" in shown
    assert "(not used: second, day)" in shown
    text = run_cli("finetune", "classify", "--help").stdout
    assert "--group" in text
    assert "--time-column" in text
    assert "--group" not in run_cli("finetune", "image", "--help-all").stdout


def test_groups_of_rows_in_memory_and_of_recipes(pretrained: Path, tmp_path: Path):
    rows = pd.read_csv(table(tmp_path / "t.csv", range(12), 3))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {group: patient, text_column: text}\nrun: {folds: 3}\n")
    options = recipe_options("classify", {"model": str(pretrained)})
    made = FinetuningRun(
        resolve(FinetuneRecipe, config=recipe, options=options), sources=(rows, None)
    )
    members = [member.rows for member in _fold_members(made)]
    assert [len(held_out or ()) for _, held_out in members] == [12, 12, 12]
    assert not any(groups(rest) & groups(held_out) for rest, held_out in members)
    dates = rows.assign(day=pd.to_datetime(rows["day"]))
    options = {"model": str(pretrained), "text_column": "text", "time_column": "day"}
    made = FinetuningRun(
        resolve(FinetuneRecipe, options=recipe_options("classify", options)), sources=(dates, None)
    )
    earlier, latest = (
        [dates["day"][row.line - 1] for row in part or ()] for part in made.splits.rows
    )
    assert len(latest) == 7
    assert len(earlier) == 29
    assert max(earlier) < min(latest)
