"""What has loaded a folder can be pickled, copied and sent to other processes, also after use."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from ownbert import Embedder, Explainer, Predictor, export, quantize
from support.tiny import made

TEXTS = ["a b", "c", "d e f"]


def embedder(folder: Path) -> Any:
    made(folder)
    return Embedder(folder)


def embedder_in_bfloat16(folder: Path) -> Any:
    made(folder)
    return Embedder(folder, precision="bfloat16")


def embedder_of_two_engines(folder: Path) -> Any:
    made(folder)
    export(folder, folder / "onnx", to="onnx")
    return Embedder(folder, engine="auto")


def predictor(folder: Path) -> Any:
    made(folder, "classification")
    return Predictor(folder)


def predictor_of_tags(folder: Path) -> Any:
    made(folder, "tokens")
    return Predictor(folder)


def predictor_in_int8(folder: Path) -> Any:
    made(folder, "classification")
    quantize(folder, folder.with_name("int8"))
    return Predictor(folder.with_name("int8"))


def predictor_of_an_engine(folder: Path) -> Any:
    made(folder, "classification")
    export(folder, folder.with_name("file"), to="onnx")
    return Predictor(folder.with_name("file"))


def explainer(folder: Path) -> Any:
    made(folder, "classification")
    return Explainer(folder)


MAKERS = [embedder, embedder_in_bfloat16, embedder_of_two_engines, explainer]
MAKERS += [predictor, predictor_of_tags, predictor_in_int8, predictor_of_an_engine]


def answers(used: Any) -> str:
    return repr(used(TEXTS))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_it_answers_the_same_when_pickled_or_copied(make: Callable[[Path], Any], tmp_path: Path):
    used = make(tmp_path / "model")
    expected = answers(used)
    assert answers(copy.deepcopy(used)) == expected
    assert answers(pickle.loads(pickle.dumps(used))) == expected
    assert answers(cloudpickle.loads(cloudpickle.dumps(used))) == expected
    assert answers(used) == expected


def test_vectors_are_a_step_of_a_pipeline_after_use(tmp_path: Path):
    used = embedder(tmp_path / "model")
    texts, labels = [*"abcdef"] * 4, [0, 0, 0, 1, 1, 1] * 4
    expected = cross_val_score(LogisticRegression(), used.encode(texts), labels, cv=2)
    steps = make_pipeline(FunctionTransformer(used.encode), LogisticRegression())
    assert cross_val_score(steps, texts, labels, cv=2).tolist() == expected.tolist()


def test_workers_of_joblib_take_them_after_use(tmp_path: Path):
    used = [make(tmp_path / make.__name__ / "model") for make in MAKERS]
    expected = [answers(each) for each in used]
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(each)(TEXTS) for each in used)
    assert [*map(repr, found)] == expected
