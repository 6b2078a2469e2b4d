"""Any number of labels a text: reading, learning, thresholds, and the same in other libraries."""

import csv
import json
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, f1_score
from sklearn.metrics import precision_recall_fscore_support as by_label
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

from ownbert import InputError, evaluate, predict
from ownbert.batches.batch import Example, pack
from ownbert.cli import app
from ownbert.inference.open_folder import open_folder
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.multilabel import MultiLabelTask, score_multilabel
from ownbert.tasks.row_objectives import MultiLabelObjective
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY
from ownbert.tasks.thresholds import best_thresholds
from support.floats import assert_close
from support.plots import matplotlib_installed
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned

COLOURS = ("red", "green", "blue")
LABELS = ("a", "b", "c")


def coloured(rng: random.Random) -> tuple[str, list[str]]:
    """Words of some colours, or of none, and which these are."""
    found = [colour for colour in COLOURS if rng.random() < 0.4]
    words = [f"{c}{rng.randint(0, 11)}" for c in found for _ in range(rng.randint(2, 4))]
    words += [f"w{rng.randint(0, 30)}" for _ in range(rng.randint(3, 6))]
    rng.shuffle(words)
    rng.shuffle(found)
    return " ".join([*words, "9"]), found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colours")
    rng = random.Random(3)
    for name, rows in (("train", 90), ("dev", 40), ("test", 60)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "labels"])
            writer.writerows(
                (t, "; ".join(found)) for t, found in (coloured(rng) for _ in [0] * rows)
            )
    return folder


tune = partial(tuned, "multilabel", precision="float32")  # in which thresholds are used


