"""log.jsonl, TensorBoard's files, curves.png and the lines of a run as it goes."""

import io
import re
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from ownbert import InputError
from ownbert.train.display import Display, clock, describe, duration, fitting
from ownbert.train.log import RunLog, read_log
from ownbert.train.training_curves import draw_curves, draw_runs


def training_row(step: int, **changes: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 7 - step / 100,
        "mlm_loss": 6.9 - step / 100,
        "mlm_accuracy": 0.1,
        "nsp_loss": 0.69,
        "nsp_accuracy": 0.5,
        "grad_norm": 1.25,
        "learning_rate": 1e-3,
        "tokens_per_second": 26_001,
        "mfu": 0.41,
        "tokens": 2000 * step,
        "epoch": 0,
        "seconds": step / 10,
        **changes,
    }


def held_out_row(step: int, **changes: Any) -> dict[str, Any]:
    row = {"step": step, "evaluation": True, "loss": 6.5, "unigram_loss": 6.807}
    row |= {"uniform_loss": 9.105, "mlm_loss": 6.432, "mlm_accuracy": 0.164}
    return row | {"nsp_loss": 0.68, "nsp_accuracy": 0.56, "seconds": step / 10} | changes


def written(folder: Path, rows: list[dict[str, Any]], **options: Any) -> RunLog:
    log = RunLog(folder, **options)
    for row in rows:
        log.write(row)
    log.close()
    return log


@settings(max_examples=100)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_every_float32_is_read_back_as_it_was(tmp_path_factory, value: float):
    folder = tmp_path_factory.mktemp("log")
    written(folder, [{"step": 1, "loss": value}])
    (row,) = read_log(folder)
    import numpy as np

    assert np.float32(row["loss"]) == np.float32(value)


def test_a_row_is_on_disk_as_soon_as_it_is_written(tmp_path: Path):
    log = RunLog(tmp_path)
    log.write(training_row(1))
    assert list(read_log(tmp_path)) == log.rows
    assert log.rows == [pytest.approx(training_row(1))]
    log.close()


def test_a_resumed_log_has_each_step_once_and_a_new_one_starts_empty(tmp_path: Path):
    written(tmp_path, [training_row(step) for step in (1, 2, 3, 4)])
    log = written(tmp_path, [training_row(3, loss=1.0)], step=2)
    assert [row["step"] for row in log.rows] == [1, 2, 3]
    assert list(read_log(tmp_path)) == log.rows
    assert log.rows[-1]["loss"] == 1.0
    written(tmp_path, [])
    assert list(read_log(tmp_path)) == []


def test_a_last_row_that_was_cut_off_is_left_out(tmp_path: Path):
    written(tmp_path, [training_row(step) for step in (1, 2, 3)])
    path = tmp_path / "log.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [row["step"] for row in read_log(tmp_path)] == [1, 2]
    log = written(tmp_path, [training_row(3)], step=2)
    assert list(read_log(tmp_path)) == log.rows


@pytest.mark.parametrize("line", ["not json", "[1]", '{"loss": 1}', "{"])
def test_any_other_line_that_is_no_row_is_named(tmp_path: Path, line: str):
    (tmp_path / "log.jsonl").write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    with pytest.raises(InputError, match=r"log\.jsonl, line 2: not a row of a log"):
        list(read_log(tmp_path))


