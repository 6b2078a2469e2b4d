"""A folder is opened once; what has loaded it can be pickled, copied and sent to processes."""

import copy
import json
import os
import pickle
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from joblib.executor import get_memmapping_executor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import ownbert
from ownbert import Embedder, Explainer, Predictor, export, quantize
from ownbert.checkpoint import describe
from ownbert.fitting.network_probe import probe
from ownbert.inference.blend import Blend, BlendMember
from ownbert.tasks.task import task_of
from support.cli import run_cli
from support.shared import made_once
from support.tiny import made

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


TEXTS = ["a b", "c", "d e f"]


@pytest.fixture(scope="module")
def folders(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of one layer, one of them with a file for an engine beside its weights."""

    def make(folder: Path) -> None:
        made(folder / "vectors", num_hidden_layers=1)
        made(folder / "tokens", "tokens", num_hidden_layers=1)
        export(folder / "vectors", folder / "vectors" / "onnx", to="onnx")
        for name in ("classifier", "onnx"):
            shutil.copytree(exported / name, folder / name)
        quantize(folder / "classifier", folder / "int8")

    return made_once(tmp_path_factory, "pickled", make)


def embedder(folders: Path) -> Any:
    return Embedder(folders / "vectors")


def embedder_in_bfloat16(folders: Path) -> Any:
    return Embedder(folders / "vectors", precision="bfloat16")


def embedder_of_two_engines(folders: Path) -> Any:
    return Embedder(folders / "vectors", engine="auto")


def predictor(folders: Path) -> Any:
    return Predictor(folders / "classifier")


def predictor_of_tags(folders: Path) -> Any:
    return Predictor(folders / "tokens")


def predictor_in_int8(folders: Path) -> Any:
    return Predictor(folders / "int8")


def predictor_of_an_engine(folders: Path) -> Any:
    return Predictor(folders / "onnx")


def explainer(folders: Path) -> Any:
    return Explainer(folders / "classifier")


MAKERS = [embedder, embedder_in_bfloat16, embedder_of_two_engines, explainer]
MAKERS += [predictor, predictor_of_tags, predictor_in_int8, predictor_of_an_engine]


def answers(used: Any) -> str:
    return repr(used(TEXTS))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_it_answers_the_same_when_pickled_or_copied(make: Callable[[Path], Any], folders: Path):
    used = make(folders)
    expected = answers(used)
    assert answers(copy.deepcopy(used)) == expected
    assert answers(pickle.loads(pickle.dumps(used))) == expected
    assert answers(cloudpickle.loads(cloudpickle.dumps(used))) == expected
    assert answers(used) == expected


def test_vectors_are_a_step_of_a_pipeline_after_use(folders: Path):
    used = embedder(folders)
    texts, labels = [*"abcdef"] * 4, [0, 0, 0, 1, 1, 1] * 4
    expected = cross_val_score(LogisticRegression(), used.encode(texts), labels, cv=2)
    steps = make_pipeline(FunctionTransformer(used.encode), LogisticRegression())
    assert cross_val_score(steps, texts, labels, cv=2).tolist() == expected.tolist()


def test_workers_of_joblib_take_them_after_use(folders: Path):
    used = [make(folders) for make in MAKERS]
    expected = [answers(each) for each in used]
    # What Parallel runs its calls in, with one process: each imports everything, for seconds.
    with get_memmapping_executor(1) as worker:
        found = [worker.submit(each, TEXTS) for each in used]
        assert [repr(each.result()) for each in found] == expected