@pytest.fixture(scope="module")
def labeller(data: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labeller") / "model"
    with matplotlib_installed():
        tune(data, pretrained, folder, epochs=4)
    return folder


def read(tmp_path: Path, text: str, name: str = "t.csv", **settings) -> list[tuple[str, ...]]:
    (tmp_path / name).write_text(text)
    task = MultiLabelTask(TaskSettings(name="multilabel", **settings))
    return [row.target for row in task.read(tmp_path / name)]


def test_it_learns_and_the_measures_are_those_of_the_predictions(
    labeller: Path, data: Path, tmp_path: Path
):
    scores = evaluate(labeller, data / "test.csv", output=tmp_path / "scores.json")
    assert scores.micro_f1 > 0.85
    predict(labeller, data / "test.csv", tmp_path / "out.jsonl", probabilities=True)
    rows = read_jsonl(tmp_path / "out.jsonl")
    truth = MultiLabelTask().read(data / "test.csv")
    true, said = (
        np.asarray([[c in found for c in COLOURS] for found in of])
        for of in ([r.target for r in truth], [r["labels"] for r in rows])
    )
    assert scores.micro_f1 == pytest.approx(f1_score(true, said, average="micro"))
    assert scores.subset_accuracy == pytest.approx(accuracy_score(true, said))
    assert json.loads((tmp_path / "scores.json").read_text())["labels"].keys() == {*COLOURS}
    assert any(r["labels"] == [] for r in rows)
    threshold = json.loads((labeller / "config.json").read_text())[KEY]["threshold"]
    for row in rows:
        held = [c for c, p in row["probabilities"].items() if p >= threshold]
        assert sorted(row["labels"]) == sorted(held)
        assert row["scores"] == [row["probabilities"][label] for label in row["labels"]]
        assert row["scores"] == sorted(row["scores"], reverse=True)


def test_the_folder_is_the_same_model_in_transformers(labeller: Path, data: Path):
    theirs = AutoModelForSequenceClassification.from_pretrained(labeller).eval()
    assert theirs.config.problem_type == "multi_label_classification"
    assert [theirs.config.id2label[i] for i in range(3)] == ["blue", "green", "red"]
    predictor = open_folder(labeller)
    rows = predictor.task.read(data / "test.csv")
    for row, ours in zip(rows, predictor(rows), strict=True):
        ids = torch.from_numpy(predictor.builder.one(predictor.builder.ids(row.texts)[0]))[None]
        with torch.no_grad():
            expected = theirs(input_ids=ids).logits[0].sigmoid().numpy()
        assert np.abs(ours - expected).max() < 1e-5


def test_a_text_gets_the_same_probabilities_in_any_company(labeller: Path, data: Path):
    assert_same_in_any_company(labeller, data / "test.csv")


def test_the_threshold_is_the_best_on_dev_rows_and_is_kept(labeller: Path, data: Path):
    predictor = open_folder(labeller)
    task = predictor.task
    assert isinstance(task, MultiLabelTask)
    rows = task.read(data / "dev.csv")
    decided = predictor(rows)
    kept = task.score(rows, decided).micro_f1
    for other in np.linspace(0.01, 0.99, 99):
        task.threshold = other
        assert task.score(rows, decided).micro_f1 <= kept + 1e-9


def test_what_is_given_stays_and_without_dev_rows_the_threshold_is_a_half(
    data: Path, pretrained: Path, tmp_path: Path
):
    command = ["finetune", "multilabel"]
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0
    command += ["--model", str(pretrained), "--train", str(data / "train.csv"), "--epochs", "1"]
    command += ["--separator", ";"]
    dev = ["--threshold", "0.3", "--dev", str(data / "dev.csv")]
    for options, threshold in ((dev, 0.3), ([], 0.5)):
        output = tmp_path / str(threshold)
        assert CliRunner().invoke(app, [*command, *options, "-o", str(output)]).exit_code == 0
        task = open_folder(output).task
        assert isinstance(task, MultiLabelTask)
        assert (task.threshold, task.settings.separator) == (threshold, ";")


def test_the_guessed_separator_is_kept_for_other_files(labeller: Path, tmp_path: Path):
    (tmp_path / "test.csv").write_text("text,labels\nred1 9,red|x; blue\n")
    with pytest.raises(InputError, match=r"line 2: label 'red\|x' is not in the model"):
        evaluate(labeller, tmp_path / "test.csv")


@pytest.mark.parametrize("long", ["windows", "segments"])
def test_long_documents(data: Path, pretrained: Path, tmp_path: Path, long: str):
    output = tmp_path / "out"
    tune(data, pretrained, output, long=long, stride=4, max_length=16, rdrop=0.5)
    rows = [Row(1, ("w1 " * 200 + "red1 " * 40,)), Row(2, ("red1 9",)), Row(3, ("",))]
    assert np.stack(open_folder(output)(rows)).shape == (3, 3)
    assert_same_in_any_company(output, rows)


def test_windows_are_averaged(labeller: Path):
    predictor = open_folder(labeller)
    predictor.task.settings = replace(predictor.task.settings, long="windows", stride=0)
    room = predictor.builder.room
    first, second = " ".join(["red1"] * room), " ".join(["blue1"] * room)
    whole, *parts = predictor(
        [Row(n, (t,)) for n, t in enumerate([f"{first} {second}", first, second])]
    )
    assert np.abs(whole - np.mean(parts, 0)).max() < 1e-5


def test_cells(tmp_path: Path):
    cells = 'text,labels\nx, b |a|b\nx,\nx,"[""b"", ""c|d""]"\nx,a||\nx,[]\nx,"a,b"\n'
    expected = [("b", "a"), (), ("b", "c|d"), ("a",), (), ("a,b",)]
    assert read(tmp_path, cells) == expected
    assert read(tmp_path, "text,labels\nx,a, b\n".replace(",a, b", ',"a, b"')) == [("a", "b")]
    assert read(tmp_path, "text,labels\nx,a and b\n") == [("a and b",)]
    assert read(tmp_path, "text,labels\nx,a and b\n", separator=" and ") == [("a", "b")]


def test_lists(tmp_path: Path):
    lines = ['{"text": "x", "labels": ["b", " a "]}', '{"text": "x", "labels": []}']
    lines += ['{"text": "x", "labels": "a;[b"}', '{"text": "x", "labels": [1, true, "", 1]}']
    expected = [("b", "a"), (), ("a", "[b"), ("1", "true")]
    assert read(tmp_path, "\n".join(lines), "t.jsonl") == expected
    table = pa.table({"text": ["x", "y"], "labels": [["b", "a"], []]})
    pq.write_table(table, tmp_path / "t.parquet")
    rows = MultiLabelTask().read(tmp_path / "t.parquet")
    assert [row.target for row in rows] == [("b", "a"), ()]


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("text,labels\nx,a\nx,['a\n", "t.csv", r"t.csv, line 3: .* not a JSON list; write them as"),
        ('{"text": "x", "labels": null}', "t.jsonl", r"line 1: the labels are missing or null; wr"),
        ('{"text": "x", "labels": [["a"]]}', "t.jsonl", r"line 1: .* must not contain further lis"),
        ('{"text": "x", "labels": [{"a": 1}]}', "t.jsonl", r"line 1: 'labels' is an object"),
        ("text,labels\n", "t.csv", r"has no rows"),
    ],
)
def test_cells_that_are_no_labels_are_refused(tmp_path: Path, text: str, name: str, message: str):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text, name)


