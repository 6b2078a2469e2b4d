"""Two processes learn what one learns, and neither outlives the other."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from ownbert import pretrain
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.objectives.learner import Learner
from ownbert.train.display import Display
from ownbert.train.distributed import World, gather_full_model, shard
from ownbert.train.log import RunLog
from ownbert.train.loop import Job, Monitor, out_of_patience
from ownbert.train.optimizers import make_optimizer
from ownbert.train.state import TrainState, list_states, newest_state, step_of
from ownbert.train.training_settings import Optim, Run
from support.training_runs import finish, learnt, run_here, run_ranks, start, wait_for_step

OPTIONS = (
    *("--max-steps", "8", "--save-every", "4", "--eval-every", "4", "--accumulate", "2"),
    *("--precision", "float32", "--objectives", "mlm,nsp", "run.keep=5"),
)
# Sums are taken in another order; a step of Adam carries that on.
TOLERANCE = 1e-4


def assert_close(folder: Path, other: Path) -> None:
    """The same rows of the log, up to rounding."""
    first, second = learnt(folder), learnt(other)
    assert len(first) == len(second) > 8
    for row, twin in zip(first, second, strict=True):
        assert row.keys() == twin.keys()
        for name, value in row.items():
            assert value == pytest.approx(twin[name], rel=TOLERANCE), (row["step"], name)


@pytest.fixture(scope="module")
def alone(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    run_here(topics / "tokens", folder, *OPTIONS)
    return folder


def two(topics: Path, folder: Path, *options: str) -> None:
    finish(start(topics / "tokens", folder, *OPTIONS, *options, processes=2))


def test_two_processes_equal_one_and_either_goes_on_from_the_other(
    topics: Path, tmp_path: Path, alone: Path
):
    folder = tmp_path / "run"
    run_ranks(topics / "tokens", folder, *OPTIONS)
    assert_close(folder, alone)
    run_here(topics / "tokens", folder, *OPTIONS, "--resume-step", "4")
    assert_close(folder, alone)


@pytest.mark.slow
def test_two_processes_with_weights_cut_over_them_equal_one(
    topics: Path, tmp_path: Path, alone: Path
):
    folder = tmp_path / "run"
    two(topics, folder, "run.shard=true")
    assert_close(folder, alone)
    state = newest_state(folder)
    assert state is not None
    assert len(list(state.glob("shard-*.safetensors"))) == 2
    # Each of one process, two copies and two halves resumes from what another has saved.
    finish(start(topics / "tokens", folder, *OPTIONS, "--resume-step", "4", "run.shard=false"))
    assert_close(folder, alone)
    two(topics, folder, "--resume-step", "4", "run.shard=true")
    assert_close(folder, alone)
    two(topics, folder, "--resume-step", "4", "run.shard=false")
    assert_close(folder, alone)


def tiny() -> Model:
    """A model with a decoder."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    config = EncoderConfig(vocab_size=12, num_hidden_layers=1, **sizes)
    decoder = replace(config, is_decoder=True, add_cross_attention=True)
    return Model(config, ["generator"], decoder=decoder, share_embeddings=True)


@pytest.fixture
def group() -> Iterator[World]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield World()
    dist.destroy_process_group()


def test_all_processes_agree_on_patience_after_a_resume(tmp_path: Path):
    """The best evaluation is of step 1, and two more are in the log of what is resumed."""
    log = RunLog(tmp_path)
    for step in (1, 2, 3, 4):
        log.write({"step": step, "evaluation": True, "loss": float(step), "seconds": 0.0})
    log.close()
    learner = Learner(tiny(), [])
    job = Job(
        state=TrainState(learner, make_optimizer(learner, Optim(learning_rate=1e-3))),
        phases=[],
        optim=Optim(),
        run=Run(max_steps=9),
        folder=tmp_path,
        display=Display("test", quiet=True),
        monitor=Monitor("loss", lower=True, patience=2),
    )
    job.state.best = {"step": 1, "value": 1.0, "since": 1}
    for step, ends in ((3, True), (2, False)):
        for world in (World(1, 2), World(0, 2)):  # the first drops the rows after the step
            with closing(RunLog(tmp_path, step=step, writes=world.first)) as log:
                assert out_of_patience(job, log.rows) is ends
    # Warm-up lasts until step 2.7, so one evaluation of three steps counts.
    job.optim = Optim(warmup=0.3)
    with closing(RunLog(tmp_path, step=3)) as log:
        assert not out_of_patience(job, log.rows)


