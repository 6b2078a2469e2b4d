"""Bare values are named in brief, and ``help`` lists the settings of functions."""

import inspect
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert import Embedder, Explainer, Predictor, Scorer
from ownbert.exceptions import named_repr
from ownbert.tasks.metrics import Scores
from ownbert.unlabelled.topics import Topics
from support.tiny import made


def test_values_are_named_without_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # long paths are cut
    folder = Path("F")
    made(folder, "classification", "mlm")
    names = {repr(make(folder)) for make in (Predictor, Embedder, Scorer)}
    assert names == {
        "Predictor('F', task='classify', labels=<3 values>)",
        "Embedder('F', device='cpu', precision='float32')",
        "Scorer('F', passes=6, profile=False)",
    }
    assert repr(Explainer(folder)).startswith("Explainer(")
    assert repr(Scores({"accuracy": 0.91234, "mae": 2.0}, risk=((0.5, 0.1),) * 1000)) == (
        "Scores(accuracy=0.9123, mae=2)"
    )
    topics = Topics([], np.zeros(5), np.zeros(5), ["a secret"])
    assert repr(topics) == (
        "Topics(topics=<0 values>, of_text=<5 values>, similarity=<5 values>, periods=<1 value>)"
    )
    assert named_repr(topics, "x" * 500).endswith("…)")


def test_help_lists_the_settings():
    for function, names in (
        (ownbert.fit, ("minutes", "model", "metric", "seed", "labels_per_class")),
        (ownbert.finetune, ("epochs", "learning_rate", "model", "class_weights", "train")),
        (ownbert.pretrain, ("size", "max_minutes", "mask_rate", "objectives")),
    ):
        parameters = inspect.signature(function).parameters
        assert not [name for name in names if name not in parameters]
        assert parameters["seed"].default == 0
        for name in names:
            assert f"\n    {name}: " in inspect.getdoc(function), name
    assert inspect.signature(ownbert.fit).parameters["minutes"].default == 20
    assert max(map(len, inspect.getdoc(ownbert.fit).splitlines())) <= 100
