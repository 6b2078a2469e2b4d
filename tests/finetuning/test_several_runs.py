"""Ensembles and searches."""

import json
import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from ownbert import InputError, evaluate, finetune, predict
from ownbert.finetuning.finetune import recipe_options
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import fold_of
from ownbert.finetuning.several_runs import Ensemble, combinations
from ownbert.inference.open_folder import open_folder
from ownbert.nn.model import Model
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.rows import Row
from ownbert.tasks.task import task_class
from ownbert.train.log import read_log
from ownbert.train.loop import Interrupted
from ownbert.train.loop import train as train_loop
from support.plots import matplotlib_installed


def tune(topics: Path, model: Path, output: Path, task: str | None = None, **options) -> Ensemble:
    given = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True, "epochs": 2}
    found = finetune(task, model=model, output=output, **(given | options))
    assert isinstance(found, Ensemble)
    return found


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_folds(rows: list[Row], folds: list[int]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row, fold in zip(rows, folds, strict=True):
        found.setdefault(fold, []).append(row)
    return found


def folds_of(rows: list[Row], count: int, seed: int) -> list[int]:
    task = task_class("classify")()
    return fold_of(rows, count, seed=seed, clusters=clusters_of([*map(task.fold_keys, rows)]))


def test_folds_have_the_same_shares_of_labels():
    labels = ["a"] * 50 + ["b"] * 25 + ["c"] * 10
    rows = [Row(i, (f"text {i}",), label) for i, label in enumerate(labels)]
    folds = in_folds(rows, folds_of(rows, 5, 1))
    assert len(folds) == 5
    for own in folds.values():
        assert Counter(row.target for row in own) == {"a": 10, "b": 5, "c": 2}
    assert folds_of(rows, 5, 1) != folds_of(rows, 5, 2)


def test_a_text_stands_on_one_side_only():
    texts = [(f"a{i % 13}", f"b{i}") for i in range(60)] + [("c", f"b{i}") for i in range(3)]
    rows = [Row(i, pair, "x") for i, pair in enumerate(texts)]
    folds = in_folds(rows, folds_of(rows, 3, 0))
    sides = [{text for row in own for text in row.texts} for own in folds.values()]
    assert len(folds) == 3
    assert not any(sides[i] & sides[j] for i in range(3) for j in range(i))
    # Words of sentences are no texts.
    words = [Row(i, ("the", f"word{i}")) for i in range(9)]
    keys = [*map(task_class("tag")().fold_keys, words)]
    sentences = fold_of(words, 3, seed=0, clusters=clusters_of(keys))
    assert Counter(sentences) == {0: 3, 1: 3, 2: 3}
    assert len(set(folds_of(words, 3, 0))) == 1


@pytest.fixture(scope="module")
def folds(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Ensemble:
    output = tmp_path_factory.mktemp("folds") / "it"
    # Folders are opened in float32: in bfloat16 a row between two labels may have the other one.
    return tune(topics, pretrained, output, folds=3, precision="float32")


def test_each_row_is_answered_by_the_model_that_has_not_seen_it(folds: Ensemble, topics: Path):
    said = json.loads((folds.folder / "ensemble.json").read_text())
    assert (said["kind"], said["format"]) == ("folds", 1)
    assert [m["folder"] for m in said["members"]] == ["fold-1", "fold-2", "fold-3"]
    assert [m["rows"] for m in said["members"]] == [40, 40, 40]
    lines = (topics / "train.csv").read_text().splitlines()[1:]
    rows = [Row(i, (t,), label) for i, (label, t) in enumerate(x.split(",") for x in lines)]
    own = folds_of(rows, 3, 0)
    predictors = [open_folder(folder) for folder in folds.members]
    truth, found = [], []
    for row, fold in zip(rows, own, strict=True):
        predictor = predictors[fold]
        found.append(predictor.task.output_row(predictor([row])[0], row)["label"])
        truth.append(row.target)
    assert folds.metrics["macro_f1"] == pytest.approx(f1_score(truth, found, average="macro"))
    right, fold = np.asarray(truth) == np.asarray(found), np.asarray(own)
    by_fold = [right[fold == i].mean() for i in range(3)]
    assert folds.mean["accuracy"] == pytest.approx(np.mean(by_fold))
    assert folds.spread["accuracy"] == pytest.approx(np.std(by_fold, ddof=1))


def test_an_ensemble_answers_with_the_mean(folds: Ensemble, topics: Path, tmp_path: Path):
    for name, folder in (("all", folds.folder), *((f.name, f) for f in folds.members)):
        predict(folder, topics / "test.csv", tmp_path / f"{name}.jsonl", probabilities=True)
    found = read(tmp_path / "all.jsonl")
    parts = [read(tmp_path / f"{f.name}.jsonl") for f in folds.members]
    for together, *alone in zip(found, *parts, strict=True):
        for label, p in together["probabilities"].items():
            assert p == pytest.approx(np.mean([a["probabilities"][label] for a in alone]), abs=2e-6)
    dev = evaluate(folds.folder, topics / "dev.csv")
    assert folds.dev["macro_f1"] == pytest.approx(dev.macro_f1)
    assert evaluate(folds.members[0], topics / "dev.csv").macro_f1 > 0.4
    assert "3 folds" in (folds.folder / "README.md").read_text()


@pytest.mark.slow
def test_seeds_differ_and_more_can_follow(
    topics: Path, pretrained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    first = tune(topics, pretrained, tmp_path / "it", seeds=2, seed=5, epochs=1)
    weights = {f: (f / "model.safetensors").read_bytes() for f in first.members}
    assert [f.name for f in first.members] == ["seed-5", "seed-6"]
    assert len(set(weights.values())) == 2
    times = {f: (f / "model.safetensors").stat().st_mtime_ns for f in first.members}
    more = tune(topics, pretrained, tmp_path / "it", seeds=3, epochs=1, resume=True, quiet=False)
    assert [f.name for f in more.members] == ["seed-5", "seed-6", "seed-7"]
    assert {f: (f / "model.safetensors").stat().st_mtime_ns for f in first.members} == times
    said = capfd.readouterr().out
    assert "averaged predictions" in said
    assert "standard deviation" in said
    members = json.loads((tmp_path / "it" / "ensemble.json").read_text())["members"]
    assert [m["seed"] for m in members] == [5, 6, 7]
    alone = [evaluate(f, topics / "dev.csv").macro_f1 for f in more.members]
    assert more.mean["macro_f1"] == pytest.approx(np.mean(alone), abs=1e-6)
    with pytest.raises(InputError, match="already contains several runs"):
        tune(topics, pretrained, tmp_path / "it", seeds=2)
    with pytest.raises(InputError, match="seed was 5 and is now 6"):
        tune(topics, pretrained, tmp_path / "it", seeds=3, seed=6, epochs=1, resume=True)
    with pytest.raises(InputError, match=r"run.folds and run.seeds are both set"):
        tune(topics, pretrained, tmp_path / "it", seeds=2, folds=2)


@pytest.mark.slow
def test_a_stopped_ensemble_is_gone_on_with(
    topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = tune(topics, pretrained, tmp_path / "whole", folds=2)
    jobs = 0

    def stopping(job, **options) -> None:
        nonlocal jobs
        jobs += 1
        if jobs == 2:
            evaluated = job.phases[0].evaluate

            def stop():
                signal_self()
                return evaluated()

            object.__setattr__(job.phases[0], "evaluate", stop)
        train_loop(job, **options)

    monkeypatch.setattr("ownbert.run.training_run.train", stopping)
    with pytest.raises(Interrupted):
        tune(topics, pretrained, tmp_path / "parts", folds=2)
    with pytest.raises(InputError, match="not finished"):
        predict(tmp_path / "parts", topics / "test.csv", tmp_path / "p.jsonl")
    parts = tune(topics, pretrained, tmp_path / "parts", folds=2, resume=True)
    assert jobs == 3
    for one, other in zip(whole.members, parts.members, strict=True):
        name = "model.safetensors"
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert parts.metrics == whole.metrics


def signal_self() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_thresholds_are_averaged(topics: Path, pretrained: Path, tmp_path: Path):
    rows = ["text,labels"]
    for line in (topics / "train.csv").read_text().splitlines()[1:]:
        label, text = line.split(",")
        rows.append(f"{text},{label}|{'few' if text.count('9') < 4 else 'many'}")
    (tmp_path / "many.csv").write_text("\n".join(rows) + "\n")
    given = {"train": tmp_path / "many.csv", "dev": None, "epochs": 3}
    found = tune(topics, pretrained, tmp_path / "it", "multilabel", folds=2, **given)
    own = [open_folder(f).task.threshold for f in found.members]  # type: ignore[attr-defined]
    predictor = open_folder(found.folder)
    assert predictor.task.threshold == pytest.approx(np.mean(own))  # type: ignore[attr-defined]
    assert predictor.task.labels == ("blue", "few", "green", "many", "red")
    assert found.metrics["micro_f1"] > 0.5
    assert not found.dev


@pytest.mark.slow
def test_rare_labels_and_one_text_for_all(topics: Path, pretrained: Path, tmp_path: Path):
    """A label that one fold alone has is known to all members."""
    text = (topics / "train.csv").read_text()
    (tmp_path / "rare.csv").write_text(text + "mauve,red1 blue1 9\n")
    found = tune(topics, pretrained, tmp_path / "it", train=tmp_path / "rare.csv", folds=2)
    assert all(open_folder(f).task.labels[2] == "mauve" for f in found.members)
    (tmp_path / "one.csv").write_text("label,text\n" + "red,red1 9\nblue,red1 9\n" * 8)
    given = {"train": tmp_path / "one.csv", "dev": None, "folds": 2}
    with pytest.raises(InputError, match=r"the 16 training rows form only 1 such groups"):
        tune(topics, pretrained, tmp_path / "no", **given)
    assert not (tmp_path / "no").exists()


def test_overwriting_leaves_nothing_of_an_ensemble(topics: Path, pretrained: Path, tmp_path: Path):
    tune(topics, pretrained, tmp_path / "it", seeds=2, dev=None, max_steps=1)
    given = {"train": topics / "train.csv", "quiet": True, "max_steps": 1}
    with pytest.raises(InputError, match="already contains several runs"):
        finetune(model=pretrained, output=tmp_path / "it", **given)
    finetune(model=pretrained, output=tmp_path / "it", overwrite=True, **given)
    assert not (tmp_path / "it" / "seed-0").exists()
    assert len(open_folder(tmp_path / "it").models) == 1


def search_with(topics: Path, model: Path, output: Path, **options) -> Model:
    known = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True}
    found = finetune(model=model, output=output, **(known | options))
    assert isinstance(found, Model)
    return found


GRID = ("search.learning_rate=1e-6,2e-3", "search.epochs=[1, 3]", "model.head_init=random")


@pytest.fixture(scope="module")
def searched(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched") / "it"
    with matplotlib_installed():
        search_with(topics, pretrained, folder, overrides=GRID)
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
    search_with(topics, pretrained, searched, overrides=GRID, resume=True, quiet=False)
    assert "is finished" in capfd.readouterr().out
    assert (searched / "model.safetensors").stat().st_mtime_ns == time
    with pytest.raises(InputError, match="already contains"):
        search_with(topics, pretrained, searched, overrides=GRID)


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
        search_with(topics, pretrained, tmp_path / "it", overrides=GRID)
    assert not (tmp_path / "it" / "model.safetensors").exists()
    search_with(topics, pretrained, tmp_path / "it", overrides=GRID, resume=True)
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
    search_with(topics, pretrained, tmp_path / "it", overrides=overrides, quiet=False)
    said = json.loads((tmp_path / "it" / "search.json").read_text())
    losses = [run["measures"]["loss"] for run in said["runs"]]
    assert said["best"] == losses.index(min(losses)) + 1
    table = capfd.readouterr().out
    assert "(best)" in table
    assert f"{min(losses):.4f}" in table


def test_what_cannot_be_searched_is_refused(topics: Path, pretrained: Path, tmp_path: Path):
    with pytest.raises(InputError, match="a search needs dev"):
        search_with(topics, pretrained, tmp_path / "it", search=True, dev=None)
    with pytest.raises(InputError, match=r"a search cannot be combined with run.folds"):
        search_with(topics, pretrained, tmp_path / "it", search=True, folds=2)
    with pytest.raises(InputError, match=r"run.max_steps would end all runs"):
        search_with(topics, pretrained, tmp_path / "it", search=True, max_steps=9)
    assert not (tmp_path / "it").exists()
