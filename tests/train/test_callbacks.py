"""Callbacks: real trainings that call them."""

from pathlib import Path
from typing import Any

import pytest
import torch

import ownbert
from ownbert import InputError
from ownbert.checkpoint import CONFIG
from ownbert.fitting.findings import Checkpoints
from ownbert.fitting.rows.labelled_rows import read_labelled
from ownbert.tasks.task import task_class
from ownbert.train.log import read_log


def test_rows_evaluations_and_saved_models_are_passed_on(topics: Path, tmp_path: Path):
    logged, evaluated, saved = [], [], []
    ownbert.pretrain(
        topics / "tokens",
        tmp_path / "bert",
        max_steps=12,
        batch_tokens=512,
        log_every=4,
        eval_every=6,
        save_every=6,
        quiet=True,
        callbacks=ownbert.Callbacks(
            on_log=logged.append,
            on_evaluate=evaluated.append,
            on_save=lambda folder, about: saved.append((about["step"], (folder / CONFIG).exists())),
        ),
    )
    assert [row["step"] for row in logged] == [4, 8, 12]
    assert [row["step"] for row in evaluated] == [6, 12]
    assert saved == [(6, True), (12, True)]
    known = {(row["step"], "evaluation" in row): row for row in read_log(tmp_path / "bert")}
    assert len(known) == 5
    for row in (*logged, *evaluated):
        assert row.keys() == known[row["step"], "evaluation" in row].keys()


def test_each_member_of_an_ensemble_calls_them(topics: Path, pretrained: Path, tmp_path: Path):
    folders = []
    ownbert.finetune(
        model=pretrained,
        train=topics / "train.csv",
        seeds=2,
        epochs=1,
        output=tmp_path / "two",
        quiet=True,
        callbacks=ownbert.Callbacks(on_save=lambda folder, about: folders.append(folder.name)),
    )
    assert sorted(set(folders)) == ["seed-0", "seed-1"]


def test_what_a_callback_raises_ends_the_run(topics: Path, tmp_path: Path):
    def stop(row: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        ownbert.pretrain(
            topics / "tokens",
            tmp_path / "bert",
            max_steps=3,
            log_every=1,
            quiet=True,
            callbacks=ownbert.Callbacks(on_log=stop),
        )


def test_what_to_lower_is_named_where_memory_does_not_suffice(
    topics: Path, pretrained: Path, tmp_path: Path
):
    callbacks = ownbert.Callbacks(on_log=lambda row: torch.empty(1 << 60) and None)
    given: Any = {"quiet": True, "log_every": 1, "callbacks": callbacks}
    with pytest.raises(InputError, match=r"lower batch_tokens=512 or max_length=\d+, or use a"):
        ownbert.pretrain(
            topics / "tokens", tmp_path / "bert", max_steps=3, batch_tokens=512, **given
        )
    rows = [("red1 9", "a"), ("blue2 8", "b")] * 10
    with pytest.raises(InputError, match=r"lower batch_size=\d+ or max_length=\d+, or use a"):
        ownbert.finetune(model=pretrained, train=rows, output=tmp_path / "out", **given)
    with pytest.raises(InputError, match="lower batch_size=4 or max_length=") as caught:
        ownbert.finetune(
            model=pretrained, train=rows, seeds=2, batch_size=4, output=tmp_path / "two", **given
        )
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_checkpoints_of_a_pretraining_are_measured(topics: Path, pretrained: Path, tmp_path: Path):
    rows = read_labelled(task_class("classify")(), topics / "train.csv", None, seed=0)
    checkpoints = Checkpoints(tmp_path / "copies", minutes=2)
    for seconds in (5.0, 40.0, 41.0, 80.0, 120.0):
        checkpoints(pretrained, {"step": int(seconds), "seconds": seconds})
    # Not the first ones, which know little, and none soon after another.
    names = sorted(path.name for path in (tmp_path / "copies").iterdir())
    assert names == ["120.000", "40.000", "80.000"]
    points = checkpoints.measure(rows)
    assert [round(60 * minutes) for minutes, _ in points] == [40, 80, 120]
    scores = [score for _, score in points]
    assert scores[0] == scores[1] == scores[2] > 0.5  # the same network
    assert not (tmp_path / "copies").exists()


def test_a_short_pretraining_leaves_no_checkpoints(pretrained: Path, tmp_path: Path):
    checkpoints = Checkpoints(tmp_path / "copies", minutes=0.5)
    checkpoints(pretrained, {"step": 9, "seconds": 30.0})
    assert not (tmp_path / "copies").exists()
