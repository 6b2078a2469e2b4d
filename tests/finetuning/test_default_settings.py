"""How long and how fast a model is fine-tuned by default."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ownbert import finetune
from ownbert.finetuning.default_settings import DefaultSettings, is_small_and_own
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe


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
    told = any("--head-init linear has no effect" in line for line in run.summary())
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
    assert "the dev score was still falling: try --epochs 4" in shown
