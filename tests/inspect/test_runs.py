"""``ownbert runs``: which runs there are, what tells them apart, and what they reached."""

import csv
import io
import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.cells import cell_len

from ownbert import InputError
from ownbert.inspect import run_list
from ownbert.inspect.run_list import differing, draw, find_runs, read_run, runs_csv, show_runs
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.settings import dump, resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.translation.translation_recipe import TranslateRecipe
from support.cli import run_cli

HOUR = 3600.0


def make_run(
    folder: Path,
    losses: list[float],
    *,
    done: bool = True,
    states: bool = True,
    hours_ago: float = 5,
    **options: Any,
) -> Path:
    """A pretraining run of 100 steps an evaluation; one that is not done was to have one more."""
    steps = 100 * (len(losses) + (not done or not losses))
    settings = {"data.tokens": "tokens", "max_steps": steps, **options}
    write_run(folder, dump(resolve(PretrainRecipe, options=settings)), hours_ago, [])
    rows = []
    for number, loss in enumerate(losses, start=1):
        place = {"step": 100 * number, "seconds": 60.0 * number}
        trained = {"tokens": 5000 * number, "tokens_per_second": 1000 * number}
        found = {"uniform_loss": 9.0, "mlm_loss": loss, "mlm_accuracy": 0.1 * number}
        rows.append({**place, "loss": loss, **trained})
        rows.append({**place, "evaluation": True, "loss": loss + 1, "unigram_loss": 7.0, **found})
    if states:
        (folder / "checkpoints" / "step-00000100").mkdir(parents=True)
    return write_run(folder, None, hours_ago, rows)


