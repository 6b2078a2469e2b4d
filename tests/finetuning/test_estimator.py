"""The scikit-learn estimators: on three easy classes, and with scikit-learn's own tools."""

import _thread
import csv
import importlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, f1_score, log_loss, r2_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from ownbert import (
    InputError,
    OwnBertClassifier,
    OwnBertRegressor,
    Predictor,
    evaluate,
    finetune,
    load_tokenizer,
    predict,
)
from ownbert.checkpoint import weights as weight_files
from ownbert.config.encoder import SIZES
from ownbert.finetuning import estimator
from ownbert.finetuning.arrays import labels_of, rows_of, texts_of
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from support.tiny import change_config, made

UNITS = {"red": 100.0, "green": 250.0, "blue": 300.0}


def labels_and_texts(path: Path) -> tuple[list[str], list[str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [r["label"] for r in rows], [r["text"] for r in rows]


def predicted(
    folder: Path, texts: list, tmp_path: Path, *, probabilities: bool = True
) -> list[dict]:
    """What the command line says of texts or pairs."""
    with (tmp_path / "in.csv").open("w", newline="") as file:
        pairs = not isinstance(texts[0], str)
        names = ["text1", "text2"] if pairs else ["text"]
        csv.writer(file).writerows([names, *(texts if pairs else ([t] for t in texts))])
    predict(folder, tmp_path / "in.csv", tmp_path / "out.jsonl", probabilities=probabilities)
    return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def train(topics: Path) -> tuple[list[str], list[str]]:
    return labels_and_texts(topics / "train.csv")


@pytest.fixture(scope="module")
def test(topics: Path) -> tuple[list[str], list[str]]:
    return labels_and_texts(topics / "test.csv")


@pytest.fixture(scope="module")
def fitted(pretrained: Path, train) -> OwnBertClassifier:
    y, X = train
    return OwnBertClassifier(pretrained, epochs=4).fit(X, y)


def test_it_learns_the_classes_as_scikit_learn_has_them(fitted: OwnBertClassifier, test):
    y, X = test
    found, probabilities = fitted.predict(X), fitted.predict_proba(X)
    assert fitted.classes_.tolist() == ["blue", "green", "red"]
    assert found.dtype == np.asarray(y).dtype
    assert fitted.score(X, y) == accuracy_score(y, found) > 0.9
    assert probabilities.shape == (45, 3)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)
    assert (fitted.classes_[probabilities.argmax(1)] == found).all()
    assert log_loss(y, probabilities, labels=fitted.classes_) < 0.7
    assert roc_auc_score(y, probabilities, multi_class="ovr") > 0.9


def test_it_is_the_same_as_finetune_and_predict(
    fitted: OwnBertClassifier, pretrained: Path, topics: Path, test, tmp_path: Path
):
    finetune(
        model=pretrained, train=topics / "train.csv", output=tmp_path / "m", epochs=4, quiet=True
    )
    rows = predicted(tmp_path / "m", test[1], tmp_path)
    there = [[row["probabilities"][name] for name in fitted.classes_] for row in rows]
    assert np.abs(fitted.predict_proba(test[1]) - there).max() < 1e-5


def test_a_saved_one_is_for_predict_and_transformers(
    fitted: OwnBertClassifier, test, tmp_path: Path, transformers: Any
):
    X, folder = test[1][:9], tmp_path / "saved"
    fitted.save(folder)
    mine = fitted.predict_proba(X)
    rows = predicted(folder, X, tmp_path)
    assert [row["label"] for row in rows] == fitted.predict(X).tolist()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    for text, expected in zip(X, mine, strict=True):
        ids = [tokenizer.cls_id, *tokenizer.encode_batch([text])[0][:46], tokenizer.sep_id]
        with torch.no_grad():
            found = theirs(input_ids=torch.tensor([ids])).logits.softmax(-1)[0]
        assert np.abs(found.numpy() - expected).max() < 1e-5
    assert theirs.config.id2label == {0: "blue", 1: "green", 2: "red"}


@pytest.mark.parametrize(
    "classes", [[10, 2, -1], [10.0, 2.0, -1.0], [True, False, True], np.asarray(["c", "a", "b"])]
)
def test_labels_of_any_kind_come_back_in_their_kind(
    classes, pretrained: Path, train, tmp_path: Path
):
    values = dict(zip(UNITS, classes, strict=True))
    y = np.asarray([values[label] for label in train[0]])
    X = train[1]
    model = OwnBertClassifier(pretrained, epochs=3).fit(X, y)
    assert model.classes_.tolist() == np.unique(y).tolist()
    assert model.predict(X).dtype == y.dtype
    assert model.score(X, y) > 0.9  # so the columns are those of classes_
    model.save(tmp_path / "saved")
    text = [json.dumps(v) if not isinstance(v, str) else v for v in model.predict(X).tolist()]
    assert [row["label"] for row in predicted(tmp_path / "saved", X, tmp_path)] == text


def test_texts_of_any_kind_are_the_same(fitted: OwnBertClassifier, test):
    X = test[1]
    expected = fitted.predict_proba(X)
    for other in (
        tuple(X),
        np.asarray(X),
        np.asarray(X, dtype=object),
        np.asarray(X)[:, None],
        [text.split() for text in X],
    ):
        assert np.array_equal(fitted.predict_proba(other), expected)


def test_pairs_are_tuples_or_two_columns(pretrained: Path, train, tmp_path: Path):
    """Whether both texts are of one topic: what no text tells alone."""
    labels, texts = train
    pairs = [(a, b) for a in texts[:10] for b in texts[10:20]]
    y = [a == b for a in labels[:10] for b in labels[10:20]]
    model = OwnBertClassifier(pretrained, epochs=1, pooling="mean").fit(pairs, y)
    expected = model.predict_proba(pairs)
    assert np.array_equal(model.predict_proba(np.asarray(pairs)), expected)
    model.save(tmp_path / "saved")
    rows = predicted(tmp_path / "saved", pairs, tmp_path)
    there = [[row["probabilities"][name] for name in ("false", "true")] for row in rows]
    assert np.abs(expected - there).max() < 1e-5
    with pytest.raises(InputError, match="must be a pair of texts, as in fit"):
        model.predict(texts)


def test_columns_of_a_data_frame_must_be_those_of_fit(pretrained: Path):
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame({"title": ["a b", "c d"] * 3, "body": ["e f", "a"] * 3})
    y = [0, 1] * 3
    for model in (OwnBertClassifier(pretrained, epochs=1), OwnBertRegressor(pretrained, epochs=1)):
        expected = model.fit(X, y).predict(X)
        assert model.feature_names_in_.tolist() == ["title", "body"]
        assert np.array_equal(model.predict(X.to_numpy()), expected)
        for other in (X[["body", "title"]], X.rename(columns={"body": "text"}), X[["body"]]):
            with pytest.raises(InputError, match="in their order: title, body"):
                model.predict(other)
        model.fit(X.to_numpy(), y)
        assert not hasattr(model, "feature_names_in_")
        model.predict(X)


def test_max_length_holds_after_fit_and_in_a_saved_folder(pretrained: Path, train, tmp_path: Path):
    y, X = train
    model = OwnBertClassifier(pretrained, epochs=1, max_length=8, long="cut").fit(X, y)
    cut = [" ".join(text.split()[:6]) for text in X]
    expected = model.predict_proba(X)
    assert np.array_equal(model.predict_proba(cut), expected)
    model.save(tmp_path / "saved")
    rows = predicted(tmp_path / "saved", X, tmp_path)
    there = [[row["probabilities"][name] for name in model.classes_] for row in rows]
    assert np.abs(expected - there).max() < 1e-5


@pytest.mark.parametrize("of_class", [lambda k: str(k % 2), lambda k: "x" if k < 39 else "y"])
def test_copies_of_a_text_are_not_held_out(of_class):
    given = [(f"text {k}{end}", of_class(k)) for k in range(40) for end in ("", " ", "!")]
    rows = [Row(i, (text,), label) for i, (text, label) in enumerate(given)]
    classes = np.array([row.target for row in rows])
    parts = OwnBertClassifier(dev_share=0.2)._split(rows, classes, seed=0)
    train, dev = ({row.texts[0].rstrip(" !") for row in part or ()} for part in parts)
    assert train
    assert dev
    assert not train & dev
    same, _ = OwnBertClassifier(dev_share=0.5)._split(rows[:3], np.array(["x"] * 3), seed=0)
    assert len(same) in (1, 2)  # copies of a single text


def test_class_weights_by_label(pretrained: Path, train):
    labels, X = train
    y = [list(UNITS).index(label) for label in labels]
    found = []
    for weights in ({0: 50, 2: 0.5}, "0=50,2=0.5", None):
        model = OwnBertClassifier(pretrained, epochs=1, class_weights=weights).fit(X, y)
        found.append(model.predict_proba(X))
    assert np.array_equal(found[0], found[1])
    assert found[0][:, 0].mean() > found[2][:, 0].mean() + 0.05


@pytest.mark.parametrize("kind", [OwnBertClassifier, OwnBertRegressor])
def test_scikit_learns_own_checks_that_need_no_numbers(kind):
    for name in (
        *("no_attributes_set_in_init", "get_params_invariance", "set_params"),
        *("estimator_cloneable", "estimator_repr", "mixin_order"),
        *("do_not_raise_errors_in_init_or_set_params", "valid_tag_types"),
    ):
        # Some of them are of newer versions.
        check = getattr(estimator_checks, f"check_{name}", None)
        if check is not None:
            check(kind.__name__, kind("folder"))
    with pytest.raises(NotFittedError):
        kind("folder").predict(["red1"])
    with pytest.raises(NotFittedError):
        kind("folder").save("anywhere")


def test_predict_changes_nothing_in_an_estimator(pretrained: Path, classifier: Path, train):
    y, X = train
    for model in (
        OwnBertClassifier(pretrained, epochs=1).fit(X, y),
        OwnBertClassifier.from_pretrained(classifier),
    ):
        before = dict(vars(model))
        model.predict(X)
        assert vars(model) == before


def test_a_clone_learns_the_same(fitted: OwnBertClassifier, train):
    other: Any = clone(fitted)
    assert not hasattr(other, "classes_")
    y, X = train
    assert np.array_equal(other.fit(X, y).predict_proba(X), fitted.predict_proba(X))


LOADED = """
import sys, joblib, numpy
model, X = joblib.load(sys.argv[1])
numpy.save(sys.argv[2], model.predict_proba(X))
"""


@pytest.mark.slow
def test_it_is_pickled_for_another_process(fitted: OwnBertClassifier, test, tmp_path: Path):
    X = test[1]
    expected = fitted.predict_proba(X)  # packs the model, which no pickle can hold
    joblib.dump((fitted, X), tmp_path / "model.joblib")
    files = [tmp_path / "model.joblib", tmp_path / "found.npy"]
    subprocess.run([sys.executable, "-c", LOADED, *files], check=True)
    assert np.abs(np.load(files[1]) - expected).max() < 1e-6


def cleaned(texts: list[str]) -> list[str]:
    return [text.lower().strip() for text in texts]


@pytest.mark.slow
def test_a_grid_of_pipelines_in_two_processes(pretrained: Path, train, test):
    y, X = train
    steps = [("clean", FunctionTransformer(cleaned)), ("bert", OwnBertClassifier(pretrained))]
    grid = {"bert__learning_rate": np.asarray([1e-3, 1e-7]), "bert__epochs": np.asarray([3])}
    search: Any = GridSearchCV(Pipeline(steps), grid, cv=2, n_jobs=2)
    search.fit([text.upper() for text in X], y)
    assert search.best_params_ == {"bert__learning_rate": 1e-3, "bert__epochs": 3}
    assert search.score(test[1], test[0]) > 0.8
    best = search.best_estimator_
    scores = cross_val_score(best, X, y, cv=2)
    assert scores.shape == (2,)
    assert scores.min() > 0.6


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where all temporary files go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_it_leaves_nothing_and_says_nothing(pretrained: Path, train, temporary: Path, capfd):
    y, X = train
    OwnBertClassifier(pretrained, epochs=1).fit(X, y)
    assert list(temporary.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    OwnBertClassifier(pretrained, epochs=1, verbose=True).fit(X, y)
    assert "60 training and no dev documents, 3 labels" in capfd.readouterr().out


def test_it_can_be_stopped(pretrained: Path, train, temporary: Path):
    def watch() -> None:
        while not list(temporary.glob("*/log.jsonl")):
            time.sleep(0.002)
        _thread.interrupt_main()

    threading.Thread(target=watch, daemon=True).start()
    y, X = train
    model = OwnBertClassifier(pretrained, epochs=1000)
    with pytest.raises(KeyboardInterrupt) as stopped:
        model.fit(X, y)
    assert "resume" not in str(stopped.value)  # there is nothing to go on from
    assert list(temporary.iterdir()) == []
    assert not hasattr(model, "classes_")


def test_a_share_is_held_out_and_ends_the_run(
    pretrained: Path, topics: Path, train, tmp_path: Path
):
    y, X = train
    output = tmp_path / "run"
    settings = {"epochs": 30, "dev_share": 0.25, "patience": 2, "precision": "float32"}
    model = OwnBertClassifier(pretrained, **settings, output=output).fit(X, y)
    log = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    held_out = [row for row in log if row.get("evaluation")]
    assert 2 < len(held_out) < 30
    _, dev = model._split(rows_of(texts_of(X), y), np.asarray(y), 0)
    assert dev is not None
    assert len(dev) == 15
    found = model.predict([row.texts for row in dev])
    best = f1_score([row.target for row in dev], found, average="macro")
    assert best == pytest.approx(max(row["macro_f1"] for row in held_out))
    scores = evaluate(output, topics / "test.csv")
    truth, texts = labels_and_texts(topics / "test.csv")
    assert model.score(texts, truth) == pytest.approx(scores.accuracy)
    with pytest.raises(InputError, match="already contains a model"):
        model.fit(X, y)


def test_every_class_is_held_out_in_its_share(pretrained: Path, train, capfd):
    labels, texts = train
    others = [i for i, label in enumerate(labels) if label != "red"]
    rows = [*others, *[i for i, label in enumerate(labels) if label == "red"][:5]]
    y, X = [labels[i] for i in rows], [texts[i] for i in rows]
    model = OwnBertClassifier(pretrained, epochs=1, dev_share=0.2, verbose=True)
    _, dev = model._split(rows_of(texts_of(X), y), np.asarray(y), 0)
    assert dev is not None
    assert sorted(Counter(row.target for row in dev).values()) == [1, 4, 4]
    model.fit(X, y)
    assert "36 training and 9 dev documents" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dev_share": 1.5}, "dev_share is 1.5"),
        ({"epochs": 0}, "run.epochs is 0"),
        ({"max_length": 4}, "max_length 4 must be from 8 to 48"),
        ({"pooling": "middle"}, "task.pooling is 'middle'"),
        ({"class_weights": {"z": 2}}, "task.class_weights has 'z=2'"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict, said: str, pretrained: Path):
    with pytest.raises(InputError, match=said):
        OwnBertClassifier(pretrained, **settings).fit(["a", "b"] * 3, ["x", "y"] * 3)


def test_a_finished_folder_is_a_fitted_estimator(classifier: Path, test, tmp_path: Path):
    y, X = test
    found = OwnBertClassifier.from_pretrained(classifier)
    assert np.allclose(found.predict_proba(X), Predictor(classifier).predict_proba(X), atol=1e-6)
    assert accuracy_score(y, found.predict(X)) == evaluate(classifier, (X, y)).accuracy
    assert (OwnBertClassifier(classifier).predict(X) == found.predict(X)).all()
    found.save_pretrained(tmp_path / "saved")
    assert (Predictor(tmp_path / "saved").predict(X) == found.predict(X)).all()
    with pytest.raises(InputError, match="trained for classify, but OwnBertRegressor is for"):
        OwnBertRegressor.from_pretrained(classifier)


@pytest.mark.parametrize("names", [(0, 10, 2), (0.0, 10.0, 2.0), (True, False)])
def test_a_saved_estimator_keeps_the_type_of_its_labels(names, pretrained: Path, tmp_path: Path):
    X = ["red1 red2", "green1 green2", "blue1 blue2"][: len(names)] * 2
    found = OwnBertClassifier(pretrained, epochs=1).fit(X, [*names] * 2)
    found.save_pretrained(tmp_path / "saved")
    again = OwnBertClassifier.from_pretrained(tmp_path / "saved")
    assert again.classes_.dtype == found.classes_.dtype
    assert again.classes_.tolist() == found.classes_.tolist() == sorted(names)
    np.testing.assert_allclose(again.predict_proba(X), found.predict_proba(X), atol=1e-5)


def test_a_second_fit_needs_another_folder(pretrained: Path, tmp_path: Path):
    found = OwnBertClassifier(pretrained, epochs=1, output=tmp_path / "out")
    found.fit(["red1", "green1"], ["a", "b"])
    with pytest.raises(InputError, match="leave output out, then call save_pretrained"):
        found.fit(["red1", "green1"], ["a", "b"])


def test_a_finished_folder_is_read_once(classifier: Path, monkeypatch: pytest.MonkeyPatch):
    read, plain = Counter[str](), weight_files.read_file

    def counting(path: Path) -> Any:
        read[path.name] += 1
        return plain(path)

    monkeypatch.setattr(weight_files, "read_file", counting)
    OwnBertClassifier.from_pretrained(classifier)
    assert read == {"model.safetensors": 1}


@pytest.mark.parametrize(
    "labels", [("POSITIVE", "NEUTRAL", "NEGATIVE"), ("2", "10", "100"), ("b", "B", "a")]
)
def test_classes_of_a_folder_are_in_the_order_of_the_metrics(labels, tmp_path: Path):
    folder, words = tmp_path / "model", [*"abcdef"]
    made(folder, "classification")
    change_config(folder, id2label=dict(enumerate(labels)))
    model = OwnBertClassifier.from_pretrained(folder)
    assert model.classes_.tolist() == np.unique(labels).tolist() != [*labels]
    predictor = Predictor(folder)
    y = predictor.predict(words)
    assert model.predict(words).tolist() == y.tolist()
    there = dict(zip(labels, predictor.predict_proba(words).T, strict=True))
    expected = np.stack([there[name] for name in model.classes_], 1)
    assert np.allclose(model.predict_proba(words), expected, atol=1e-6)


def test_metrics_and_calibration_of_a_finished_folder(pretrained: Path, train, tmp_path: Path):
    y, X = train
    y = ["POSITIVE" if label == "red" else "NEGATIVE" for label in y]
    rows = sorted(zip(X, y, strict=True), key=lambda row: row[1], reverse=True)
    finetune(
        model=pretrained,
        train=rows,
        label_names="POSITIVE,NEGATIVE",
        output=tmp_path / "model",
        epochs=4,
        quiet=True,
    )
    model = OwnBertClassifier.from_pretrained(tmp_path / "model")
    probabilities = model.predict_proba(X)
    assert model.classes_.tolist() == ["NEGATIVE", "POSITIVE"]
    assert roc_auc_score(y, probabilities[:, 1]) > 0.95
    assert log_loss(y, probabilities) < 0.4
    assert np.allclose(model.predict_log_proba(X), np.log(probabilities))
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), cv=2).fit(X, y)
    assert calibrated.score(X, y) > 0.9


