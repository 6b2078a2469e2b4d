"""A folder is opened once: each of its files is read once, and each config.json is checked once."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ownbert.checkpoint import describe
from ownbert.fitting.network_probe import probe
from ownbert.inference.blend import Blend, BlendMember
from ownbert.tasks.task import KEY, task_of

# Runs Python with a count of the files of a folder that it opens,.
COUNTED = """
import json, os, sys
from collections import Counter

folder, output, code, *arguments = sys.argv[1:]
opened, called = Counter(), Counter()

def on_event(event, given):
    if event == "open" and isinstance(given[0], str | os.PathLike):
        path = os.path.realpath(given[0])
        if path.startswith(folder + os.sep):
            opened[os.path.relpath(path, folder)] += 1

def on_call(frame, event, given):
    if event == "call":
        called[frame.f_code.co_name] += 1

sys.addaudithook(on_event)
sys.argv = ["ownbert", *arguments]
sys.setprofile(on_call)
try:
    exec(code)
except SystemExit as end:
    assert not end.code, end.code
sys.setprofile(None)
with open(output, "w") as file:
    json.dump([opened, called], file)
"""
COMMAND = "from ownbert.cli import main; main()"


def counted(
    folder: Path, tmp_path: Path, *arguments: object, code: str = COMMAND
) -> tuple[Mapping[str, int], int]:
    """How often each JSON file of a folder is opened, and how often a config.json is described."""
    output = tmp_path / "counted.json"
    given = [str(folder.resolve()), str(output), code, *map(str, arguments)]
    done = subprocess.run([sys.executable, "-c", COUNTED, *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    opened, called = json.loads(output.read_text())
    return {n: c for n, c in opened.items() if n.endswith(".json")}, called["describe_config"]


@pytest.fixture
def blend(classifier: Path, pretrained: Path, topics: Path, tmp_path: Path) -> Path:
    """A folder of a network and a linear model on the vectors of another."""
    probe(pretrained, topics / "train.csv", tmp_path / "blend")
    shutil.copytree(classifier, tmp_path / "blend" / "members" / "network")
    (frozen,) = Blend.read(tmp_path / "blend").members
    task = task_of(describe(classifier))
    members = (frozen, BlendMember("network", "network", ("members/network",), 1.0))
    values, labels = {KEY: task.values()[KEY]}, tuple(task.labels)
    Blend(members, labels, values, (0.0,) * len(labels)).write(tmp_path / "blend")
    return tmp_path / "blend"


def test_predict_with_a_network(classifier: Path, topics: Path, tmp_path: Path):
    opened, described = counted(classifier, tmp_path, "predict", classifier, topics / "dev.csv")
    assert {"config.json", "tokenizer.json", "tokenizer_config.json"} <= opened.keys()
    assert (set(opened.values()), described) == ({1}, 1)


def test_predict_with_a_blend(blend: Path, topics: Path, tmp_path: Path):
    opened, described = counted(blend, tmp_path, "predict", blend, topics / "dev.csv")
    assert {"blend.json", "members/probe/probe.json"} <= opened.keys()
    assert {"members/network/config.json", "members/probe/encoder/tokenizer.json"} <= opened.keys()
    assert (set(opened.values()), described) == ({1}, 2)


@pytest.mark.parametrize("command", ["embed", "fill"])
def test_vectors_and_masks(command: str, pretrained: Path, tmp_path: Path):
    opened, described = counted(pretrained, tmp_path, command, pretrained, "red1 [MASK]")
    assert (set(opened.values()), described) == ({1}, 1)


def test_from_pretrained(pretrained: Path, tmp_path: Path):
    code = "import ownbert; ownbert.BertForMaskedLM.from_pretrained(sys.argv[1])"
    opened, described = counted(pretrained, tmp_path, pretrained, code=code)
    assert (opened, described) == ({"config.json": 1}, 1)