def write_run(folder: Path, recipe: str | None, hours_ago: float, rows: list[dict]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if recipe is not None:
        (folder / "recipe.yaml").write_text(recipe)
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    then = time.time() - hours_ago * HOUR
    os.utime(log, (then, then))
    return folder


def make_finetuning(folder: Path, scores: list[float], **options: Any) -> Path:
    options = {"model.folder": "bert", "data.train": "train.csv", "max_steps": 900, **options}
    rows = [
        {"step": 10 * n, "evaluation": True, "loss": 1 - f1, "classification_loss": 1 - f1}
        | {"accuracy": f1, "macro_f1": f1, "seconds": 1.0 * n}
        for n, f1 in enumerate(scores, start=1)
    ]
    write_run(folder, dump(resolve(FinetuneRecipe, options=options)), 5, rows)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_text('{"num_hidden_layers": 3, "hidden_size": 128}')
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    top = tmp_path / "runs"
    make_run(top / "a", [6.0, 5.0], learning_rate=1e-3)
    make_run(top / "deep" / "b", [6.0, 4.0, 4.5], learning_rate=2e-3, size="mini", done=False)
    make_finetuning(top / "c", [0.5, 0.75, 0.7])
    return top


def test_runs_are_found_at_any_depth_and_what_they_keep_is_not_searched(runs: Path):
    make_run(runs / "a" / "checkpoints" / "x", [1.0])
    make_run(runs / ".hidden", [1.0])
    assert [run.name for run in find_runs(runs).runs] == ["a", "c", "deep/b"]
    assert [run.name for run in find_runs(runs / "a").runs] == ["a"]


def test_what_a_run_says(runs: Path):
    run = read_run(runs / "deep" / "b")
    assert (run.kind, run.size, run.step, run.tokens, run.seconds) == (
        *("pretrain", "mini", 300, 15_000, 180.0),
    )
    assert run.tokens_per_second == 2000
    accuracy = pytest.approx(0.3)
    assert run.last == {"unigram_loss": 7.0, "mlm_loss": 4.5, "mlm_accuracy": accuracy}
    assert run.best == {"mlm_loss": (4.0, 200), "mlm_accuracy": (accuracy, 300)}
    other = read_run(runs / "c")
    assert (other.kind, other.size) == ("finetune", "3x128")
    assert other.last == {"loss": pytest.approx(0.3), "accuracy": 0.7, "macro_f1": 0.7}
    assert other.best["macro_f1"] == (0.75, 20)


@pytest.mark.parametrize(
    ("objective", "config", "heading"),
    [
        ("plm", {"model_type": "xlnet", "n_layer": 3, "d_model": 96}, "PLM loss"),
        ("span_corruption", {"model_type": "t5", "num_layers": 3, "d_model": 96}, "span loss"),
        ("mlm", {"model_type": "ownbert-distilbert", "n_layers": 3, "dim": 96}, "MLM loss"),
        ("clm", {"model_type": ["?"], "num_hidden_layers": 3, "hidden_size": 96}, "CLM loss"),
    ],
)
def test_runs_of_other_architectures(tmp_path: Path, objective: str, config: dict, heading: str):
    for name, loss in (("a", 5.0), ("b", 4.0)):
        write_run(tmp_path / name, dump(resolve(PretrainRecipe)), 5, [])
        row = {"step": 9, "seconds": 1.0, "evaluation": True, "loss": loss, "unigram_loss": 7.0}
        write_run(tmp_path / name, None, 5, [row | {f"{objective}_loss": loss}])
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    write_run(tmp_path / "c", dump(resolve(TranslateRecipe)), 5, [])
    translator = {"model_type": "marian", "encoder_layers": 1, "decoder_layers": 2, "d_model": 32}
    (tmp_path / "c" / "config.json").write_text(json.dumps(translator))
    assert read_run(tmp_path / "c").size == "1x32"
    runs = find_runs(tmp_path, sort=f"{objective}_loss").runs[:2]
    assert [(run.name, run.size) for run in runs] == [("b", "3x96"), ("a", "3x96")]
    assert heading in show_runs(runs)


@pytest.mark.parametrize(
    ("losses", "options", "state"),
    [
        ([5.0], {}, "finished"),
        ([5.0], {"done": False}, "stopped at step 100, resumable"),
        ([5.0], {"done": False, "states": False}, "stopped at step 100"),
        ([5.0], {"done": False, "hours_ago": 10 / HOUR}, "at step 100, active 1"),
        ([], {}, "nothing logged yet"),
        ([5.0, 4.0], {"max_steps": None, "max_minutes": 2}, "finished"),
    ],
)
def test_the_state_of_a_run(losses: list[float], options: dict, state: str, tmp_path: Path):
    found = read_run(make_run(tmp_path / "a", losses, **options)).state
    assert found.startswith(state) if "active" in state else found == state


def test_when_a_run_has_finished(tmp_path: Path):
    longer = make_run(tmp_path / "g", [5.0, 4.0], max_steps=None, max_minutes=2.1)
    assert read_run(longer).state == "stopped at step 200, resumable"
    # The setup and the last evaluation took six of the 126 seconds.
    clock = json.dumps({"clock": {"seconds": 120.0, "reserved": 6.0}})
    (longer / "checkpoints/step-00000100/state.json").write_text(clock)
    assert read_run(longer).state == "finished"
    # Pretraining by fit, whose saved states are deleted at the end.
    shutil.rmtree(longer / "checkpoints")
    (longer / "model.safetensors").write_bytes(b"")
    assert read_run(longer).state == "finished"
    # Out of patience before the last step; its saved states are deleted at the end.
    assert read_run(make_finetuning(tmp_path / "h", [0.5])).state == "finished"
    # A translation keeps its states, so that it can go on for more epochs.
    rows = [{"step": 10 * n, "epoch": n, "seconds": 1.0 * n} for n in (1, 2)]
    for epochs, state in ((2, "finished"), (3, "stopped at step 20, resumable")):
        recipe = dump(resolve(TranslateRecipe, options={"epochs": epochs}))
        folder = write_run(tmp_path / f"t{epochs}", recipe, 5, rows)
        (folder / "checkpoints" / "step-00000020").mkdir(parents=True)
        assert read_run(folder).state == state


def test_only_settings_that_differ_are_shown(runs: Path):
    pretraining = [run for run in find_runs(runs).runs if run.kind == "pretrain"]
    assert differing(pretraining) == ["model.size", "optim.learning_rate", "run.max_steps"]
    often = replace(pretraining[0], settings={**pretraining[0].settings, "run.log_every": 1})
    assert differing([pretraining[0], often]) == []
    older = {k: v for k, v in pretraining[0].settings.items() if k != "optim.name"}
    assert differing([pretraining[0], replace(pretraining[0], settings=older)]) == []


def test_the_table(runs: Path):
    text = show_runs(find_runs(runs).runs)
    lines = text.splitlines()
    assert lines[0] == "pretraining"
    assert lines[1].split("  ")[0] == "run"
    headings = ("learning_rate", "max_steps", "steps", "tokens/s", "unigram", "MLM loss")
    assert all(heading in lines[1] for heading in headings)
    assert "weight_decay" not in text
    assert lines[2].startswith("a       finished")
    assert lines[2].split()[-4:] == ["1,500", "7.0000", "5.0000", "20.0%"]
    assert lines[3].startswith("deep/b  stopped at step 300, resumable")
    assert "4.5000 (best 4.0000)" in lines[3]
    assert lines[5] == "fine-tuning"
    assert "0.7000 (best 0.7500)" in lines[7]


def test_a_narrow_terminal_gets_blocks_with_everything_in_them(runs: Path):
    found = find_runs(runs).runs
    wide, narrow = show_runs(found), show_runs(found, width=60)
    assert all(len(line) <= 60 for line in narrow.splitlines())
    assert "deep/b: stopped at step 300, resumable" in narrow.splitlines()
    assert "learning_rate 0.002" in narrow
    assert "MLM loss 4.5000 (best 4.0000)" in " ".join(narrow.split())
    assert show_runs(found, width=1000) == wide


def test_settings_and_columns_of_one_name_are_told_apart(tmp_path: Path):
    """Columns stay in line, also where names are Chinese."""
    make_run(tmp_path / "news", [5.0], **{"data.tokens": "one"})
    make_run(tmp_path / "新闻", [5.0], **{"data.tokens": "two"})
    heading, *rows = show_runs(find_runs(tmp_path).runs).splitlines()[1:]
    assert "data.tokens" in heading
    assert ["one" in rows[0], "two" in rows[1], "5,000" in rows[0]] == [True] * 3
    assert len({cell_len(line) for line in (heading, *rows)}) == 1


def test_phases_and_lists_are_words(tmp_path: Path):
    phases = [{"share": 0.5, "masking": None}, {"share": 0.5, "mask_rate": 0.15}]
    for name, objectives, parts in (("a", ["mlm", "nsp"], []), ("b", ["mlm"], phases)):
        run = make_run(tmp_path / name, [5.0])
        values = yaml.safe_load((run / "recipe.yaml").read_text()) | {"phases": parts}
        values["task"]["objectives"] = objectives
        (run / "recipe.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    heading, one, two = show_runs(find_runs(tmp_path).runs).splitlines()[1:]
    assert "objectives" in heading
    assert ["  mlm+nsp  " in one, "  -  " in one] == [True, True]
    assert "  share=0.5 | share=0.5 mask_rate=0.15  " in two


def test_sorting(tmp_path: Path):
    make_run(tmp_path / "a", [6.0], learning_rate=1e-3, hours_ago=1)
    make_run(tmp_path / "b", [4.0, 5.0], learning_rate=3e-3, hours_ago=3)
    make_run(tmp_path / "c", [5.0], learning_rate=2e-3, hours_ago=2)
    make_run(tmp_path / "d", [], learning_rate=5e-4, hours_ago=4)
    expected = {"name": "abcd", "when": "dbca", "mlm_loss": "bcad", "mlm_accuracy": "bacd"}
    expected |= {"learning_rate": "dacb", "optim.learning_rate": "dacb", "step": "dacb"}
    for sort, names in expected.items():
        assert "".join(run.name for run in find_runs(tmp_path, sort=sort).runs) == names
    with pytest.raises(InputError, match="cannot sort by 'colour'; sort by name, when, time, step"):
        find_runs(tmp_path, sort="colour")


def test_broken_folders_are_named_and_the_others_listed(runs: Path):
    (runs / "no-recipe").mkdir()
    (runs / "no-recipe" / "log.jsonl").write_text("")
    make_run(runs / "bad-recipe", [5.0])
    (runs / "bad-recipe" / "recipe.yaml").write_text("a: [")
    make_run(runs / "list", [5.0])
    (runs / "list" / "recipe.yaml").write_text("- 1")
    make_run(runs / "bad-log", [5.0])
    (runs / "bad-log" / "log.jsonl").write_text('{"a": 1}\n')
    (runs / "bad-log" / "config.json").write_text("[")
    found = find_runs(runs)
    assert [run.name for run in found.runs] == ["a", "c", "deep/b"]
    said = "\n".join(found.broken)
    for part in (
        *("no-recipe has no recipe.yaml", "bad-recipe/recipe.yaml is not YAML"),
        *("list/recipe.yaml is not a recipe", "bad-log/log.jsonl, line 1: not a row"),
    ):
        assert part in said
    assert len(found.broken) == len(said.splitlines()) == 4
    (runs / "empty").mkdir()
    with pytest.raises(InputError, match=r"no runs in .* \(folders with log\.jsonl and rec"):
        find_runs(runs / "empty")
    with pytest.raises(InputError, match="no such folder"):
        find_runs(runs / "none")


def test_json_and_csv_have_the_numbers(runs: Path):
    found = find_runs(runs).runs
    values = json.loads(json.dumps([run.as_json() for run in found]))
    assert values[2]["best"]["mlm_loss"] == {"value": 4.0, "step": 200}
    assert values[2]["settings"]["optim.learning_rate"] == 0.002
    assert "rows" not in values[0]
    rows = list(csv.DictReader(io.StringIO(runs_csv(found))))
    assert [row["name"] for row in rows] == ["a", "c", "deep/b"]
    assert [row["last.mlm_loss"] for row in rows] == ["5.0", "", "4.5"]
    assert [row["best.macro_f1"] for row in rows] == ["", "0.75", ""]
    assert rows[2]["optim.learning_rate"] == "0.002"


def test_a_loss_that_is_no_number_is_shown_and_is_not_the_best(tmp_path: Path):
    run = read_run(make_run(tmp_path / "a", [5.0, float("nan")]))
    assert run.best["mlm_loss"] == (5.0, 100)
    assert run.as_json()["last"]["mlm_loss"] is None
    assert "nan (best 5.0000)" in show_runs([run])


def test_all_runs_in_one_picture(runs: Path, tmp_path: Path, plots: None):
    path = draw(find_runs(runs).runs, tmp_path / "all.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    nothing = [read_run(make_run(tmp_path / "empty", []))]
    with pytest.raises(InputError, match="no run has been evaluated yet"):
        draw(nothing, tmp_path / "none.png")


def test_both_kinds_of_runs_may_have_one_metric(runs: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(run_list, "figure_class", lambda: None)
    monkeypatch.setattr(run_list, "draw_runs", lambda path, panels: drawn.update(panels))
    some = [replace(run, last={"loss": 1.0}) for run in find_runs(runs).runs]
    draw(some, runs / "all.png")
    assert {metric: [*drawn[metric]] for metric in drawn} == {"loss": ["a", "deep/b", "c"]}


def test_the_command_in_a_pipe(runs: Path):
    (runs / "broken").mkdir()
    (runs / "broken" / "log.jsonl").write_text("")
    done = run_cli("runs", runs, "--sort", "mlm_loss", env={"COLUMNS": "30"})
    assert done.returncode == 0, done.stderr
    assert done.stdout == show_runs(find_runs(runs, sort="mlm_loss").runs) + "\n"
    assert done.stderr == f"left out: {runs}/broken has no recipe.yaml\n"


def test_a_real_run_is_listed(pretrained: Path):
    run = read_run(pretrained)
    assert (run.kind, run.state, run.size, run.step) == ("pretrain", "finished", "tiny", 60)
    assert run.last["mlm_loss"] < run.last["unigram_loss"]


def make_fit(folder: Path, score: float | None, minutes: float) -> Path:
    """A folder of ``ownbert fit`` with a member that is a run; without a score it is unfinished."""
    make_run(folder / "members" / "network", [3.0])
    (folder / "recipe.yaml").write_text(yaml.safe_dump({"train": "a.csv", "minutes": minutes}))
    (folder / "fit.json").write_text(json.dumps({"seconds": 60.0}))
    if score is not None:
        row = {"name": "blend of all", "score": score, "test_score": None}
        report = {"best": "blend of all", "metric": "macro_f1", "leaderboard": [row]}
        (folder / "report.json").write_text(json.dumps(report))
    ago = time.time() - HOUR
    os.utime(folder / "fit.json", (ago, ago))
    return folder


def test_fits_have_scores_and_their_members_are_not_listed(tmp_path: Path):
    make_run(tmp_path / "pre", [2.0])
    for name, score, minutes in (("a", 0.5, 1), ("b", 0.75, 2), ("c", None, 3)):
        make_fit(tmp_path / name, score, minutes)
    runs = find_runs(tmp_path, sort="macro_f1").runs
    assert [run.name for run in runs][:2] == ["b", "a"]
    states = {run.name: run.state for run in runs}
    assert states == dict.fromkeys(("a", "b", "pre"), "finished") | {"c": "stopped, resumable"}
    table = show_runs(runs).split("\n\n")[0].splitlines()
    assert table[0] == "fits"
    assert [line.split()[0] for line in table[2:]] == ["b", "a", "c"]
    for words in ("0.7500", "blend of all", "2"):
        assert words in table[2]
    assert "macro_f1" in runs_csv(runs)
    (tmp_path / "a" / "report.json").write_text('{"best": 1, "leaderboard": 7}')
    assert [*find_runs(tmp_path).broken] == [f"{tmp_path / 'a'} has a damaged report.json"]
