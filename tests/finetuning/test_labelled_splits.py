"""Groups, samples of the dev rows, and default settings."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from ownbert import evaluate, finetune
from ownbert.checkpoint import describe
from ownbert.exceptions import InputError
from ownbert.finetuning.default_settings import DefaultSettings, is_small_and_own
from ownbert.finetuning.finetune import preview_finetuning, recipe_options
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import stratified_sample
from ownbert.finetuning.several_runs import _fold_members
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe, FinetuneRun
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY
from ownbert.train.log import read_log
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


def rows_of(*targets) -> list[Row]:
    return [Row(i, (f"text {i}",), target) for i, target in enumerate(targets)]


def test_labels_are_as_frequent_in_a_sample():
    rows = rows_of(*("a" if i % 10 else "b" for i in range(1000)))
    chosen = stratified_sample(rows, 100, seed=3)
    assert chosen == sorted(set(chosen))
    assert Counter(rows[i].target for i in chosen) == {"a": 90, "b": 10}
    assert chosen == stratified_sample(rows, 100, seed=3)
    assert chosen != stratified_sample(rows, 100, seed=4)


def test_numbers_are_distributed_alike_in_a_sample():
    rows = rows_of(*((float(i * 7 % 500),) for i in range(500)))
    values = sorted(rows[i].target[0] for i in stratified_sample(rows, 50, seed=0))
    assert [value // 10 for value in values] == list(range(50))


@pytest.mark.parametrize("target", [None, (), ("x", "y"), ["B-a", "O"], 2])
def test_rows_of_every_kind_can_be_drawn(target):
    answers = [(object(),), ()] * 20  # as of questions with an answer and without
    assert len(stratified_sample(rows_of(*[target] * 40), 9, seed=0)) == 9
    chosen = stratified_sample(rows_of(*answers), 10, seed=0)
    assert sum(i % 2 for i in chosen) == 5


@pytest.fixture
def many(topics: Path, tmp_path: Path) -> Path:
    """Dev rows that are many more than the training rows: the latter, over and over."""
    head, *lines = (topics / "train.csv").read_text().splitlines()
    path = tmp_path / "many.csv"
    path.write_text("\n".join([head, *lines * 5]) + "\n")
    return path


def test_the_sample_is_proportional_to_the_rows_of_an_evaluation(
    pretrained: Path, topics: Path, many: Path
):
    data = FinetuneData(train=str(topics / "train.csv"), dev=str(many))
    recipe = FinetuneRecipe(
        model=FinetuneModel(folder=str(pretrained)), data=data, run=FinetuneRun(epochs=12)
    )
    run = FinetuningRun(recipe)
    assert run.splits.sample is not None
    assert len(run.splits.sample) == 100
    assert "evaluates 100 of the dev documents during training, all of them at the end" in (
        run.summary()
    )
    # 60 rows an epoch, as long as the dev rows: three quarters of 240 in four epochs.
    run.splits.draw_sample(4 * run._trained_per_evaluation)
    assert len(run.splits.sample) == 180
    few = FinetuningRun(FinetuneRecipe(model=recipe.model, data=FinetuneData(train=str(many))))
    assert few.splits.sample is None


def test_a_search_compares_its_runs_on_all_dev_rows(
    pretrained: Path, topics: Path, many: Path, tmp_path: Path
):
    options = {"model": pretrained, "train": topics / "train.csv", "dev": many, "quiet": True}
    options |= {"precision": "float32", "overrides": ["search.epochs=[1, 2]"]}
    finetune("classify", output=tmp_path / "out", **options)
    found = json.loads((tmp_path / "out" / "search.json").read_text())
    best = found["runs"][found["best"] - 1]["measures"]
    assert best["macro_f1"] == pytest.approx(evaluate(tmp_path / "out", many).macro_f1)
    assert best["macro_f1"] == max(run["measures"]["macro_f1"] for run in found["runs"])


def test_thresholds_and_metrics_are_those_of_all_dev_rows(
    pretrained: Path, topics: Path, many: Path, tmp_path: Path
):
    options = {"model": pretrained, "train": topics / "train.csv", "dev": many, "quiet": True}
    options |= {"epochs": 2, "learning_rate": 1e-3, "precision": "float32"}
    finetune("multilabel", output=tmp_path / "one", **options)
    finetune("multilabel", output=tmp_path / "two", **options)
    card = (tmp_path / "one" / "README.md").read_text()
    scores = evaluate(tmp_path / "one", many).values
    assert f"{scores['micro_f1']:.4f}" in card
    # The choice of the rows is that of the seed: the runs are the same.
    one, two = (
        [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in log]
        for log in (read_log(tmp_path / name) for name in ("one", "two"))
    )
    assert one == two
    saved = [describe(tmp_path / name).values[KEY] for name in ("one", "two")]
    assert saved[0] == saved[1]


@pytest.mark.parametrize(("rows", "steps", "epochs"), [(8, 1, 50), (100, 7, 29), (280, 18, 12)])
def test_few_rows_are_learnt_in_enough_steps(rows: int, steps: int, epochs: int):
    assert DefaultSettings(rows, 384).epochs(steps) == epochs


def test_many_rows_as_before_but_for_a_small_model_of_ones_own():
    public, own = DefaultSettings(8000, 128), DefaultSettings(8000, 128, own=True)
    assert (public.epochs(250), public.learning_rate, public.batch_size) == (4, 5e-4, 32)
    assert (own.epochs(250), own.learning_rate) == (12, 1e-3)
    assert DefaultSettings(50_000, 128, own=True).epochs(1563) == 4


@pytest.mark.parametrize(("seen", "epochs"), [(1.0, 12), (0.5, 24), (0.1, 50)])
def test_long_documents_of_which_an_epoch_reads_a_part_have_more_of_them(seen: float, epochs: int):
    assert DefaultSettings(280, 128).epochs(18, seen) == epochs


def test_the_recipe_tells_who_made_a_model(tmp_path: Path):
    folder, path = str(tmp_path), tmp_path / "recipe.yaml"
    assert not is_small_and_own(folder, 128)
    path.write_text(yaml.safe_dump({"data": {"tokens": "t"}, "model": {"init_from": None}}))
    assert is_small_and_own(folder, 128)
    assert not is_small_and_own(folder, 384)
    path.write_text(yaml.safe_dump({"data": {"tokens": "t"}, "model": {"init_from": "bert"}}))
    assert not is_small_and_own(folder, 128)
    for other in ("data: {train: a.csv}\nmodel: {folder: b}\n", "- 1\n", "a: [\n", "model: 3\n"):
        path.write_text(other)
        assert not is_small_and_own(folder, 128)


def test_few_rows_are_evaluated_a_dozen_times_and_given_settings_win(
    pretrained: Path, topics: Path, tmp_path: Path
):
    """With an evaluation every two steps a run would end before it has learnt anything."""
    given: dict[str, Any] = {
        "model": pretrained,
        "train": topics / "train.csv",
        "dev": topics / "dev.csv",
    }
    finetune(output=tmp_path / "a", labels_per_class=4, **given)
    made = yaml.safe_load((tmp_path / "a" / "recipe.yaml").read_text())["run"]
    assert (made["epochs"], made["eval_every"], made["max_steps"]) == (50, 5, 50)
    finetune(output=tmp_path / "b", labels_per_class=4, epochs=3, **given)
    made = yaml.safe_load((tmp_path / "b" / "recipe.yaml").read_text())["run"]
    assert (made["epochs"], made["eval_every"], made["max_steps"]) == (3, 1, 3)


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 60), (8, 8), (30, 2)])
def test_epochs_are_passes_over_the_data_with_accumulated_batches_too(
    pretrained: Path, topics: Path, accumulate: int, steps: int
):
    """Four epochs of 15 batches, whether or not whole steps fit into an epoch."""
    given = {"train": str(topics / "train.csv"), "epochs": 4, "accumulate": accumulate}
    options = {"model.folder": str(pretrained), "task.name": "classify", "batch_size": 4, **given}
    run = FinetuningRun(resolve(FinetuneRecipe, options=options))
    assert run.recipe.run.max_steps == steps


@pytest.mark.parametrize("given", [{}, {"ngrams": 64}, {"head_init": "random", "ngrams": 64}])
def test_a_linear_head_that_cannot_be_is_told(pretrained: Path, topics: Path, given: dict):
    options = {"model.folder": str(pretrained), "train": str(topics / "train.csv"), **given}
    options = {"task.name": "classify", "head_init": "linear", **options}
    run = FinetuningRun(resolve(FinetuneRecipe, options=options))
    told = any("head_init='linear' has no effect" in line for line in run.summary())
    assert told == (given == {"ngrams": 64})


def test_a_score_that_still_rises_is_told(
    pretrained: Path, topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    out = tmp_path / "out"
    finetune(
        model=pretrained,
        train=topics / "train.csv",
        dev=topics / "dev.csv",
        output=out,
        epochs=2,
        measure="loss",
        head_init="random",
    )
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    first, last = (row["loss"] for row in rows if row.get("evaluation"))
    assert last < 0.99 * first
    shown = "".join(capsys.readouterr())
    assert "the dev score was still falling: try epochs=4" in shown