def test_no_texts_have_no_answers(fitted: OwnBertClassifier, pretrained: Path, train):
    assert fitted.predict([]).shape == (0,)
    assert fitted.predict([]).dtype == fitted.classes_.dtype
    assert fitted.predict_proba([]).shape == fitted.predict_log_proba([]).shape == (0, 3)
    y = np.linspace(0, 1, 2 * len(train[1])).reshape(-1, 2)
    assert OwnBertRegressor(pretrained, epochs=1).fit(train[1], y).predict([]).shape == (0, 2)


def test_names_of_scikit_learn_for_weights_and_seeds(pretrained: Path, train):
    y, X = train
    options: dict = {"epochs": 1, "precision": "float32"}

    def probabilities(**more: Any) -> np.ndarray:
        return OwnBertClassifier(pretrained, **options, **more).fit(X, y).predict_proba(X)

    weights = {"red": 5, "blue": 0.5}
    assert (probabilities(class_weight=weights) == probabilities(class_weights=weights)).all()
    assert (probabilities(random_state=3) == probabilities(seed=3)).all()
    drawn = [probabilities(random_state=np.random.RandomState(7)) for _ in range(2)]
    assert (drawn[0] == drawn[1]).all()
    assert not np.allclose(drawn[0], probabilities())
    with pytest.raises(InputError, match="class_weight and class_weights are both set"):
        probabilities(class_weight="balanced", class_weights="balanced")


