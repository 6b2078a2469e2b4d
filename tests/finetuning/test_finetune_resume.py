"""A fine-tuning run that was stopped ends as one that was not, whatever it learns by."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from ownbert import InputError, finetune
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.labelled_splits import LabelledSplits
from ownbert.inference.blend import Blend, BlendMember
from ownbert.tasks.classification import ClassificationTask
from ownbert.train.log import read_log
from ownbert.train.loop import Interrupted
from ownbert.train.state import newest_state

WAYS: Mapping[str, Mapping[str, object]] = {
    "plain": {},
    "ema": {"ema": 0.9},
    "adversarial": {"adversarial": 0.5},
    "rdrop": {"rdrop": 1.0},
    "layer_decay": {"layer_decay": 0.8},
    "accumulate": {"accumulate": 2, "batch_size": 8},
    "freeze": {"freeze": 1},
    "ngrams": {"ngrams": 500},
    "all": {
        "ema": 0.9,
        "adversarial": 0.5,
        "rdrop": 1.0,
        "mask_rate": 0.2,
        "layer_decay": 0.8,
        "accumulate": 2,
        "batch_size": 8,
        "labels_per_class": 8,
    },
}


def tune(topics: Path, model: Path, output: Path, **options) -> None:
    known = {"train": topics / "train.csv", "dev": topics / "dev.csv", "quiet": True, "epochs": 3}
    finetune(model=model, output=output, log_every=1, **(known | options))


def stop_after(monkeypatch: pytest.MonkeyPatch, evaluations: int) -> None:
    """End the run by a signal, as the system does, after so many evaluations."""
    whole, seen = LabelledSplits.evaluate, [0]

    def evaluate(splits: LabelledSplits, *given, **named):
        seen[0] += 1
        if seen[0] == evaluations:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(splits, *given, **named)

    monkeypatch.setattr(LabelledSplits, "evaluate", evaluate)


def rows(folder: Path) -> list[dict]:
    """The log, without what the clock says."""
    clocks = ("seconds", "tokens_per_second", "mfu")
    return [{k: v for k, v in row.items() if k not in clocks} for row in read_log(folder)]


@pytest.mark.parametrize(
    "way",
    [pytest.param(w, marks=[pytest.mark.slow] if w != "all" else []) for w in WAYS],
)
def test_stopped_or_not_it_is_the_same_model(
    way: str, topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = WAYS[way]
    tune(topics, pretrained, tmp_path / "whole", **options)
    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        with pytest.raises(Interrupted):
            tune(topics, pretrained, tmp_path / "parts", **options)
    assert newest_state(tmp_path / "parts") is not None
    tune(topics, pretrained, tmp_path / "parts", resume=True, **options)
    name = "model.safetensors"
    assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")


def test_a_blend_is_replaced_as_a_whole(tmp_path: Path):
    """Otherwise predict would use it, and not the new model."""
    task = ClassificationTask(labels=("a", "b"))
    Blend((BlendMember("lsa", "linear", ("lsa",), 1.0),), task, (0.0, 0.0)).write(tmp_path)
    (tmp_path / "report.json").write_text('{"leaderboard": [], "task": "classify"}')
    for given in ({}, {"resume": True}):
        with pytest.raises(InputError, match="already contains a model; replace it with overwrite"):
            FinetuneFolder(tmp_path, **given)
    FinetuneFolder(tmp_path, overwrite=True).reserve({})
    assert list(tmp_path.iterdir()) == []


def test_a_finished_run_is_left_alone(
    topics: Path, pretrained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    tune(topics, pretrained, tmp_path / "it", epochs=1)
    weights = tmp_path / "it" / "model.safetensors"
    time, log = weights.stat().st_mtime_ns, rows(tmp_path / "it")
    tune(topics, pretrained, tmp_path / "it", epochs=1, resume=True, quiet=False)
    assert "is finished: nothing is left to do" in capfd.readouterr().out
    assert (weights.stat().st_mtime_ns, rows(tmp_path / "it")) == (time, log)
    with pytest.raises(InputError, match=r"run.seeds was None and is now 2"):
        tune(topics, pretrained, tmp_path / "it", epochs=1, seeds=2, resume=True)
    with pytest.raises(InputError, match="seed was 0 and is now 1"):
        tune(topics, pretrained, tmp_path / "it", epochs=1, seed=1, resume=True)


def test_a_run_can_be_given_more_epochs(
    topics: Path, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patched:
        stop_after(patched, 1)
        with pytest.raises(Interrupted):
            tune(topics, pretrained, tmp_path / "it", epochs=2)
    tune(topics, pretrained, tmp_path / "it", epochs=4, patience=9, resume=True)
    steps = [row["step"] for row in rows(tmp_path / "it")]
    assert max(steps) == 16  # 60 rows in batches of 16
    with monkeypatch.context() as patched:
        stop_after(patched, 1)
        with pytest.raises(Interrupted):
            tune(topics, pretrained, tmp_path / "two", epochs=2)
    with pytest.raises(InputError, match=r"task.rdrop was 0.0 and is now 1.0"):
        tune(topics, pretrained, tmp_path / "two", epochs=2, rdrop=1.0, resume=True)
