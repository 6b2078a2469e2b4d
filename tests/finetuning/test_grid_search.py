"""Trying settings on the dev rows."""

import json
from pathlib import Path

import pytest

from ownbert import InputError, evaluate, finetune
from ownbert.finetuning.finetune import recipe_options
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.several_runs import combinations
from ownbert.nn.model import Model
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.train.log import read_log
from support.plots import matplotlib_installed


def tune(topics: Path, model: Path, output: Path, **options) -> Model:
    known = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True}
    found = finetune(model=model, output=output, **(known | options))
    assert isinstance(found, Model)
    return found


GRID = ("search.learning_rate=1e-6,2e-3", "search.epochs=[1, 3]", "model.head_init=random")


@pytest.fixture(scope="module")
def searched(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched") / "it"
    with matplotlib_installed():
        tune(topics, pretrained, folder, overrides=GRID)
    return folder


def test_the_best_of_all_combinations_is_kept(searched: Path, topics: Path):
    said = json.loads((searched / "search.json").read_text())
    assert [(r["learning_rate"], r["epochs"]) for r in said["runs"]] == [
        (1e-6, 1),
        (1e-6, 3),
        (2e-3, 1),
        (2e-3, 3),
    ]
    values = [run["measures"]["macro_f1"] for run in said["runs"]]
    assert said["best"] == values.index(max(values)) + 1 > 2
    assert evaluate(searched, topics / "dev.csv", precision="auto").macro_f1 == pytest.approx(
        max(values), abs=1e-6
    )
    card = (searched / "README.md").read_text()
    assert "# it" in card
    assert "run-" not in card
    for number, run in enumerate(said["runs"], 1):
        folder = searched / "search" / f"run-{number}"
        names = {path.name for path in folder.iterdir()}
        assert names == {"log.jsonl", "recipe.yaml", "curves.png"}
        rows = [row["macro_f1"] for row in read_log(folder) if row.get("evaluation")]
        assert max(rows) == pytest.approx(run["measures"]["macro_f1"])
        assert len(rows) == run["epochs"]
        assert run["seconds"] > 0


def test_a_finished_search_is_left_alone(searched: Path, topics: Path, pretrained: Path, capfd):
    time = (searched / "model.safetensors").stat().st_mtime_ns
    tune(topics, pretrained, searched, overrides=GRID, resume=True, quiet=False)
    assert "is finished" in capfd.readouterr().out
    assert (searched / "model.safetensors").stat().st_mtime_ns == time
    with pytest.raises(InputError, match="already contains"):
        tune(topics, pretrained, searched, overrides=GRID)


@pytest.mark.slow
def test_a_stopped_search_does_not_train_twice(
    topics: Path, pretrained: Path, tmp_path: Path, searched: Path, monkeypatch: pytest.MonkeyPatch
):
    trained: list[Path] = []
    whole = FinetuningRun.train

    def train(run: FinetuningRun, folder: FinetuneFolder, **how) -> Model:
        trained.append(folder.path)
        if len(trained) == 3:
            raise KeyboardInterrupt
        return whole(run, folder, **how)

    monkeypatch.setattr(FinetuningRun, "train", train)
    with pytest.raises(KeyboardInterrupt):
        tune(topics, pretrained, tmp_path / "it", overrides=GRID)
    assert not (tmp_path / "it" / "model.safetensors").exists()
    tune(topics, pretrained, tmp_path / "it", overrides=GRID, resume=True)
    assert [path.name for path in trained] == ["run-1", "run-2", "run-3", "run-3", "run-4"]
    name = "model.safetensors"
    assert (tmp_path / "it" / name).read_bytes() == (searched / name).read_bytes()


def test_the_flag_tries_shares_of_the_usual_rate(topics: Path, pretrained: Path):
    options = {"model": pretrained, "train": topics / "train.csv", "dev": topics / "dev.csv"}

    def tried(*overrides: str, **more) -> list[dict]:
        asked = recipe_options("classify", options | {"search": True} | more)
        run = FinetuningRun(resolve(FinetuneRecipe, overrides=overrides, options=asked))
        return list(combinations(run))

    # Of a model of hidden size 128 and few examples, whose head starts at a linear model.
    rates = [0.15e-3, 0.3e-3, 0.6e-3]
    assert len(tried()) == 18
    assert sorted({t["learning_rate"] for t in tried()}) == pytest.approx(rates)
    own = tried("search.epochs=[3]", "search.learning_rate=1e-5")
    assert {(t["epochs"], t["learning_rate"]) for t in own} == {(3, 1e-5)}
    assert {t["batch_size"] for t in own} == {16, 32}
    assert {t["learning_rate"] for t in tried(learning_rate=4e-4)} == {2e-4, 4e-4, 8e-4}


@pytest.mark.slow
def test_less_is_better_of_a_loss(topics: Path, pretrained: Path, tmp_path: Path, capfd):
    overrides = ("search.epochs=[1, 3]", "run.measure=loss")
    tune(topics, pretrained, tmp_path / "it", overrides=overrides, quiet=False)
    said = json.loads((tmp_path / "it" / "search.json").read_text())
    losses = [run["measures"]["loss"] for run in said["runs"]]
    assert said["best"] == losses.index(min(losses)) + 1
    table = capfd.readouterr().out
    assert "(best)" in table
    assert f"{min(losses):.4f}" in table


def test_what_cannot_be_searched_is_refused(topics: Path, pretrained: Path, tmp_path: Path):
    with pytest.raises(InputError, match="a search needs dev"):
        tune(topics, pretrained, tmp_path / "it", search=True, dev=None)
    with pytest.raises(InputError, match=r"a search cannot be combined with run.folds"):
        tune(topics, pretrained, tmp_path / "it", search=True, folds=2)
    with pytest.raises(InputError, match=r"run.max_steps would end all runs"):
        tune(topics, pretrained, tmp_path / "it", search=True, max_steps=9)
    assert not (tmp_path / "it").exists()