def test_without_a_model_the_texts_make_one(
    train, test, temporary: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.finetuning.estimator._STEPS", 30)
    model = OwnBertClassifier(max_length=32, epochs=8).fit(train[1], train[0])
    assert model.score(test[1], test[0]) > 0.9
    assert model.model is None
    assert model.model_.config.hidden_size == SIZES["tiny"][1]
    assert list(temporary.iterdir()) == []
    pairs = [("a b", "c"), ("d", "e f"), ("a", "c c"), ("d d", "f")]
    monkeypatch.setattr("ownbert.finetuning.estimator._STEPS", 5)
    found = OwnBertClassifier(epochs=1, max_length=8).fit(pairs, ["x", "y", "x", "y"])
    assert found.predict(pairs).shape == (4,)


def test_the_network_of_the_texts_is_pretrained_in_the_given_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    given = {}
    monkeypatch.setattr(estimator, "pretrain", lambda *_, **options: given.update(options))
    recipe = resolve(FinetuneRecipe, options={"precision": "float32"})
    estimator.network_of(["a b", "c d"], tmp_path, recipe)
    assert given["precision"] == "float32"


def test_a_weight_of_nothing_is_no_text(pretrained: Path):
    X, y = ["red1"] * 8 + ["blue1"] * 8, ["x", "y"] * 8
    weights = np.asarray([1.0, 0.0] * 8)
    estimator = OwnBertClassifier(pretrained, epochs=10)
    plain = estimator.fit(X, y).predict_proba(["red1"])
    same = estimator.fit(X, y, sample_weight=np.full(16, 3.0)).predict_proba(["red1"])
    assert np.array_equal(plain, same)
    only_x = estimator.fit(X, y, sample_weight=weights).predict_proba(["red1"])
    assert only_x[0, 0] > plain[0, 0] + 0.1
    for wrong in ([1.0], [-1.0] * 16, [0.0] * 16, ["x"] * 16):
        with pytest.raises(InputError, match="sample_weight must be"):
            estimator.fit(X, y, sample_weight=wrong)


def test_a_regressor_answers_in_the_units_of_y(pretrained: Path, train, test, tmp_path: Path):
    numbers = [np.asarray([UNITS[label] for label in part[0]]) for part in (train, test)]
    model = OwnBertRegressor(pretrained, epochs=8).fit(train[1], numbers[0])
    found = model.predict(test[1])
    assert found.shape == (45,)
    assert model.score(test[1], numbers[1]) == r2_score(numbers[1], found) > 0.8
    model.save(tmp_path / "saved")
    rows = predicted(tmp_path / "saved", test[1], tmp_path, probabilities=False)
    assert [row["value"] for row in rows] == pytest.approx(found.tolist(), rel=1e-5)


def test_a_regressor_of_several_numbers(pretrained: Path, train, test, tmp_path: Path):
    one = np.asarray([UNITS[label] for label in train[0]])
    y = np.stack([one, -one / 1000], 1)
    settings = {"epochs": 8, "dev_share": 0.2, "loss": "huber"}
    model = OwnBertRegressor(pretrained, **settings).fit(train[1], y)
    found = model.predict(test[1])
    truth = np.asarray([UNITS[label] for label in test[0]])
    assert found.shape == (45, 2)
    assert r2_score(np.stack([truth, -truth / 1000], 1), found) > 0.5
    joblib.dump(model, tmp_path / "model")
    assert np.allclose(joblib.load(tmp_path / "model").predict(test[1]), found)


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "ownbert.finetuning.estimator")
    with pytest.raises(InputError, match=r"needs scikit-learn: pip install 'ownbert\[eval\]'"):
        importlib.import_module("ownbert.finetuning.estimator")