def test_labels_that_cannot_be_learnt_or_measured_are_refused(
    data: Path, pretrained: Path, labeller: Path, tmp_path: Path
):
    odd, output = tmp_path / "odd.csv", tmp_path / "out"
    mauve = "text,labels\nx,red;blue\nx,red;mauve\n"
    odd.write_text(mauve)
    with pytest.raises(InputError, match=r"odd.csv, line 3: label 'mauve' is not in the model"):
        evaluate(labeller, odd)
    for text, part, message in (
        (mauve, "dev", r"odd.csv, line 3: label 'mauve' is not in the training"),
        ("text,labels\nx,\nx,\n", "train", "no row has a label"),
        ("text,labels\nx,red;blue\nx,blue;red\n", "train", "all rows have the labels red, blue"),
    ):
        odd.write_text(text)
        with pytest.raises(InputError, match=message):
            tune(data, pretrained, output, **{part: odd})
    for options, message in (
        ({"threshold": 1.5}, "task.threshold is 1.5"),
        ({"separator": ""}, "task.separator is empty"),
        ({"class_weights": "mauve=2"}, "task.class_weights has 'mauve=2'"),
        ({"labels_per_class": 3}, "does not apply to multilabel"),
        ({"label_smoothing": 0.1}, "does not apply to multilabel"),
    ):
        with pytest.raises(InputError, match=message):
            tune(data, pretrained, output, **options)
    assert not output.exists()


def test_whole_numbers_are_in_their_order_and_weights_are_by_how_rare(tmp_path: Path):
    rows = [Row(1, ("x",), labels) for labels in (("10", "2"), ("2",), ("2", "0"), ())]
    for how, weights in (("balanced", (3, 1 / 3, 3)), ("2=5", (1, 5, 1)), (None, None)):
        task = MultiLabelTask(TaskSettings(name="multilabel", class_weights=how))
        task.learn(rows, "file")
        assert task.labels == ("0", "2", "10")
        assert task.weights == (weights if weights is None else pytest.approx(weights))
    assert task.target(rows[2]).tolist() == [1, 1, 0]
    assert task.label_distribution(rows) == "0 25.0%, 2 75.0%, 10 25.0%, none 25.0%"
    assert [task.readable_target(row) for row in rows[2:]] == ["2, 0", "no label"]


def example(parts: int, labels: list[float]) -> Example:
    ids = np.arange(parts * 2)
    return Example(ids, ids * 0, label=np.float32(labels), parts=(2,) * parts)


