"""Evaluation takes a fifth of the time: by tokens in every run, by the clock where it decides."""

import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Example, pack
from ownbert.batches.loader import Position
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.objectives import MaskedLM
from ownbert.objectives.learner import Learner
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.pretraining.pretraining_run import Pretraining
from ownbert.settings import resolve
from ownbert.train.display import Display
from ownbert.train.loop import EvaluationClock, Job, Monitor, Phase, affordable_tokens, train
from ownbert.train.optimizers import make_optimizer
from ownbert.train.state import TrainState
from ownbert.train.training_settings import Optim, Run

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
