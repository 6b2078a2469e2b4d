"""What has loaded a folder can be pickled, copied and sent to other processes, also after use."""

import copy
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from joblib.executor import get_memmapping_executor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from ownbert import Embedder, Explainer, Predictor, export, quantize
from support.shared import made_once
from support.tiny import made

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
