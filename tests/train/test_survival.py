"""A killed run resumes as if nothing had happened, and says so when it cannot."""

import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from ownbert import InputError, prepare, pretrain
from ownbert.checkpoint import load
from ownbert.train.state import (
    SavedState,
    list_states,
    newest_state,
    remove_states,
    step_of,
)
from support.cli import run_cli
from support.forks import ForkedCommand
from support.limits import files_of_at_most
from support.plots import matplotlib_installed
from support.training_runs import COMMON, assert_same, finish, learnt, rows, start, wait_for_step

SHORT = {"max_length": 48, "batch_tokens": 512, "log_every": 1, "quiet": True}
# Everything that draws: pairs, masks, dropout; rows over several steps; evaluations in between.
OPTIONS = (
    *("--max-steps", "60", "--save-every", "7", "--eval-every", "9", "--log-every", "4"),
    *("--dropout", "0.1", "--accumulate", "2", "--objectives", "mlm,nsp"),
)


def kill_at_random(topics: Path, folder: Path, kills: int, seed: int, *options: str) -> int:
    """Start a run and kill it after a random time, again and again; how often it was running."""
    rng, hits = random.Random(seed), 0
    for _ in range(kills):
        run = start(topics / "tokens", folder, *options, "--resume")
        # From before the first step (starting takes about two seconds) to well into the run.
        time.sleep(rng.uniform(1.0, 5.0))
        hits += run.poll() is None
        run.send_signal(signal.SIGKILL)
        run.communicate()
    return hits


def killed_equals_whole(topics: Path, tmp_path: Path, kills: int, seed: int, *options) -> None:
    finish(start(topics / "tokens", tmp_path / "whole", *options))
    hits = kill_at_random(topics, tmp_path / "killed", kills, seed, *options)
    assert hits > 0
    finish(start(topics / "tokens", tmp_path / "killed", *options, "--resume"))
    assert_same(tmp_path / "killed", tmp_path / "whole")
    left = [p.name for p in (tmp_path / "killed" / "checkpoints").iterdir()]
    assert not [name for name in left if name.startswith(".")]


@pytest.mark.slow
def test_a_run_killed_a_few_times_equals_one_that_was_not(topics: Path, tmp_path: Path):
    killed_equals_whole(topics, tmp_path, 2, 0, *OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        (*OPTIONS, "--max-steps", "250", "task.softmax=sampled"),
        (*OPTIONS, "--max-steps", "250", "--objectives", "mlm,rtd", "--masking", "ngram"),
        (*OPTIONS, "--max-steps", "250", "--objectives", "mlm,sop", "optim.name=lamb"),
    ],
    ids=["mlm,nsp", "mlm,rtd", "mlm,sop,lamb"],
)
def test_a_run_killed_at_twenty_random_moments_equals_one_that_was_not(
    topics: Path, tmp_path: Path, options: tuple[str, ...]
):
    killed_equals_whole(topics, tmp_path, 20, 1, *options)


# Other tests end fine-tuning by SIGTERM, without a process of its own.
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_an_interrupt_saves_and_says_how_to_go_on(topics: Path, tmp_path: Path, number: int):
    folder = ("-o", tmp_path / "run", *COMMON, "--max-steps", 5000)
    run = ForkedCommand("pretrain", topics / "tokens", *folder)
    wait_for_step(tmp_path / "run", 5)
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 2
    assert len(err.splitlines()) == 1
    assert "--resume" in err
    assert newest_state(tmp_path / "run") is not None
    assert load(tmp_path / "run")  # and the model so far is there to be used


def test_the_last_states_and_the_best_are_kept(topics: Path, tmp_path: Path):
    folder = tmp_path / "run"
    options = {"max_steps": 30, "save_every": 2, "eval_every": 5, "learning_rate": 0.05}
    pretrain(topics / "tokens", folder, **options, overrides=["run.keep=3"], **SHORT)
    held_out = {r["step"]: r["loss"] for r in rows(folder) if r.get("evaluation")}
    best = min(held_out, key=lambda step: (held_out[step], step))
    improved = {s for s in held_out if held_out[s] == min(held_out[t] for t in held_out if t <= s)}
    others = sorted((set(range(2, 31, 2)) | improved) - {best})
    last = newest_state(folder)
    assert last is not None
    assert SavedState.read(last).metadata["best"]["step"] == best
    assert {step_of(p) for p in list_states(folder)} == {best, *others[-3:]}


