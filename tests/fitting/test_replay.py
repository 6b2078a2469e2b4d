"""``fit --replay``: the recorded steps, whatever the time; the result is equal to the bit."""

import json
import subprocess
import sys
import threading
from array import array
from pathlib import Path
from typing import Any

import pytest

import ownbert
from ownbert import InputError
from ownbert.fitting.fit import preview_fit
from ownbert.time_limit import (
    DivergedError,
    Recording,
    clock_seconds,
    counted_now,
    processor_seconds,
    started_at,
)
from support.cli import refusal, run_cli

# Files that name the folder of the run.
NAMED = ("README.md", "recipe.yaml")


def contents(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name not in NAMED)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_a_replay_reads_what_was_recorded():
    recording = Recording()
    with recording.running():
        read = [clock_seconds(), processor_seconds(), counted_now(lambda: 3)]
        other = threading.Thread(target=clock_seconds)
        other.start()
        other.join()
    assert (len(recording.kinds), recording.rest) == (3, 0)
    replay = Recording(bytes(recording.kinds), recording.values)
    with replay.running():
        assert [clock_seconds(), processor_seconds()] == read[:2]
        assert replay.rest == 1
        with pytest.raises(DivergedError, match="after 2 of 3 readings of the clock"):
            clock_seconds()
        assert counted_now(lambda: 5) == 3
        with pytest.raises(DivergedError, match="after 3 of 3"):
            counted_now(lambda: 5)
    assert counted_now(lambda: 5) == 5
    with Recording(b"\0", array("d", [1e6])).running():
        assert started_at(7.0) == 1e6


@pytest.fixture(scope="module")
def recorded(topics: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run so short that the clock ends it before all models are fitted."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    given = {"dev": topics / "dev.csv", "unlabelled": topics / "corpus.txt", "minutes": 0.01}
    ownbert.fit(topics / "train.csv", output=folder, quiet=True, **given)
    return folder


def test_the_result_is_equal_on_a_busy_machine(recorded: Path, topics: Path, tmp_path: Path):
    ended = threading.Event()

    def compute() -> None:
        while not ended.is_set():
            pass

    busy = threading.Thread(target=compute)
    busy.start()
    try:
        ownbert.fit(topics / "train.csv", output=tmp_path / "new", replay=recorded, quiet=True)
    finally:
        ended.set()
        busy.join()
    assert contents(tmp_path / "new") == contents(recorded)
    # The new folder can be replayed too.
    ownbert.fit(
        topics / "train.csv", output=tmp_path / "third", replay=tmp_path / "new", quiet=True
    )
    assert contents(tmp_path / "third") == contents(recorded)


def test_only_the_same_run_can_be_replayed(recorded: Path, topics: Path, tmp_path: Path):
    work = recorded / "work" / "replay.json"
    saved = json.loads(work.read_text())
    given: dict[str, Any] = {"output": tmp_path / "new", "replay": recorded, "quiet": True}
    for changed, message in (
        ({"seed": 3}, "made with seed=0; a replay needs the same"),
        ({"minutes": 3}, "made with minutes=0.01; a replay needs the same"),
        ({"test": topics / "test.csv"}, "made with other files; a replay needs the same"),
        ({"resume": True}, "omit resume"),
        ({"output": recorded}, "needs another folder"),
        (
            {"replay": tmp_path / "none"},
            "there is no folder .*none; replay needs that of a finished",
        ),
        ({"replay": tmp_path}, "only a finished run of fit that was not resumed can be"),
    ):
        with pytest.raises(InputError, match=message):
            ownbert.fit(topics / "train.csv", **{**given, **changed})
    try:
        for changed, message in (
            ({"readings": 10**9}, "readings is 1000000000; it must be a whole number"),
            ({"readings": 5}, "is damaged; the run cannot be replayed"),
            ({"values": "%"}, "is damaged; the run cannot be replayed"),
            ({"made_with": {"threads": 0}}, "made_with.threads is 0"),
        ):
            work.write_text(json.dumps(saved | changed))
            with pytest.raises(InputError, match=message):
                ownbert.fit(topics / "train.csv", **given)
    finally:
        work.write_text(json.dumps(saved))
    assert not (tmp_path / "new").exists()
    # A preview has the settings and files of the run, too.
    shown = preview_fit(topics / "train.csv", replay=recorded)
    assert "0.01 min" in shown.splitlines()[0]
    with pytest.raises(InputError, match="made with seed=0; a replay needs the same"):
        preview_fit(topics / "train.csv", replay=recorded, seed=3)
    line = refusal("fit", topics / "train.csv", "-o", tmp_path / "new", "--replay", tmp_path)
    assert "can be replayed" in line


def test_a_run_that_cannot_be_resumed_says_that_it_starts(topics: Path, tmp_path: Path):
    """A mistyped folder with --resume started a new run in silence."""
    output = tmp_path / "mistyped"
    line = ("fit", topics / "train.csv", "--minutes", 0.01, "-o", output, "--resume")
    done = run_cli(*line)
    assert done.returncode == 0
    assert "mistyped has no run to resume; a new one starts" in done.stderr + done.stdout
    assert "no run to resume" not in run_cli(*line).stderr
    output = tmp_path / "other"
    given = ("--max-steps", 1, "--size", "tiny", "-o", output, "--resume")
    done = run_cli("pretrain", topics / "tokens", *given)
    assert "other has no run to resume; a new one starts" in done.stderr + done.stdout, done.stderr


@pytest.mark.slow
def test_networks_are_equal_in_another_process(topics: Path, tmp_path: Path):
    """All steps with networks, with as many threads as there are cores, beside other work."""
    command = [sys.executable, "-m", "ownbert", "fit", str(topics / "train.csv"), "-q"]
    files = ["--unlabelled", str(topics / "corpus.txt"), "--minutes", "1"]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"])]
    # Names of one length: the report has the sizes of files that name the folder.
    first, second = tmp_path / "one", tmp_path / "two"
    try:
        subprocess.run([*command, *files, "-o", str(first)], check=True)
        busy.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        subprocess.run([*command, "-o", str(second), "--replay", str(first)], check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert (first / "model.safetensors").exists()
    assert contents(second) == contents(first)
