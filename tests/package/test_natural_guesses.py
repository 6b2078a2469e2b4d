"""What people write first, coming from other libraries: it works, or one line says what to take."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ownbert
from ownbert import Embedder, InputError, Predictor


@pytest.fixture(scope="module")
def rows(topics: Path) -> tuple[list[str], list[str]]:
    with (topics / "test.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    return [row["text"] for row in found], [row["label"] for row in found]


@pytest.fixture(scope="module")
def predictor(classifier: Path) -> Predictor:
    return Predictor(classifier)


def test_a_predictor_like_an_estimator(predictor: Predictor, classifier: Path, rows, topics: Path):
    texts, labels = rows
    expected = ownbert.evaluate(classifier, texts, labels)
    assert predictor.classes_.tolist() == list(predictor.labels)
    for given in ((texts, labels), (topics / "test.csv",), (str(topics / "test.csv"),)):
        assert predictor.evaluate(*given).values == expected.values
        assert predictor.score(*given) == expected.values["accuracy"]
    right = np.mean(predictor.predict(texts) == np.asarray(labels))
    assert predictor.score(texts, labels) == pytest.approx(right)
    with pytest.raises(InputError, match="purple"):
        predictor.score(texts[:1], ["purple"])


def test_a_predictor_is_saved_without_what_training_needs(
    classifier: Path, tmp_path: Path, rows: tuple[list[str], list[str]]
):
    folder = tmp_path / "best"
    Predictor(classifier).save(folder)
    secret = tmp_path / "secret.txt"
    secret.write_text("not of the model")
    (folder / "link.txt").symlink_to(secret)
    (folder / "work").mkdir()
    (folder / "work" / "rows.txt").write_text("labelled texts")
    (folder / "checkpoints").mkdir()
    copy = tmp_path / "new" / "copy"
    saved = Predictor(folder)
    saved.save_pretrained(copy)
    names = {path.name for path in copy.rglob("*")}
    assert {"config.json", "model.safetensors"} <= names
    assert not names & {"link.txt", "work", "checkpoints", "rows.txt"}
    assert Predictor(copy).predict(rows[0]).tolist() == saved.predict(rows[0]).tolist()
    with pytest.raises(InputError, match="read by this command"):
        saved.save(folder)
    with pytest.raises(InputError, match="a file has that name"):
        saved.save(secret)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    Embedder(folder).save(tmp_path / "vectors")
    assert not (tmp_path / "vectors" / "link.txt").exists()


def test_the_leaderboard_is_that_of_the_report(classifier: Path, tmp_path: Path):
    folder = tmp_path / "best"
    Predictor(classifier).save(folder)
    with pytest.raises(InputError, match=r"no report\.json from ownbert fit"):
        Predictor(folder).leaderboard()
    models = [{"name": "a", "score": 0.5}, {"name": "b", "score": None}, {"name": "c", "score": 1}]
    (folder / "report.json").write_text(json.dumps({"leaderboard": models}))
    assert [row["name"] for row in Predictor(folder).leaderboard()] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("explain", "ownbert.explain"),
        ("fit", "ownbert.fit or"),
        ("encode", "Embedder"),
        ("tokenizer", "load_tokenizer"),
        ("id2label", "labels"),
        ("feature_importances_", "ownbert.explain"),
        ("nix", "no attribute 'nix'$"),
    ],
)
def test_attributes_of_a_predictor(predictor: Predictor, name: str, instead: str):
    with pytest.raises(AttributeError, match=instead):
        getattr(predictor, name)


NAMES = {
    "OwnBERT": r"ownbert\.fit\(texts, labels\)",
    "OwnBERTClassifier": r"use ownbert\.OwnBertClassifier",
    "OwnBERTRegressor": r"use ownbert\.OwnBertRegressor",
    "OwnBertForSequenceClassification": r"ownbert\.fit",
    "predictor": r"use ownbert\.Predictor",
    "embedder": r"use ownbert\.Embedder",
    "train": "fit, ownbert.finetune or ownbert.pretrain",
    "serve": "the command: ownbert serve",
    "Trainer": "ownbert.finetune",
    "TrainingArguments": "options of ownbert.finetune",
    "TrainerCallback": "ownbert.Callbacks",
    "AutoModelForObjectDetection": r"ownbert\.load",
    "pipeline": r"Predictor\(folder\)",
    "SentenceTransformer": r"Embedder\(folder\)",
    "CrossEncoder": "Predictor",
    "util": "similarity",
    "cos_sim": "similarity",
    "train_supervised": r"ownbert\.fit\(file\)",
    "train_unsupervised": "pretrain",
    "load_model": "Predictor",
    "train_test_split": "holds out rows",
    "accuracy_score": "ownbert.evaluate",
    "set_seed": "seed=",
    "nix": "no attribute 'nix'$",
}


@pytest.fixture(scope="module")
def lines_of_the_package() -> dict[str, str]:
    """What the package says of each name, in a process in which no module was imported before;
    others import packages such as ownbert.serve."""
    code = "import json, ownbert\nfound = {}\n"
    code += f"for name in {list(NAMES)}:\n    try: getattr(ownbert, name)\n"
    code += "    except AttributeError as error: found[name] = str(error)\n"
    command = [sys.executable, "-c", code + "print(json.dumps(found))"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(("name", "instead"), NAMES.items())
def test_names_of_the_package(name: str, instead: str, lines_of_the_package: dict[str, str]):
    (line,) = lines_of_the_package[name].splitlines()
    with pytest.raises(AssertionError, match=instead):
        raise AssertionError(line)


def test_packages_are_imported_as_before():
    code = "import ownbert.serve, ownbert.translation; from ownbert import serve; print(serve)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "module" in done.stdout


def test_rows_by_the_names_of_others(
    rows: tuple[list[str], list[str]], pretrained: Path, tmp_path: Path
):
    texts, labels = rows
    for given in ({"texts": texts, "labels": labels}, {"X": texts, "y": labels}):
        options = {"epochs": 1, "quiet": True, "overwrite": True}
        ownbert.finetune(model=pretrained, output=tmp_path / "out", **given, **options)
    assert Predictor(tmp_path / "out").labels
    with pytest.raises(InputError, match="output is needed"):
        ownbert.finetune(model=pretrained, train=(texts, labels))
    with pytest.raises(InputError, match=r"fit\(texts, labels\)"):
        ownbert.fit()
    with pytest.raises(InputError, match="all rows have the label"):
        ownbert.fit(texts=texts[:1], labels=labels[:1], minutes=0.1, quiet=True)


def test_values_of_another_kind_are_one_line(predictor: Predictor, pretrained: Path):
    cases: list[dict[str, Any]] = [{"top_k": "x"}, {"top_k": 0}, {"top_k": -1}, {"threshold": "x"}]
    for options in cases:
        with pytest.raises(InputError, match=r"it must be in|threshold has 'x'; write yes=0\.9"):
            predictor("red1 9", **options)
    with pytest.raises(InputError, match="batch_tokens is 'x'"):
        Embedder(pretrained).encode(["a"], batch_tokens="x")  # pyright: ignore
    for texts in (None, [3]):
        with pytest.raises(InputError, match="a text is needed"):
            ownbert.fill(pretrained, texts)  # pyright: ignore
