"""Folders of ``fit`` that others have made, or that are damaged."""

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ownbert
from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json
from ownbert.fitting.network_probe import probe
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.open_folder import open_folder
from ownbert.tasks.task import restored_task
from ownbert.text.tokenizer import Tokenizer
from support.cli import run_cli
from support.opened_files import opened
from support.shared import made_once
from support.tiny import LABELS

LINEAR = "members/tfidf/linear.json"


@pytest.fixture(scope="session")
def linear_blend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of ``fit`` with one linear model of two labels; do not write into it."""

    def make(folder: Path) -> None:
        rng = random.Random(0)
        labels = ["red", "blue"] * 20
        texts = [f"{label}{rng.randint(0, 3)} w{rng.randint(0, 9)}" for label in labels]
        ownbert.fit((texts, labels), minutes=0.01, output=folder / "best", quiet=True)

    return made_once(tmp_path_factory, "linear_blend", make) / "best"


@pytest.fixture
def copied(linear_blend: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(linear_blend, tmp_path / "moved"))


def test_a_folder_of_an_earlier_version_has_shifted_probabilities(copied: Path):
    said: list[str] = []
    ownbert.predict(copied, ["red1"], say=said.append)
    saved = json.loads((copied / "blend.json").read_text())
    del saved["ownbert_task"]["decision"]
    saved["offsets"] = [0.5, -0.5]
    (copied / "blend.json").write_text(json.dumps(saved))
    assert not any("earlier version" in each for each in said)
    for command in (("predict", copied, "--text", "red1"), ("evaluate", copied, copied / "a.csv")):
        (copied / "a.csv").write_text("text,label\nred1,red\nblue1,blue\n")
        told = run_cli(*command).stderr
        assert told.count("written by an earlier version of ownbert fit: its probabilities") == 1
    saved["offsets"] = [0.0, 0.0]
    (copied / "blend.json").write_text(json.dumps(saved))
    assert "earlier version" not in run_cli("predict", copied, "--text", "red1").stderr


def test_a_blend_with_a_network_has_its_tokenizer(classifier: Path, tmp_path: Path):
    """In ``serve``, where tokens are counted with it."""
    pytest.importorskip("fastapi")
    from ownbert.serve.served_model import ServedModel

    shutil.copytree(classifier, tmp_path / "blend" / "network")
    task = ownbert.Predictor(classifier).task
    member = BlendMember("network", "network", ("network",), 1.0)
    Blend((member,), task, (0.0,) * len(task.labels)).write(tmp_path / "blend")
    served = ServedModel("m", tmp_path / "blend")
    assert served.tokenizer.vocabulary() == Tokenizer.load(classifier).vocabulary()
    assert served.rows(["red1 green2"]).tokens == [4]


def test_an_exported_network_in_a_blend_takes_any_precision(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The automatic one, too, where torch would compute in bfloat16."""
    pytest.importorskip("onnxruntime")
    shutil.copytree(exported / "onnx", tmp_path / "blend/network")
    member = BlendMember("network", "network", ("network",), 1.0)
    task = restored_task("classify", {"pair": False}, LABELS)
    Blend((member,), task, (0.0,) * len(LABELS)).write(tmp_path / "blend")
    monkeypatch.setattr("ownbert.train.device.cpu_multiplies_bfloat16", lambda: True)
    expected = ownbert.Predictor(exported / "onnx", precision="auto").predict_proba(["a b"])
    found = ownbert.Predictor(tmp_path / "blend", precision="auto").predict_proba(["a b"])
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_blend_answers_in_memory_as_a_network_does(linear_blend: Path, tmp_path: Path):
    predictor = ownbert.Predictor(linear_blend)
    assert predictor("red1 w2")[0]["label"] == "red"
    assert [each["label"] for each in predictor(["red1", "blue2"])] == ["red", "blue"]
    estimator = ownbert.OwnBertClassifier.from_pretrained(linear_blend)
    texts = ["red1 w2", "blue3"]
    assert np.array_equal(estimator.predict_proba(texts), predictor.predict_proba(texts))
    again = pickle.loads(pickle.dumps(estimator))
    again.save_pretrained(tmp_path / "saved")
    assert ownbert.Predictor(tmp_path / "saved").predict(texts).tolist() == ["red", "blue"]
    assert ownbert.evaluate(linear_blend, (texts, ["red", "blue"])).accuracy == 1


def test_nothing_known_is_answered_with_the_frequencies_of_labels(copied: Path):
    """Not with certainty, however large the weight of a blend is."""
    values = read_json(copied / "blend.json")
    values["members"][0]["weight"], values["offsets"] = 10.0, [-3.0, 3.0]
    (copied / "blend.json").write_text(json.dumps(values))
    found = ownbert.Predictor(copied).predict_proba(["hello", "", "red1"])
    assert found[:2] == pytest.approx(np.full((2, 2), 0.5), abs=0.05)
    assert found[2].max() > 0.9


