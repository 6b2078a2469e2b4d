"""Unknown texts are refused, label sets have the coverage asked for; metrics by chance."""

import csv
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.inference.calibrate import models_of
from ownbert.inference.embedding_outputs import of_length_one
from ownbert.inference.evaluate import like_guessing, metrics_by_chance
from ownbert.inference.held_out import HeldOut, Scope
from ownbert.run.file_names import HELD_OUT
from ownbert.tasks.classification import weighted
from ownbert.tasks.metrics import auroc, risk_curve
from ownbert.tasks.related_rows import permutations
from support.cli import refusal, run_cli
from support.shared import made_once

LABELS = 12


def clusters(labels: list[int], rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors around a direction for each label."""
    centres = np.random.default_rng(0).standard_normal((LABELS + 4, 16))
    targets = np.repeat(labels, rows)
    noise = np.random.default_rng(seed).standard_normal((len(targets), 16))
    return of_length_one(centres[targets] + 0.6 * noise).astype(np.float32), targets


def test_texts_of_no_label_are_told_from_labelled_ones_alone():
    vectors, targets = clusters(list(range(LABELS)), 30, 1)
    scope, scores = Scope.fit(vectors, targets, LABELS, blind=True)
    known, _ = clusters(list(range(LABELS)), 30, 2)
    strange, _ = clusters(list(range(LABELS, LABELS + 4)), 60, 3)
    assert auroc(scope.scores(known), scope.scores(strange)) > 0.9
    # The rows themselves are compared with the others: their scores are those of new rows.
    threshold = np.quantile(scores, 0.9)
    assert 0.03 < (scope.scores(known) > threshold).mean() < 0.2


def test_with_labels_that_the_network_knows_the_distance_is_the_score():
    vectors, targets = clusters([3, 1], 20, 1)
    order = np.random.default_rng(0).permutation(len(targets))
    scope, scores = Scope.fit(vectors[order], targets[order], LABELS, blind=False)
    assert (scores > 0).all()
    own = np.sort(vectors[order][0] @ vectors[targets == targets[order][0]].T)[-4:-1]
    assert scores[0] == pytest.approx(1 - own.mean(), abs=1e-5)
    assert scope.scores(-vectors[:5]).min() > scores.max()


def held_out(rows: int) -> HeldOut:
    values = np.linspace(0, 1, rows)
    return HeldOut(("a", "b"), "rows", [], values, values)


def test_quantiles_are_those_of_a_further_row():
    assert held_out(99).least_probability(0.9) == pytest.approx(1 - 89 / 98)
    assert held_out(99).threshold(0.1) == pytest.approx(89 / 98)
    with pytest.raises(InputError, match=r"8 held-out rows are too few for a coverage of 0.9; 9"):
        held_out(8).least_probability(0.9)
    with pytest.raises(InputError, match=r"too few to refuse 0.01 of the texts; 99 or"):
        held_out(98).threshold(0.01)
    assert held_out(9).least_probability(0.9) == 0
    for share in (0, 1, float("nan"), "x"):
        with pytest.raises(InputError, match="coverage is"):
            held_out(99).least_probability(share)  # pyright: ignore


def test_errors_by_the_share_that_is_answered():
    probabilities = np.asarray([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.45, 0.55]])
    curve = risk_curve(probabilities, np.asarray([True, False, True, True]))
    assert curve == ((0.25, 0.0), (0.5, 0.0), (0.75, pytest.approx(1 / 3)), (1.0, 0.25))


def test_auroc_counts_ties_half():
    assert auroc(np.asarray([0.0, 1.0]), np.asarray([1.0, 2.0])) == 0.875


TOPICS = ("red", "green", "blue", "grey")


def text_of(rng: random.Random, topic: str) -> str:
    """Six words of a topic, some of which are of another one."""
    other = rng.choice(TOPICS)
    return " ".join(
        f"{topic if rng.random() < 0.6 else other}{rng.randint(0, 9)}" for _ in range(6)
    )


def table(path: Path, rng: random.Random, rows: int) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        found = [(text_of(rng, topic), topic) for topic in TOPICS for _ in range(rows)]
        csv.writer(file).writerows([("text", "label"), *found])
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training and test rows, and what fit makes: too little time for a network."""

    def make(folder: Path) -> None:
        rng = random.Random(0)
        train = table(folder / "train.csv", rng, 60)
        table(folder / "test.csv", rng, 150)
        ownbert.fit(train, minutes=0.3, output=folder / "best", quiet=True)

    return made_once(tmp_path_factory, "abstaining", make)


def test_a_folder_of_fit_keeps_what_its_held_out_rows_teach(fitted: Path):
    scores = ownbert.evaluate(fitted / "best", fitted / "test.csv", unknown=0.1, coverage=0.9)
    assert 0.82 < scores.set_coverage <= 1
    assert 0.8 < scores.set_size < 4
    assert scores.refused < 0.25
    assert scores.answered_accuracy >= scores.accuracy


def test_a_rare_label_that_is_predicted_below_one_half_is_not_unknown_for_that(tmp_path: Path):
    rng = random.Random(0)

    def rows(count: int) -> list[tuple[str, str]]:
        found = []
        for _ in range(count):
            label = "yes" if rng.random() < 0.1 else "no"
            share = 0.45 if label == "yes" else 0.12
            words = ("bad" if rng.random() < share else "w" for _ in range(7))
            found.append((" ".join(f"{word}{rng.randint(0, 40)}" for word in words), label))
        return found

    ownbert.fit(*zip(*rows(600), strict=True), minutes=0.05, output=tmp_path / "m", quiet=True)
    model, texts = ownbert.Predictor(tmp_path / "m"), [text for text, _ in rows(600)]
    labels, found = model.predict(texts), model(texts, unknown=0.15)
    scores = [row["score"] for row in found]
    assert any(own == "yes" and p < 0.5 for own, p in zip(labels, scores, strict=True))
    refused = {
        label: [row["unknown"] for row, own in zip(found, labels, strict=True) if own == label]
        for label in ("yes", "no")
    }
    assert 0.05 < np.mean([row["unknown"] for row in found]) < 0.25
    assert np.mean(refused["yes"]) < 0.8  # it was 1
    assert sum(refused["no"]) > sum(refused["yes"]) / 2  # near the threshold, on both sides
    # The most confident rows of the curve of errors are also those far from the threshold.
    decision = model.rows_predictor.task.decision  # pyright: ignore
    own = np.asarray([[0.55, 0.45], [0.1, 0.9]])
    preferred = weighted(own, decision)
    assert preferred.argmax(1).tolist() == [1, 1]
    assert preferred.sum(1) == pytest.approx(1)
    # Files of earlier versions have the scores of probabilities: so do the texts.
    saved = HeldOut.load(tmp_path / "m" / HELD_OUT, ("no", "yes"), models_of(model.rows_predictor))
    assert saved is not None
    np.testing.assert_allclose(saved.doubt(own), 1 - preferred.max(1))
    earlier = replace(saved, decision=None, probabilities=None, truth=None)
    earlier.save(tmp_path / "m" / HELD_OUT)
    first = ownbert.Predictor(tmp_path / "m")(texts[:1], unknown=0.15)[0]
    assert first["unknown_score"] == pytest.approx(min(scores[0], 1 - scores[0]), abs=1e-3)


def test_answers_in_memory_and_in_files(fitted: Path, tmp_path: Path):
    model = ownbert.Predictor(fitted / "best")
    texts = ["red1 red2 red3 red4", "red1 green2 blue3", "ß"]
    sets = model.predict(texts, coverage=0.9)
    assert sets[0] == ["red"]
    assert all(set(own) <= set(TOPICS) for own in sets)
    rows = model(texts, coverage=0.9, unknown=0.05)
    assert [row["labels"] for row in rows] == sets
    for row in rows:
        assert (row["label"] is None) == row["unknown"]
    assert model.predict(texts[0], unknown=0.05) == "red"
    assert model("red1 red2 red3 red4", coverage=0.9)[0]["labels"] == ["red"]
    (tmp_path / "a.txt").write_text("\n".join(texts), encoding="utf-8")
    line = ("predict", fitted / "best", tmp_path / "a.txt", "--coverage", 0.9, "--unknown", 0.05)
    done = run_cli(*line, "-o", tmp_path / "out.jsonl")
    assert done.returncode == 0, done.stderr
    found = [json.loads(each) for each in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [{**row, "text": None} for row in found] == [{"text": None, **row} for row in rows]
    printed = run_cli(*line).stdout.splitlines()
    assert [json.loads(each) for each in printed] == found
    # A table has the set as a list.
    assert run_cli(*line, "-o", tmp_path / "out.csv").returncode == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        assert [json.loads(row["labels"]) for row in csv.DictReader(file)] == sets


def test_a_page_shows_errors_by_the_share_answered(fitted: Path, tmp_path: Path):
    (tmp_path / "other.txt").write_text("ß ß\nö ä ü\n", encoding="utf-8")
    done = run_cli(
        *("evaluate", fitted / "best", fitted / "test.csv", "--unknown", 0.05),
        *("--out-of-scope", tmp_path / "other.txt", "--html", tmp_path / "risk.html"),
        *("-o", tmp_path / "scores.json"),
    )
    assert done.returncode == 0, done.stderr
    assert "AUROC of unknown texts" in done.stdout
    page = (tmp_path / "risk.html").read_text(encoding="utf-8")
    assert "<polyline" in page
    assert "share answered" in page
    values = json.loads((tmp_path / "scores.json").read_text())
    assert values["risk"][-1] == [1.0, pytest.approx(1 - values["accuracy"])]
    assert 0 <= values["unknown_auroc"] <= 1


def test_a_network_is_calibrated_on_its_dev_rows_or_on_others(
    classifier: Path, topics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = Path(shutil.copytree(classifier, tmp_path / "model"))
    (folder / HELD_OUT).unlink(missing_ok=True)
    (folder / "recipe.yaml").unlink()
    line = ("predict", folder, "red1 red2", "--coverage", 0.8)
    assert "has no held-out rows; give labelled rows" in refusal(*line)
    assert not (folder / HELD_OUT).exists()
    done = run_cli(*line, "--unknown", 0.2, "--calibrate", topics / "test.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("note: calibrated on ")
    (folder / HELD_OUT).unlink()
    measured = ("evaluate", folder, topics / "test.csv", "--coverage", 0.8)
    done = run_cli(*measured, "--calibrate", topics / "test.csv")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("note: calibrated on ")
    assert (folder / HELD_OUT).exists()
    assert isinstance(json.loads(run_cli(*line).stdout)["labels"], list)
    model = ownbert.Predictor(folder)
    assert model.calibrate(topics / "test.csv").predict(["red1 red2"], coverage=0.8)
    assert model.predict("red1 red2", unknown=0.2)
    with monkeypatch.context() as patch:  # the network is read once, not for each share
        patch.delattr("ownbert.inference.calibrate.Embedder")
        same = [model(["red1 red2"], unknown=share, coverage=0.8) for share in (0.2, 0.3)]
    assert same == [
        ownbert.predict(folder, ["red1 red2"], unknown=share, coverage=0.8) for share in (0.2, 0.3)
    ]
    # Of other weights.
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + bytes(4))
    assert "belongs to other models than those used here" in refusal(*line)
    (folder / HELD_OUT).write_bytes(b"PK")
    assert "cannot be read" in refusal(*line)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--coverage", "1"), "--coverage is 1.0; it must be between 0 and 1"),
        (("--unknown", "0"), "--unknown is 0.0; it must be between 0 and 1"),
        (("--unknown", "0.0001"), "held-out rows are too few to refuse 0.0001 of the texts"),
        (
            ("--calibrate", "none.csv"),
            "--calibrate requires --unknown, --coverage or a --threshold",
        ),
        (("--coverage", "0.9", "--calibrate", "none.csv"), "none.csv"),
    ],
)
def test_what_cannot_be_is_one_line(fitted: Path, options: tuple[str, ...], says: str):
    assert says in refusal("predict", fitted / "best", "red1", *options)


def test_other_tasks_refuse_no_texts(topics: Path, pretrained: Path, tmp_path: Path):
    with (tmp_path / "numbers.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "score"), *((f"red{i}", i / 9) for i in range(10))])
    ownbert.finetune(
        "regress",
        model=pretrained,
        train=tmp_path / "numbers.csv",
        output=tmp_path / "m",
        max_steps=1,
        quiet=True,
    )
    says = refusal("predict", tmp_path / "m", "red1", "--unknown", "0.1")
    assert "--unknown does not apply to regress" in says
    says = refusal("predict", tmp_path / "m", "red1", "--coverage", "0.9")
    assert "has no held-out rows" in says


def numbers_and_sets(rng: random.Random, rows: int) -> list[dict[str, object]]:
    found = []
    for _ in range(rows):
        topics = [topic for topic in TOPICS if rng.random() < 0.4]
        words = [f"{rng.choice([*topics, 'plain'])}{rng.randint(0, 4)}" for _ in range(8)]
        number, other = len(topics) + rng.gauss(0, 0.3), rng.random()
        found.append({"text": " ".join(words), "labels": topics, "number": number, "other": other})
    return found


@pytest.mark.parametrize("kind", ["labels", "number", "number,other"])
def test_several_labels_and_numbers_have_sets_and_intervals(tmp_path: Path, kind: str):
    rng = random.Random(0)
    train, test = numbers_and_sets(rng, 250), numbers_and_sets(rng, 400)
    keys = ("text", *kind.split(","))
    train, test = ([{key: row[key] for key in keys} for row in part] for part in (train, test))
    folder = tmp_path / "m"
    given = {"label_column": kind} if "," in kind else {}
    ownbert.fit(train, minutes=0.05, output=folder, quiet=True, **given)
    scores = ownbert.evaluate(folder, test, coverage=0.8)
    name = "set_coverage" if kind == "labels" else "interval_coverage"
    assert 0.7 < scores.values[name] < 0.9
    wider = ownbert.evaluate(folder, test, coverage=0.95)
    size = "set_size" if kind == "labels" else "interval_width"
    assert wider.values[size] > scores.values[size]
    model = ownbert.Predictor(folder)
    texts = [str(row["text"]) for row in test[:20]]
    rows, plain = model(texts, coverage=0.8), model.predict(texts, coverage=0.8)
    if kind == "labels":
        assert [row["possible"] for row in rows] == plain
        assert "possible" not in model(texts[:1], threshold=0.5)[0]
    elif kind == "number":
        assert [(row["low"], row["high"]) for row in rows] == plain
        assert all(low < row["value"] < high for row, (low, high) in zip(rows, plain, strict=True))
    else:
        low, high = rows[0]["low"], rows[0]["high"]
        assert plain[0] == [(low[name], high[name]) for name in ("number", "other")]
    with pytest.raises(InputError, match=r"too few for a coverage of 0\.999"):
        model(texts, coverage=0.999)
    # Other rows replace the folder's calibration.
    model.calibrate(train[:30] + test[:200])
    assert model(texts[:1], coverage=0.5)


def rows(kind: str, count: int) -> list[dict[str, object]]:
    """Random words with random targets."""
    rng = random.Random(f"{kind} {count}")
    targets = {
        "label": lambda: rng.choice(["no", "no", "yes"]),
        "labels": lambda: [each for each in "abcd" if rng.random() < 0.4],
        "score": lambda: rng.gauss(3, 1),
    }
    return [
        {"text": " ".join(f"w{rng.randint(0, 60)}" for _ in range(9)), kind: targets[kind]()}
        for _ in range(count)
    ]


@pytest.mark.parametrize("kind", ["label", "labels", "score"])
def test_random_targets(kind: str, tmp_path: Path):
    ownbert.fit(rows(kind, 300), minutes=0.05, output=tmp_path / "m", quiet=True)
    report = json.loads((tmp_path / "m/report.json").read_text(encoding="utf-8"))
    assert "better than guessing (" in report["headline"][0]
    assert "better than guessing." in report["advice"][0]["sentence"]
    assert report["metric"] in report["chance"]
    (warning,) = [
        each
        for each in ownbert.evaluate(tmp_path / "m", rows(kind, 250)).warnings
        if "guessing" in each
    ]
    assert " by chance)" in warning


def test_a_model_that_has_learnt_something_has_no_warning():
    truth = np.arange(200) % 4
    answers = np.where(np.arange(200) % 3 == 0, truth, 0)

    def metrics(order: np.ndarray) -> dict[str, float]:
        return {"accuracy": float((truth[order] == answers).mean()), "loss": 1.0}

    chance = metrics_by_chance(metrics, np.arange(200))
    values = metrics(np.arange(200))
    assert like_guessing("accuracy", values, chance) is None
    assert like_guessing("loss", values, chance) is None  # accuracy is clearly better
    assert like_guessing("loss", {"loss": 1.0}, chance) == "no better than guessing"
    assert like_guessing("f1", values, chance) is None  # unknown


def test_rows_of_a_cluster_stay_together():
    clusters = np.asarray([0, 1, 0, 2, 1, 2])
    for order in permutations(clusters, 20):
        assert sorted(order) == [*range(6)]
        own = clusters[order]
        assert own[0] == own[2]
        assert own[1] == own[4]
        assert own[3] == own[5]


def test_labels_in_the_same_order_in_each_cluster():
    """Texts before and after, by patient: a perfect model is better than chance."""
    targets = np.arange(200) % 2

    def metrics(order: np.ndarray) -> dict[str, float]:
        return {"accuracy": float(np.mean(targets[order] == targets))}

    chance = metrics_by_chance(metrics, np.arange(200) // 2)
    assert 0.3 < chance["accuracy"].mean < 0.7
    assert like_guessing("accuracy", {"accuracy": 1.0}, chance) is None
