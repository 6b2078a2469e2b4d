"""A folder is opened once: each of its files is read once, and each config.json is checked once."""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import ownbert
from ownbert.checkpoint import describe
from ownbert.fitting.network_probe import probe
from ownbert.inference.blend import Blend, BlendMember
from ownbert.tasks.task import task_of
from support.cli import run_cli

Counts = tuple[Mapping[str, int], int]


def counted(folder: Path, tmp_path: Path, call: Callable[[], object]) -> Counts:
    """How often a call opens each JSON file of a folder, and how often it describes a config.json;
    it is made in a fork, from which a hook of Python need not be removed."""
    output = tmp_path / "counted.json"
    given = (folder.resolve(), output, call)
    torch.multiprocessing.start_processes(_count, given, nprocs=1, start_method="fork")
    opened, called = json.loads(output.read_text())
    return {n: c for n, c in opened.items() if n.endswith(".json")}, called["describe_config"]


def _count(_: int, folder: Path, output: Path, call: Callable[[], object]) -> None:
    opened, called = Counter(), Counter()

    def on_event(event: str, given: tuple) -> None:
        if event == "open" and isinstance(given[0], str | os.PathLike):
            path = Path(os.path.realpath(given[0]))
            if path.is_relative_to(folder):
                opened[str(path.relative_to(folder))] += 1

    def on_call(frame: Any, event: str, given: Any) -> None:
        if event == "call":
            called[frame.f_code.co_name] += 1

    sys.addaudithook(on_event)
    sys.setprofile(on_call)
    call()
    sys.setprofile(None)
    output.write_text(json.dumps([opened, called]))


def of_command(folder: Path, tmp_path: Path, *arguments: object) -> Counts:
    """The same of a command."""

    def call() -> None:
        done = run_cli(*arguments)
        assert done.returncode == 0, done.stderr

    return counted(folder, tmp_path, call)


@pytest.fixture
def blend(classifier: Path, pretrained: Path, topics: Path, tmp_path: Path) -> Path:
    """A folder of a network and a linear model on the vectors of another."""
    probe(pretrained, topics / "train.csv", tmp_path / "blend")
    shutil.copytree(classifier, tmp_path / "blend" / "members" / "network")
    (frozen,) = Blend.read(tmp_path / "blend").members
    task = task_of(describe(classifier))
    members = (frozen, BlendMember("network", "network", ("members/network",), 1.0))
    Blend(members, task, (0.0,) * len(task.labels)).write(tmp_path / "blend")
    return tmp_path / "blend"


def test_predict_with_a_network(classifier: Path, topics: Path, tmp_path: Path):
    opened, described = of_command(classifier, tmp_path, "predict", classifier, topics / "dev.csv")
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= opened.keys()
    assert (set(opened.values()), described) == ({1}, 1)


def test_predict_with_a_blend(blend: Path, topics: Path, tmp_path: Path):
    opened, described = of_command(blend, tmp_path, "predict", blend, topics / "dev.csv")
    assert {"blend.json", "members/probe/probe.json"} <= opened.keys()
    assert {"members/network/config.json", "members/probe/encoder/tokenizer.json"} <= opened.keys()
    assert (set(opened.values()), described) == ({1}, 2)


def test_a_calibrated_blend(blend: Path, topics: Path, tmp_path: Path):
    """Checksums of the files are computed once, for the calibration and for the output."""
    dev, output = topics / "dev.csv", tmp_path / "it.csv"
    options = ("--coverage", "0.8", "--calibrate", dev, "-o", output)
    opened, _ = of_command(blend, tmp_path, "predict", blend, dev, *options)
    assert opened["blend.json"] == opened["members/probe/probe.json"] == 2


@pytest.mark.parametrize("command", ["embed", "fill"])
def test_vectors_and_masks(command: str, pretrained: Path, tmp_path: Path):
    opened, described = of_command(pretrained, tmp_path, command, pretrained, "red1 [MASK]")
    assert (set(opened.values()), described) == ({1}, 1)


def test_from_pretrained(pretrained: Path, tmp_path: Path):
    opened, described = counted(
        pretrained, tmp_path, lambda: ownbert.BertForMaskedLM.from_pretrained(pretrained)
    )
    assert (opened, described) == ({"config.json": 1}, 1)