def test_texts_without_a_known_word_are_reported(linear_blend: Path, tmp_path: Path):
    path = tmp_path / "rows.csv"
    for word, expected in (("hello", True), ("red1", False)):
        path.write_text(f"text,label\n{word},red\nhello,blue\n")
        done = run_cli("evaluate", linear_blend, path)
        assert ("warning: the models know no word of these texts" in done.stderr) == expected


def test_words_that_a_frozen_network_does_not_know_are_reported(
    pretrained: Path, topics: Path, tmp_path: Path
):
    probe(pretrained, topics / "train.csv", tmp_path / "probe")
    for text, expected in (("hello there", True), ("red1", False)):
        done = run_cli("predict", tmp_path / "probe", text)
        assert ("vocabulary contains no word of these texts" in done.stderr) == expected


def test_texts_without_known_words_are_counted_as_they_are_predicted(tmp_path: Path):
    """In the report of ``fit`` and in ``evaluate``; no rare label, though the threshold is low."""
    rng = random.Random(0)

    def rows(count: int) -> tuple[list[str], list[list[str]]]:
        labels = [[each for each in "abc" if rng.random() < 0.4] for _ in range(count)]
        texts = [
            " ".join(each for each in "abc" if rng.random() < (0.6 if each in row else 0.3))
            for row in labels
        ]
        return [f"{text} w{rng.randint(0, 9)}" for text in texts], labels

    train, (texts, labels) = rows(120), rows(40)
    test = ["unbekannt"] * 20 + texts[20:], labels
    predictor = ownbert.fit(train, test=test, minutes=0.02, output=tmp_path / "best", quiet=True)
    report = read_json(tmp_path / "best" / "report.json")
    (score,) = (r["test_score"] for r in report["leaderboard"] if r["name"] == report["best"])
    assert predictor.task.threshold < 0.35
    assert predictor.evaluate(*test).micro_f1 == pytest.approx(score, abs=1e-9)
    assert predictor("unbekannt") == predictor("") == []
    assert predictor.predict_proba("unbekannt").max() > predictor.task.threshold


def test_a_blend_is_read_once(linear_blend: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    output = tmp_path / "answers.csv"
    for call in (
        lambda: ownbert.predict(linear_blend, ["red1 w2"]),
        lambda: ownbert.predict(linear_blend, ["red1 w2"], output),
        lambda: ownbert.evaluate(linear_blend, (["red1 w2"], ["red"])),
    ):
        assert opened(call, monkeypatch)["blend.json"] == 1


def refused(folder: Path) -> None:
    with pytest.raises(InputError) as found:
        open_folder(folder)
    assert len(str(found.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("file", "place", "value"),
    [
        ("blend.json", ("members", 0, "weight"), float("nan")),
        ("blend.json", ("members", 0, "weight"), -1.0),
        ("blend.json", ("members", 0, "folders"), []),
        ("blend.json", ("members", 0, "folders"), [".."]),
        ("blend.json", ("members", 0, "folders"), ["/"]),
        ("blend.json", ("labels",), ["red"]),
        ("blend.json", ("offsets",), [0.0]),
        ("blend.json", ("offsets",), [0.0, float("inf")]),
        ("blend.json", ("offsets",), "no"),
        ("blend.json", ("labels",), ["red", "red"]),
        ("blend.json", ("labels",), ["red", "blue", "green"]),
        ("blend.json", ("ownbert_task",), {}),
        ("blend.json", ("ownbert_task",), {"name": "tag"}),
        ("blend.json", ("ownbert_task",), {"name": "multilabel", "threshold": "x"}),
        ("blend.json", ("ownbert_task", "columns"), {"nothing": "x"}),
        ("blend.json", ("ownbert_task", "columns"), {"text": 3}),
        ("blend.json", ("ownbert_task", "settings"), 3),
        (LINEAR, ("view",), ["tfidf"]),
        (LINEAR, ("view",), "lsa"),
        (LINEAR, ("kind",), "nothing"),
        (LINEAR, ("link",), "nothing"),
    ],
)
def test_bad_values_are_one_line(copied: Path, file: str, place: tuple[Any, ...], value: Any):
    about = json.loads((copied / file).read_text())
    *outer, last = place
    own = about
    for key in outer:
        own = own[key]
    own[last] = value
    (copied / file).write_text(json.dumps(about))
    refused(copied)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("weights", lambda a: a[:-1]),
        ("weights", lambda a: a[:, :1]),
        ("weights", lambda a: a * np.nan),
        ("bias", lambda a: a[:0]),
        ("prior", lambda a: a[:1]),
        ("prior", lambda a: a + np.inf),
        ("view.idf", lambda a: a[:1]),
        ("view.idf", lambda a: a * np.inf),
        ("view.ngrams.1", lambda a: a[:1]),
        ("view.ngrams.2", lambda a: a[None]),
    ],
)
def test_bad_arrays_are_one_line(
    copied: Path, name: str, change: Callable[[np.ndarray], np.ndarray]
):
    path = copied / "members" / "tfidf" / "linear.safetensors"
    arrays = load_file(path)
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    save_file(arrays, path)
    refused(copied)