def test_an_exported_folder_predicts_with_its_engine(exported: Path, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    texts = ["a b", "c"]
    expected = OwnBertClassifier.from_pretrained(exported / "classifier").predict_proba(texts)
    model = OwnBertClassifier.from_pretrained(exported / "onnx")
    assert np.abs(model.predict_proba(texts) - expected).max() < 1e-5
    model.save(tmp_path / "saved")
    again = OwnBertClassifier.from_pretrained(tmp_path / "saved")
    assert np.abs(again.predict_proba(texts) - expected).max() < 1e-5


@pytest.mark.parametrize(
    ("X", "y", "said"),
    [
        (["a", "b", "c"], ["x", "y"], "X has 3 texts, but y has 2 values"),
        (["a", "b"], [], "X has 2 texts, but y has 0 values"),
        ([], [], "X is empty"),
        ("a text", ["x"], "X is a single text"),
        (["a", None], ["x", "y"], r"X\[1\] contains None, which is not a text"),
        (["a", float("nan")], ["x", "y"], r"X\[1\] contains nan, which is not a text"),
        (np.zeros((2, 2)), ["x", "y"], r"X\[0\] contains .*0.0.*, which is not a text"),
        (np.asarray([["a"] * 3] * 2), ["x", "y"], "X has 3 columns"),
        ([("a", "b", "c")], ["x"], r"X\[0\] is a tuple of 3"),
        (["a", ("b", "c")], ["x", "y"], r"X\[1\] and X\[0\] must both be"),
        (["a", "b"], ["x", None], r"y\[1\] is None"),
        (["a", "b"], [1.0, np.nan], r"y\[1\] is nan"),
        (["a", "b"], ["x", np.nan], r"y\[1\] is nan"),
        (["a", "b"], np.asarray(["x", np.nan], dtype=object), r"y\[1\] is nan"),
        (["a", "b"], None, "y is None"),
        (["a", "b"], ["x", " "], r"y\[1\]: the label is empty"),
        (["a", "b"], ["x", "x"], "y has one class only, 'x'"),
        (["a", "b", "c"], ["x", "x ", "y"], "two labels that both become 'x' as text"),
        (["a", "b"], [0.5, 1.5], "Unknown label type: continuous"),
        (["a", "b"], [["x", "y"], ["y", "x"]], "y has several labels for each text"),
    ],
)
def test_what_cannot_be_learnt_is_refused(X, y, said: str, pretrained: Path):
    with pytest.raises(ValueError, match=said):
        OwnBertClassifier(pretrained).fit(X, y)


@pytest.mark.parametrize(
    ("y", "said"),
    [
        ([1.0, np.nan], r"y\[1\] is nan"),
        ([[1.0, 2.0], [2.0, 1e39]], r"y\[1, 1\] is 1e\+39"),
        (["high", "low"], "y must be numbers"),
        ([2, 2], "y is the same number for all texts"),
        ([[1, 2], [2, 2]], "y is the same number for all texts"),
        ([1, 2, 3], "X has 2 texts, but y has 3 values"),
        (None, "y is None"),
        ([], "y must be numbers"),
    ],
)
def test_numbers_that_cannot_be_learnt_are_refused(y, said: str, pretrained: Path):
    with pytest.raises(InputError, match=said):
        OwnBertRegressor(pretrained).fit(["a", "b"], y)


def test_a_mapping_of_columns_has_a_text_in_each_row():
    assert texts_of({"text": ["a", "b"]}) == [("a",), ("b",)]
    assert texts_of({"text": ["a", "b"], "text_pair": ("c", "d")}) == [("a", "c"), ("b", "d")]
    with pytest.raises(InputError, match="X has a column 'label'"):
        texts_of({"text": ["a", "b"], "label": ["x", "y"]})


def test_texts_and_labels_may_be_of_arrow_and_in_lists_of_one():
    assert texts_of(pa.array(["a", "b"])) == [("a",), ("b",)]
    assert texts_of(pa.chunked_array([["a"], ["b"]])) == [("a",), ("b",)]
    assert labels_of([["x"], ["y"]]) == ["x", "y"]


def test_weights_are_of_classes_with_equal_values():
    for classes in ({0.0: "0.0", 1.0: "1.0"}, {False: "false", True: "true"}):
        weights = OwnBertClassifier(class_weight={0: 1, 1: 2})._weights(classes)
        assert json.loads(weights) == dict(zip(classes.values(), (1, 2), strict=True))


def test_a_series_of_lists_is_read_like_a_list():
    pandas = pytest.importorskip("pandas")
    assert labels_of(pandas.Series([["x"], ["y"]])) == ["x", "y"]
    with pytest.raises(InputError, match="y has several labels for each text"):
        labels_of(pandas.Series([["x", "y"], ["y"], []]))


def test_labels_of_pandas_keep_their_type():
    pandas = pytest.importorskip("pandas")
    for values, dtype, kind in (
        ([1, 0], "Int64", np.int64),
        ([True, False], "boolean", np.bool_),
        ([1, 0], "int64[pyarrow]", np.int64),
    ):
        found = labels_of(pandas.Series(values, dtype=dtype, index=[7, 9]))
        assert found.dtype == kind
        assert found.tolist() == values
    missing = pandas.Series([1, None], dtype="Int64")
    assert labels_of(missing) is missing  # refused by its row


def test_missing_texts_of_pandas_are_no_labels(pretrained: Path):
    pandas = pytest.importorskip("pandas")
    for y in (pandas.Series(["x", None], dtype="string"), [pandas.NaT, "x"], ["x", pandas.NA]):
        with pytest.raises(InputError, match=r"y\[\d\] is (<NA>|NaT|nan); every text needs"):
            OwnBertClassifier(pretrained).fit(["a", "b"], y)


def test_a_score_takes_the_labels_of_fit():
    classifier = OwnBertClassifier()
    classifier.classes_ = np.arange(3)
    classifier.predict_proba = lambda X: np.eye(3)[[0, 1, 1]]
    assert classifier.score(["a", "b", "c"], np.eye(3)) == pytest.approx(2 / 3)
    assert classifier.score(["a", "b", "c"], [0, 2, 1]) == pytest.approx(2 / 3)


def test_columns_of_frames_are_texts_alone():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"one": ["a", "b"], "two": ["c", "d"], "label": [1, 0]}, index=[7, 9])
    assert texts_of(frame[["one"]]) == [("a",), ("b",)]
    assert texts_of(frame[["one", "two"]]) == [("a", "c"), ("b", "d")]
    with pytest.raises(InputError, match="X has a column 'label', which is named like labels"):
        texts_of(frame[["one", "label"]])