def test_the_loss_is_binary_cross_entropy_with_weights_by_document():
    batch = pack([example(2, [1, 0, 1]), example(1, [0, 0, 1])])
    logits = torch.tensor([[2.0, -1.0, 0.5], [-1.0, 0.3, 1.5], [-0.2, -2.0, 3.0]])
    loss = MultiLabelObjective(label_weights=(2.0, 1.0, 0.5))(logits, batch)
    expected, p = [], logits.sigmoid().double().numpy()
    for row, true in zip(p, [[1, 0, 1], [1, 0, 1], [0, 0, 1]], strict=True):
        weighted = zip(row, true, (2, 1, 0.5), strict=True)
        expected.append(-np.mean([w * np.log(q) if t else np.log(1 - q) for q, t, w in weighted]))
    assert_close(loss.total, (expected[0] + expected[1]) / 2 + expected[2])
    assert (int(loss.correct), loss.count) == (2, 2)
    same = MultiLabelObjective(label_weights=None).distance(logits, logits, batch)
    assert float(same) == 0
    assert float(MultiLabelObjective().distance(logits, logits + 1, batch)) > 0


def test_the_distance_is_the_mean_divergence_of_two_coins():
    batch = pack([example(1, [1, 0])])
    one, two = torch.tensor([[0.4, -2.0]]), torch.tensor([[1.0, 0.5]])
    p, q = (torch.distributions.Bernoulli(logits=x) for x in (one, two))
    both = torch.distributions.kl_divergence(p, q) + torch.distributions.kl_divergence(q, p)
    assert_close(MultiLabelObjective().distance(one, two, batch), both.mean() / 2)


ROWS = st.lists(st.tuples(*[st.booleans()] * 3, *[st.integers(0, 8)] * 3), min_size=1, max_size=20)


@given(ROWS, st.integers(1, 8))
def test_scores_equal_scikit_learns(rows, cut):
    table = np.asarray(rows, dtype=float)
    true, p = table[:, :3], table[:, 3:] / 8  # with ties
    said = p >= cut / 8
    scores = score_multilabel(true, p, said, LABELS)
    assert scores.micro_f1 == pytest.approx(f1_score(true, said, average="micro", zero_division=0))
    macro = f1_score(true, said, average="macro", zero_division=np.nan)
    assert scores.macro_f1 == pytest.approx(np.nan_to_num(macro))
    occur = true.any(0)
    if occur.any():
        precision = average_precision_score(true[:, occur], p[:, occur], average="macro")
        assert scores.average_precision == pytest.approx(precision)
    assert scores.subset_accuracy == pytest.approx(accuracy_score(true, said))
    each = by_label(true, said, average=None, zero_division=0)
    for row, *expected in zip(scores.labels, *each, strict=True):
        assert (row.precision, row.recall, row.f1, row.support) == pytest.approx(tuple(expected))


@given(ROWS)
def test_no_threshold_is_better_than_the_best(rows):
    table = np.asarray(rows, dtype=np.float32)
    true, p = table[:, :3], table[:, 3:] / 8
    best = best_thresholds(true, p, "micro_f1")[0]

    def f1(threshold: float) -> float:
        said = p >= threshold
        return 2 * (said * true).sum() / max(1, said.sum() + true.sum())

    assert 0 <= best < 1
    assert f1(best) == pytest.approx(max(f1(cut) for cut in np.arange(-1, 18) / 16))


def test_a_folder_of_transformers_answers_too(labeller: Path, data: Path, tmp_path: Path):
    theirs = AutoModelForSequenceClassification.from_pretrained(labeller)
    theirs.save_pretrained(tmp_path / "theirs")
    for file in labeller.glob("*token*"):
        (tmp_path / "theirs" / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in config.items() if k != KEY}))
    theirs_scores = evaluate(tmp_path / "theirs", data / "test.csv")
    ours = evaluate(labeller, data / "test.csv")
    assert theirs_scores.average_precision == pytest.approx(ours.average_precision)