def test_full_weights_of_a_sharded_model_with_a_decoder(group: World):
    """Structure and weights; a copy that left out the decoder could not be loaded."""
    model = tiny()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shard(Learner(model, []), group)
    complete = gather_full_model(model)
    assert complete is not model
    assert complete.state_dict().keys() == weights.keys()
    assert all(torch.equal(weights[n], tensor) for n, tensor in complete.state_dict().items())
    assert complete.share_embeddings
    assert complete.decoder is not None
    assert complete.decoder.embeddings.word.weight is complete.encoder.embeddings.word.weight


@pytest.mark.slow
def test_sharded_processes_save_the_decoder(topics: Path, tmp_path: Path):
    """The model of span corruption has one, which the copy with full weights must have too."""
    options = (*OPTIONS, "--objectives", "span_corruption", "--max-steps", "2")
    run_here(topics / "tokens", tmp_path / "one", *options)
    run_ranks(topics / "tokens", tmp_path / "two", *options, "run.shard=true")
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("one", "two"))
    assert one.keys() == two.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("objectives", ["mlm,rtd", "clm", "mlm,sop"])
def test_two_processes_equal_one_whatever_they_learn(topics: Path, tmp_path: Path, objectives: str):
    options = ("--objectives", objectives)
    if objectives == "mlm,rtd":
        # What the generator draws is drawn in each process: only its own loss can be compared.
        options = (*options, "task.rtd_weight=1e-9")
    finish(start(topics / "tokens", tmp_path / "one", *OPTIONS, *options))
    two(topics, tmp_path / "two", *options)
    if objectives == "mlm,rtd":
        pairs = zip(learnt(tmp_path / "one"), learnt(tmp_path / "two"), strict=True)
        for row, twin in pairs:
            assert row["mlm_loss"] == pytest.approx(twin["mlm_loss"], rel=TOLERANCE)
    else:
        assert_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_phases_that_need_other_parameters(topics: Path, tmp_path: Path):
    phases = "phases=[{share: 0.5, objectives: mlm}, {share: 0.5, max_length: 64}]"
    finish(start(topics / "tokens", tmp_path / "one", *OPTIONS, phases))
    two(topics, tmp_path / "two", phases)
    assert_close(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_more_processes_than_sequences(topics: Path, tmp_path: Path):
    options = {"max_length": 48, "max_steps": 3, "precision": "float32", "quiet": True}
    pretrain(topics / "tokens", tmp_path / "one", batch_tokens=8, log_every=1, **options)
    small = ("--max-steps", "3", "--batch-tokens", "8", "--precision", "float32")
    finish(start(topics / "tokens", tmp_path / "two", *small, processes=2))
    one, both = learnt(tmp_path / "one"), learnt(tmp_path / "two")
    assert [r["loss"] for r in both] == pytest.approx([r["loss"] for r in one], rel=TOLERANCE)


def children(process: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_other_with_one_message(topics: Path, tmp_path: Path, rank: int):
    folder = tmp_path / "run"
    run = start(topics / "tokens", folder, "--max-steps", "5000", "--save-every", "5", processes=2)
    wait_for_step(folder, 8)
    ranks = {}
    for process in children(run.pid):
        said = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        ranks |= {int(v[5:]): process for v in said if v.startswith(b"RANK=")}
    killed = time.monotonic()
    os.kill(ranks[rank], signal.SIGKILL)
    _, err = run.communicate(timeout=60)
    assert time.monotonic() - killed < 60
    assert run.returncode != 0
    ours = [line for line in err.splitlines() if "another process of the run ended" in line]
    assert len(ours) == 1, err
    assert re.search(r"--resume", ours[0])
    assert list_states(folder)


@pytest.mark.slow
def test_an_interrupt_of_all_saves_one_state(topics: Path, tmp_path: Path):
    folder = tmp_path / "run"
    run = start(topics / "tokens", folder, "--max-steps", "5000", processes=2)
    wait_for_step(folder, 5)
    for process in [run.pid, *children(run.pid)]:  # as Ctrl-C on a terminal does
        os.kill(process, signal.SIGINT)
    _, err = run.communicate(timeout=60)
    ours = [line for line in err.splitlines() if line.startswith("stopped at step")]
    assert len(ours) == 1, err
    state = newest_state(folder)
    assert state is not None
    assert f"stopped at step {step_of(state)};" in ours[0]