def test_a_full_disk_is_one_clear_line(tmp_path: Path):
    log = RunLog(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        log.write(training_row(0))
        with pytest.raises(InputError, match=r"cannot write .*log\.jsonl: File too large"):
            log.write(training_row(1, comment="x" * 400))
        log.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [row["step"] for row in read_log(tmp_path)] == [0]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows: tag -> (step, value)."""
    name = "tensorboard.backend.event_processing.event_accumulator"
    module = pytest.importorskip(name, reason="needs the package tensorboard")
    reader = module.EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return {tag: [(e.step, round(e.value, 4)) for e in reader.Scalars(tag)] for tag in tags}


def test_tensorboard_has_the_same_numbers(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    rows = [training_row(20), training_row(40, phase=2), held_out_row(40)]
    log = written(tmp_path, rows, tensorboard=True)
    found = events(tmp_path)
    assert found["train/loss"] == [(20, 6.8), (40, 6.6)]
    assert found["train/phase"] == [(40, 2)]
    assert found["held_out/unigram_loss"] == [(40, 6.807)]
    names = {f"train/{k}" for k in rows[1]} | {f"held_out/{k}" for k in rows[2]}
    assert set(found) == names - {"train/step", "held_out/step", "held_out/evaluation"}
    assert list(read_log(tmp_path)) == log.rows


def test_tensorboard_after_a_resume_and_after_a_new_start(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    written(tmp_path, [training_row(s) for s in (1, 2, 3, 4)], tensorboard=True)
    written(tmp_path, [training_row(s, loss=0.5) for s in (3, 4)], tensorboard=True, step=2)
    expected = [(1, 6.99), (2, 6.98), (3, 0.5), (4, 0.5)]
    assert events(tmp_path)["train/loss"] == expected
    written(tmp_path, [training_row(1)], tensorboard=True)
    assert events(tmp_path)["train/loss"] == [(1, 6.99)]


def test_tensorboard_asked_for_at_a_resume_has_the_rows_before(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    written(tmp_path, [training_row(s) for s in (1, 2, 3)])
    written(tmp_path, [training_row(3)], tensorboard=True, step=2)
    assert events(tmp_path)["train/loss"] == [(1, 6.99), (2, 6.98), (3, 6.97)]


def test_without_the_package_it_is_said_before_anything_is_written(tmp_path: Path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'ownbert\[tensorboard\]'"):
        RunLog(tmp_path, tensorboard=True)
    assert list(tmp_path.iterdir()) == []


FINETUNING = [
    {"step": 5, "loss": 2.0, "classification_loss": 2.0, "classification_accuracy": 0.4},
    {"step": 5, "evaluation": True, "loss": 2.1, "classification_loss": 2.1, "accuracy": 0.5}
    | {"macro_f1": 0.44},
]


@pytest.mark.parametrize(
    "rows",
    [
        [*map(training_row, (1, 2, 3)), held_out_row(3), training_row(4, phase=2)],
        [training_row(1, phase=1), training_row(2, phase=2, grad_norm=0.0)],
        [held_out_row(1)],
        FINETUNING,
        [{"step": 1, "loss": 1.0}],
    ],
)
def test_curves_are_a_picture(tmp_path: Path, rows: list[dict[str, Any]], plots: None):
    path = draw_curves(tmp_path, rows)
    assert path == tmp_path / "curves.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_no_rows_no_picture(tmp_path: Path, plots: None):
    assert draw_curves(tmp_path, []) is None
    assert list(tmp_path.iterdir()) == []


def test_runs_in_one_picture(tmp_path: Path, plots: None):
    runs = {name: [held_out_row(1), held_out_row(2)] for name in "ab"}
    path = draw_runs(tmp_path / "all.png", {"mlm_loss": runs, "macro_f1": {"c": FINETUNING}})
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_row_in_words():
    assert describe(training_row(1200, phase=2)) == (
        "step 1,200 of phase 2  loss -5.000  MLM -5.100 accuracy 10.0%  NSP 0.690 accuracy 50.0%  "
        "26,001 tokens/s  MFU 41%  gradient norm 1.2"
    )
    assert describe(held_out_row(40)) == (
        "step 40  held out  loss 6.500  MLM 6.432 (unigram baseline 6.807, uniform baseline 9.105) "
        "accuracy 16.4%  NSP 0.680 accuracy 56.0%"
    )
    assert describe(FINETUNING[0]) == "step 5  loss 2.000 accuracy 40.0%"
    assert describe(FINETUNING[1]) == (
        "step 5  held out  loss 2.100  accuracy 50.0%  macro-F1 0.440"
    )


def shown(width: int, *updates: tuple[float, dict[str, Any] | None]) -> list[str]:
    """The lines that stand on a terminal at the end."""
    display = Display("pretrain")
    with open("/dev/null", "w") as nowhere:
        display.console = Console(width=width, force_terminal=True, file=nowhere)
        with display:
            for progress, row in updates:
                display.update(progress, row)
        plain = Console(width=width, record=True, file=nowhere)
        plain.print(display.lines)
        return plain.export_text().splitlines()


def test_a_terminal_shows_two_lines_of_what_fits():
    updates = [(0.0, None), (0.4, training_row(40)), (0.5, held_out_row(40))]
    first, second = shown(160, *updates)
    bar = first.split("  50%  00:00 left, ends ")[0]
    assert bar == "pretrain " + "━" * len(bar.removeprefix("pretrain "))
    assert len(first) == 160  # the bar takes what the rest leaves
    assert first.endswith("26,001 tokens/s  MFU 41%  gradient norm 1.2")
    assert second == (
        "step 40  loss 6.600  held out: MLM 6.432  unigram 6.81  16.4% correct  NSP 0.680  "
        "56.0% correct  uniform 9.11"
    )
    for width in (20, 40, 80):
        lines = shown(width, *updates)
        assert len(lines) == 2
        assert second.startswith(lines[1].rstrip())
        assert all(len(line) <= width for line in lines)


def test_evaluations_stay_on_a_terminal():
    display = Display("pretrain")
    file = io.StringIO()
    display.console = Console(width=160, force_terminal=True, file=file, color_system=None)
    with display:
        display.update(0.2, training_row(20))
        display.update(0.5, held_out_row(20))
        display.update(0.9, held_out_row(40))
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n").splitlines()
    stay = [line for line in lines if re.match(r"pretrain +\d+%  ", line)]
    assert [re.findall(r"step \d+", line) for line in stay] == [["step 20"], ["step 40"]]
    assert all("held out" in line for line in stay)


def test_before_the_first_evaluation_it_shows_training():
    _, second = shown(120, (0.1, training_row(20)))
    assert second == "step 20  loss 6.800  MLM 6.700  10.0% correct  NSP 0.690  50.0% correct"


def test_without_a_terminal_there_is_a_line_now_and_then(capsys):
    display = Display("pretrain")
    with display:
        display.update(0.0, training_row(1))
        display.update(0.1, training_row(2))  # too soon after the first
        display.update(0.2, held_out_row(2))  # always
        display.say("a [bold] word")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("pretrain   0%  --:-- left  step 1  loss")
    assert " 20%  00:00 left, ends " in lines[1]
    assert "step 2  held out" in lines[1]
    assert lines[2] == "a [bold] word"


def test_a_quiet_display_says_nothing(capsys):
    with Display("pretrain", quiet=True) as display:
        display.update(0.5, held_out_row(2))
        display.say("word")
    assert capsys.readouterr().out == ""


def test_durations_and_clocks():
    assert [duration(s) for s in (0, 59.6, 3599, 3600, 90_000)] == [
        *("00:00", "01:00", "59:59", "1:00:00", "25:00:00"),
    ]
    assert clock(0) == time.strftime("%H:%M")
    later = time.localtime(time.time() + 200_000)
    assert clock(200_000) == time.strftime("%a %d %b %H:%M", later)
    assert fitting(["abc", "de", "f"], 7) == "abc  de"
    assert fitting(["abc"], 2) == ""


def test_what_always_saying_the_same_would_score_is_no_curve_of_its_own(tmp_path: Path):
    from ownbert.train.training_curves import _plain

    row = {"step": 1, "nsp_accuracy": 0.6, "nsp_majority_accuracy": 0.5}
    assert _plain(row) == row


PAGE = Path(__file__).resolve().parents[2] / "docs/training.md"


def run_snippet(package: str, tokens: Path) -> None:
    """The Python of the page that imports the package, with a run of a few steps."""
    found = re.findall(r"```py\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = [code for code in found if f"import {package}\n" in code]
    code = code.replace('"runs/my-tokens"', repr(str(tokens)))
    short = "max_steps=6, log_every=2, eval_every=3, save_every=3, quiet=True"
    assert "max_minutes=3" in code
    exec(code.replace("max_minutes=3", short), {})


@pytest.mark.slow
def test_mlflow(topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mlflow = pytest.importorskip("mlflow", reason="needs: pip install mlflow-skinny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    run_snippet("mlflow", topics / "tokens")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs(["0"])
    history = {
        name: [metric.step for metric in client.get_metric_history(run.info.run_id, name)]
        for name in ("mlm_loss", "held_out/mlm_loss")
    }
    assert history == {"mlm_loss": [2, 4, 6], "held_out/mlm_loss": [3, 6]}
    assert [each.path for each in client.list_artifacts(run.info.run_id)] == ["recipe.yaml"]


@pytest.mark.slow
def test_weights_and_biases(topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("wandb", reason="needs: pip install wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run_snippet("wandb", topics / "tokens")
    (saved,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    content = saved.read_bytes()
    assert b"held_out/mlm_loss" in content
    assert b"saved" in content