def alter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("*.safetensors", alter),
        ("state.json", cut),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("*.safetensors", cut),
                ("*.safetensors", Path.unlink),
                ("state.json", alter),
                ("state.json", Path.unlink),
            )
        ),
    ],
)
def test_a_damaged_state_is_named_and_the_one_before_it_offered(
    topics: Path, tmp_path: Path, what: str, damage
):
    folder = tmp_path / "run"
    pretrain(topics / "tokens", folder, max_steps=8, save_every=4, eval_every=8, **SHORT)
    before = learnt(folder)
    state = newest_state(folder)
    assert state is not None
    (file,) = state.glob(what)
    damage(file)
    with pytest.raises(InputError) as error:
        pretrain(None, folder, resume=True, **SHORT)
    assert file.name in str(error.value)
    assert f"remove {state}, and use resume=True to continue from step 4" in str(error.value)
    assert learnt(folder) == before
    pretrain(None, folder, resume_step=4, **SHORT)
    assert learnt(folder) == before


def test_a_run_with_sampled_words_resumes_bit_for_bit(topics: Path, tmp_path: Path):
    folder = tmp_path / "run"
    options = {"softmax": "sampled", "max_steps": 4, "save_every": 2, "eval_every": 4, **SHORT}
    pretrain(topics / "tokens", folder, **options)
    before = learnt(folder)
    pretrain(None, folder, resume_step=2, **SHORT)
    assert learnt(folder) == before


def test_a_full_disk_loses_no_state(topics: Path, tmp_path: Path):
    folder = tmp_path / "run"
    pretrain(topics / "tokens", folder, max_steps=8, save_every=4, **SHORT)
    before = {p.name: p.stat().st_mtime_ns for p in (folder / "checkpoints").rglob("*")}
    weights = (folder / "model.safetensors").read_bytes()
    run = ("--max-steps", 12, "--resume", "--max-length", 48, "--batch-tokens", 512)
    # With the plot at the end of a run, which must not hide why it ended.
    with files_of_at_most(100 * 1024), matplotlib_installed():
        done = run_cli("pretrain", "-o", folder, *run)
    assert done.returncode == 2, done.stderr
    assert re.fullmatch(r"error: cannot write \S+: File too large.*--resume.*\n", done.stderr)
    assert {p.name: p.stat().st_mtime_ns for p in (folder / "checkpoints").rglob("*")} == before
    assert (folder / "model.safetensors").read_bytes() == weights
    pretrain(None, folder, resume=True, max_steps=12, quiet=True)
    assert rows(folder)[-1]["step"] == 12


def test_another_corpus_is_refused_wherever_it_is(topics: Path, tmp_path: Path):
    folder = tmp_path / "run"
    store = shutil.copytree(topics / "tokens", tmp_path / "store")
    pretrain(store, folder, max_steps=4, **SHORT)
    shutil.move(store, tmp_path / "moved")
    pretrain(tmp_path / "moved", folder, resume=True, max_steps=5, **SHORT)
    lines = (topics / "corpus.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join(lines[1:]) + "\n")
    prepare(tmp_path / "other.txt", tmp_path / "moved", tokenizer=topics / "vocab")
    with pytest.raises(InputError, match=r"the corpus was 240 documents .* now 239 documents"):
        pretrain(None, folder, resume=True, max_steps=6, **SHORT)
    assert rows(folder)[-1]["step"] == 5


@pytest.mark.slow
def test_settings_that_change_nothing_may_change(topics: Path, tmp_path: Path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    options = {"max_steps": 12, "eval_every": 12, "learning_rate": 1e-3, "dropout": 0.1}
    constant = ["optim.schedule=constant", "optim.warmup=0"]
    pretrain(topics / "tokens", whole, **options, overrides=constant, **SHORT)
    first = options | {"max_steps": 5}
    pretrain(topics / "tokens", folder, **first, overrides=constant, **SHORT)
    pretrain(None, folder, resume=True, max_steps=12, save_every=3, **SHORT)
    steps = [[r for r in learnt(f) if not r.get("evaluation")] for f in (folder, whole)]
    assert steps[0] == steps[1]


def test_a_state_is_never_there_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A kill while old states are deleted leaves whole ones, of which the newest is the last."""
    for step in (1, 2, 3):
        state = tmp_path / "checkpoints" / f"step-{step:08d}"
        state.mkdir(parents=True)
        for name in ("state.json", "shard"):
            (state / name).write_text("x")
    removed, unlink = [], os.unlink

    def stop_in_the_second(path: str, **about: int) -> None:
        removed.append(path)
        if len(removed) == 4:
            raise KeyboardInterrupt
        unlink(path, **about)

    monkeypatch.setattr("os.unlink", stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        remove_states(tmp_path)
    assert len(removed) == 4
    left = list_states(tmp_path)
    assert left[-1].name == "step-00000003"
    assert all({p.name for p in state.iterdir()} == {"state.json", "shard"} for state in left)
