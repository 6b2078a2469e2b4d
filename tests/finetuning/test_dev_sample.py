"""Of many dev rows a sample is evaluated during training, and all of them at the end."""

import json
from collections import Counter
from pathlib import Path

import pytest

from ownbert import evaluate, finetune
from ownbert.checkpoint import describe
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import stratified_sample
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe, FinetuneRun
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY
from ownbert.train.log import read_log


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
