"""The loop: evaluations, warnings, callbacks."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ownbert
from ownbert import InputError
from ownbert.batches.batch import Example, pack
from ownbert.batches.loader import Position
from ownbert.config.encoder import EncoderConfig
from ownbert.fitting.findings import Checkpoints
from ownbert.fitting.rows.labelled_rows import read_labelled
from ownbert.nn.model import Model
from ownbert.objectives import MaskedLM
from ownbert.objectives.learner import Learner
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.pretraining.pretraining_run import Pretraining
from ownbert.settings import resolve
from ownbert.tasks.task import task_class
from ownbert.train.display import Display
from ownbert.train.log import read_log
from ownbert.train.loop import (
    ENOUGH_STEPS,
    ENOUGH_TOKENS,
    EvaluationClock,
    Job,
    Monitor,
    Phase,
    affordable_tokens,
    diagnose_stagnation,
    train,
)
from ownbert.train.optimizers import make_optimizer
from ownbert.train.state import TrainState
from ownbert.train.training_settings import Optim, Run


def run(
    *gaps: float, tokens: int = 200_000, steps: int = 100, rate: float = 1e-3, warm: int = 0
) -> list[dict[str, Any]]:
    """Evaluations ``gaps`` below a unigram loss of 7, after ``tokens`` and ``steps`` each."""
    rows: list[dict[str, Any]] = []
    for number, gap in enumerate(gaps, start=1):
        now = rate * (number / warm if number < warm else 1)
        row = {"step": number * steps, "tokens": number * tokens, "learning_rate": now}
        rows.append({**row, "loss": 7 - gap, "mlm_loss": 7 - gap})
        rows.append(
            {"step": number * steps, "evaluation": True, "mlm_loss": 7 - gap}
            | {"unigram_loss": 7.0, "uniform_loss": 9.0}
        )
    return rows


def test_a_run_at_the_unigram_level_is_told_with_the_settings_to_try():
    said = diagnose_stagnation(run(0, 0.01, 0.02, -0.01, 0.03))
    assert said is not None
    first, second = said.split("\n")
    assert first == (
        "not learning: after 1,000,000 tokens the model has learnt only word frequencies "
        "(held-out MLM loss 6.97, unigram baseline 7.00)"
    )
    for name in ("learning_rate, now 0.001", "batch_tokens", "duplicates", "mask_rate"):
        assert name in second
    assert "too high or too low" in second


@pytest.mark.parametrize("loss", [9.5, float("nan")])
def test_a_run_that_went_wrong_is_told_that_its_rate_is_too_high(loss: float):
    rows = run(*[0.0] * 5)
    rows[-1]["mlm_loss"] = loss
    said = diagnose_stagnation(rows)
    assert said is not None
    assert "is worse than word frequencies" in said
    assert "a learning rate that is too high (learning_rate" in said


def test_no_word_before_enough_tokens_and_steps():
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS - 1, steps=ENOUGH_STEPS)) is None
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS, steps=ENOUGH_STEPS - 1)) is None
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS, steps=ENOUGH_STEPS)) is not None
    assert diagnose_stagnation([]) is None
    assert diagnose_stagnation(run(0, tokens=ENOUGH_TOKENS, steps=ENOUGH_STEPS)[:1]) is None


def test_the_warm_up_of_a_long_run_is_waited_for_unless_it_goes_wrong():
    assert diagnose_stagnation(run(*[0.0] * 10, warm=20)) is None
    assert diagnose_stagnation(run(*[0.0] * 30, warm=20)) is not None
    assert diagnose_stagnation(run(*[-0.5] * 10, warm=20)) is not None


def test_the_last_evaluation_counts():
    assert diagnose_stagnation(run(*[0.0] * 9, 0.5)) is None
    assert diagnose_stagnation(run(0.5, *[0.0] * 9)) is not None


@pytest.mark.parametrize("gap", [0.15, 0.5, 3.0])
def test_a_run_that_learns_gets_no_word(gap: float):
    assert diagnose_stagnation(run(*[gap] * 10)) is None


def test_runs_without_masked_words_get_no_word():
    rows = [
        {"step": 500, "tokens": 5_000_000, "loss": 1.0, "clm_loss": 1.0},
        {"step": 500, "evaluation": True, "loss": 1.0, "accuracy": 0.1},
    ]
    assert diagnose_stagnation(rows) is None
    # Nor does a phase without them, after one with them.
    assert diagnose_stagnation(run(*[0.0] * 9) + rows) is None


CONFIG = EncoderConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=1,
    intermediate_size=8,
    max_position_embeddings=8,
)


class OneBatch:
    """A loader that repeats one batch."""

    def batches(self, position: Position):
        ids = np.arange(5, 9)
        batch = pack([Example(ids, ids * 0, np.asarray([1]), np.asarray([6]))])
        while True:
            yield batch, position


def evaluations(
    folder: Path, seconds: float, run: Run, setup: float = 0.0
) -> tuple[list[float], float]:
    """The duration of each evaluation, which sleeps for so many seconds, and of the run."""
    torch.manual_seed(0)
    learner, optim = Learner(Model(CONFIG, ["mlm"]), [MaskedLM()]), Optim(learning_rate=1e-3)
    taken = []

    def evaluate() -> dict[str, float]:
        begin = time.perf_counter()
        time.sleep(seconds)
        taken.append(time.perf_counter() - begin)
        return {"loss": 1.0}

    job = Job(
        state=TrainState(learner, make_optimizer(learner, optim)),
        phases=[Phase(OneBatch(), learner.objectives, evaluate)],  # type: ignore[arg-type]
        optim=optim,
        run=run,
        folder=folder,
        display=Display("test", quiet=True),
        monitor=Monitor("loss", lower=True, patience=10_000),
        with_curves=False,
        setup_seconds=setup,
    )
    train(job)
    return taken, job.state.seconds


def test_a_forward_pass_over_so_many_tokens_is_a_fifth_of_the_time():
    seconds = affordable_tokens(3000) / 3
    assert seconds / (3000 + seconds) == pytest.approx(0.2)


def test_the_clock_leaves_time_for_the_last_evaluation():
    clock = EvaluationClock(100.0)
    assert clock.has_time(100.0)  # of the first one nothing is known
    with clock.measure():
        time.sleep(0.01)
    assert clock.last >= 0.01
    # The first one, this one and the last one.
    assert not clock.has_time(100 + 14.9 * clock.last)
    assert clock.has_time(100 + 15.1 * clock.last)


@pytest.mark.parametrize("every", [1, None])
def test_a_run_that_the_clock_ends_leaves_evaluations_out(every: int | None, tmp_path: Path):
    run = Run(max_minutes=0.01, eval_every=every, precision="float32")
    taken, seconds = evaluations(tmp_path, 0.03, run)
    assert len(taken) >= 2
    assert sum(taken[:-1]) <= max(taken[0], 0.2 * seconds)


def test_the_setup_and_the_last_evaluation_are_within_the_minutes(tmp_path: Path):
    run = Run(max_minutes=0.02, eval_every=1, precision="float32")
    taken, seconds = evaluations(tmp_path / "long", 0.1, run)
    assert seconds < 1.2 - 0.1 + 0.09  # the loop ends with a step that began in time
    assert len(taken) >= 2
    # However long the setup was, half of the time is for training.
    _, seconds = evaluations(tmp_path / "setup", 0.01, run, setup=100.0)
    assert 0.5 < seconds < 1.2


def test_a_run_that_its_steps_end_leaves_none_out(tmp_path: Path):
    run = Run(max_steps=5, max_minutes=60, eval_every=1, precision="float32")
    taken, _ = evaluations(tmp_path, 0.01, run)
    assert len(taken) == 5


def test_short_pretraining_evaluates_the_first_of_the_held_out_examples(topics: Path):
    def batches(**options):
        options |= {"batch_tokens": 256, "max_length": 48, "held_out": 0.5}
        options["data.tokens"] = str(topics / "tokens")
        run = Pretraining(resolve(PretrainRecipe, options=options))
        return run.phase_data[0].held_out_batches(run._evaluation_tokens(run.phase_data[0]))

    short, long = batches(max_steps=20), batches(max_steps=10_000)
    assert 0 < sum(b.tokens for b in short) <= affordable_tokens(2 * 256)
    one, other = (torch.cat([b.token_ids for b in found]) for found in (short, long))
    assert len(one) < len(other)
    assert torch.equal(one, other[: len(one)])
    by_clock = batches(max_minutes=5)
    assert sum(b.tokens for b in by_clock) == len(other)


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
            on_save=lambda folder, about: saved.append(
                (about["step"], (folder / "config.json").exists())
            ),
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
