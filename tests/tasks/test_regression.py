"""Numbers of a text: reading, learning, units, and the same in other libraries."""

import csv
import json
import random
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import mean_absolute_error, r2_score
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

from ownbert import InputError, Predictor, evaluate, finetune, predict
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import load
from ownbert.cli import app
from ownbert.inference.open_folder import open_folder
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.regression import RegressionTask, score_regression
from ownbert.tasks.row_objectives import RegressionObjective
from ownbert.tasks.rows import Row
from ownbert.tasks.task import KEY
from support.floats import assert_close
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned


def reddish(rng: random.Random) -> tuple[str, float, float]:
    """Eight words of which some are red; a number that grows with these, and one that falls."""
    red = rng.randint(0, 8)
    words = [f"red{rng.randint(0, 11)}" for _ in range(red)]
    words += [f"w{rng.randint(0, 30)}" for _ in range(8 - red)]
    rng.shuffle(words)
    return " ".join([*words, "9"]), 1000 + 50 * red, -0.01 * red


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reddish")
    rng = random.Random(5)
    for name, rows in (("train", 90), ("dev", 40), ("test", 60)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "score", "cold"])
            writer.writerows(reddish(rng) for _ in range(rows))
    return folder


tune = partial(tuned, "regress", precision="float32")


@pytest.fixture(scope="module")
def rater(data: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two columns, in other units."""
    folder = tmp_path_factory.mktemp("rater") / "model"
    tune(data, pretrained, folder, epochs=6, label_column="score, cold", loss="huber")
    return folder


@pytest.fixture(scope="module")
def single(data: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("single") / "model"
    tune(data, pretrained, folder, epochs=3, pooling="mean")
    return folder


def read(tmp_path: Path, text: str, name: str = "t.csv", label: str | None = None):
    (tmp_path / name).write_text(text)
    task = RegressionTask(columns=ColumnNames(label=label))
    return [row.target for row in task.read(tmp_path / name)], task.labels


def in_transformers(folder: Path, predictor: Any, rows: list[Row]) -> np.ndarray:
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = []
    for row in rows:
        ids = torch.from_numpy(predictor.builder.one(predictor.builder.ids(row.texts)[0]))[None]
        with torch.no_grad():
            found.append(theirs(input_ids=ids).logits[0].numpy())
    return np.stack(found)


def test_it_learns_in_the_users_units(rater: Path, data: Path, tmp_path: Path):
    scores = evaluate(rater, data / "test.csv")
    assert scores.spearman > 0.8
    assert scores.r2 > 0.6
    assert scores.warnings == ()
    predict(rater, data / "test.csv", tmp_path / "out.jsonl")
    rows = read_jsonl(tmp_path / "out.jsonl")
    said = np.asarray([[row["values"]["score"], row["values"]["cold"]] for row in rows])
    truth = np.loadtxt(data / "test.csv", delimiter=",", skiprows=1, usecols=(1, 2))
    assert scores.mae == pytest.approx(mean_absolute_error(truth, said), rel=1e-4)
    assert scores.r2 == pytest.approx(r2_score(truth, said), abs=1e-4)
    assert Predictor(rater).score([row["text"] for row in rows], truth) == pytest.approx(
        scores.r2, abs=1e-4
    )
    # Better than who always says the mean, in each unit.
    far = np.abs(truth - truth.mean(0)).mean(0)
    assert (np.abs(truth - said).mean(0) < 0.7 * far).all()


def test_the_folder_is_the_same_model_in_transformers(rater: Path, data: Path):
    predictor = open_folder(rater)
    rows = predictor.task.read(data / "test.csv")
    expected = in_transformers(rater, predictor, rows)
    assert np.abs(expected[:, 0] - 1200).mean() < 150  # units of the file
    assert_close(np.stack(predictor(rows)), expected)
    config = json.loads((rater / "config.json").read_text())
    assert config["id2label"] == {"0": "score", "1": "cold"}
    assert config["problem_type"] == "regression"


def test_a_cross_encoder_gives_the_same_numbers_for_pairs(pretrained: Path, tmp_path: Path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pairs = [(f"red{i} red{i + 1}", f"blue{i} red{i}") for i in range(8)]
    train = {"text1": [a for a, _ in pairs], "text2": [b for _, b in pairs], "score": [*range(8)]}
    finetune("regress", train=train, model=pretrained, output=tmp_path, epochs=1, quiet=True)
    found = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu").predict(pairs)
    assert_close(found, np.asarray(Predictor(tmp_path).predict(pairs), np.float32))


def test_what_finetune_gives_back_is_what_it_saves(data: Path, pretrained: Path, tmp_path: Path):
    model = tune(data, pretrained, tmp_path / "out")
    saved = load(tmp_path / "out").heads["classification"].dense.bias
    assert torch.equal(model.heads["classification"].dense.bias, saved)
    assert 1000 < saved.item() < 1400


def test_finish_changes_the_units_of_each_model_and_no_answer(data: Path, pretrained: Path):
    task = RegressionTask()
    rows = task.read(data / "test.csv")
    task.learn(rows, "file")
    examples = [example(1, [0.0])]
    for _ in range(2):  # one task for several models, as those of an ensemble
        model = load(pretrained, heads=["classification"], labels=task.labels)
        task.objective(model)
        answers = []
        for finished in (False, True):
            model = task.finish(model) if finished else model
            network = PackedNetwork(model)
            logits = network.logits(examples, task.head)
            answers.append(task.decide(task.raw(logits, examples, network)[0], rows[0], None))
        assert_close(answers[0], answers[1])
        assert_close(logits.item(), answers[0].item())


def test_training_goes_on_from_the_numbers_of_a_finished_folder(
    single: Path, data: Path, tmp_path: Path
):
    before = np.stack(open_folder(single)(open_folder(single).task.read(data / "test.csv")))
    tune(data, single, tmp_path / "out", max_steps=1, learning_rate=1e-9, pooling="mean")
    after = np.stack(open_folder(tmp_path / "out")(RegressionTask().read(data / "test.csv")))
    np.testing.assert_allclose(after, before, rtol=1e-3)


def test_a_text_gets_the_same_number_in_any_company(single: Path, data: Path, tmp_path: Path):
    assert_same_in_any_company(single, data / "test.csv")
    predict(single, data / "test.csv", tmp_path / "out.jsonl")
    predictor = open_folder(single)
    expected = np.stack(predictor(predictor.task.read(data / "test.csv")))[:, 0]
    assert_close([row["value"] for row in read_jsonl(tmp_path / "out.jsonl")], expected)


def test_dev_measures_in_training_are_those_of_the_saved_folder(single: Path, data: Path):
    held_out = [row for row in read_jsonl(single / "log.jsonl") if row.get("evaluation")]
    # Of several with the same correlation of ranks it is one.
    best = max(row["spearman"] for row in held_out)
    scores = evaluate(single, data / "dev.csv")
    same = [(row["mae"], row["r2"]) for row in held_out if row["spearman"] == best]
    assert (pytest.approx(scores.mae, rel=1e-4), pytest.approx(scores.r2, abs=1e-4)) in same


@pytest.mark.parametrize("name", [KEY, "problem_type"])
def test_a_folder_of_transformers_with_one_output_answers(
    single: Path, data: Path, pretrained: Path, tmp_path: Path, name: str
):
    """With its problem_type or, as most have, without."""
    tune(data, pretrained, tmp_path / "ours")
    folder = tmp_path / "theirs"
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    theirs.save_pretrained(folder)
    for file in (tmp_path / "ours").glob("*token*"):
        shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    for key in {KEY, name, "id2label", "label2id"}:
        config.pop(key, None)
    # What Transformers writes of num_labels=1.
    config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    (folder / "config.json").write_text(json.dumps(config))
    predict(folder, data / "test.csv", tmp_path / "out.jsonl")
    shown = [row["value"] for row in read_jsonl(tmp_path / "out.jsonl")]
    predictor = open_folder(tmp_path / "ours")
    expected = np.stack(predictor(predictor.task.read(data / "test.csv")))[:, 0]
    assert_close(shown, expected)
    ours = evaluate(tmp_path / "ours", data / "test.csv")
    assert evaluate(folder, data / "test.csv").mae == pytest.approx(ours.mae)


@pytest.mark.parametrize("long", ["windows", "segments"])
def test_long_documents(data: Path, pretrained: Path, tmp_path: Path, long: str):
    output = tmp_path / "out"
    tune(data, pretrained, output, long=long, stride=4, max_length=16, rdrop=0.5)
    rows = [Row(1, ("w1 " * 200 + "red1 " * 40,)), Row(2, ("red1 9",)), Row(3, ("",))]
    assert_same_in_any_company(output, rows)


def test_a_model_that_knows_the_mean_alone_is_warned_of(
    data: Path, pretrained: Path, tmp_path: Path, capfd
):
    options = {"overrides": ["optim.learning_rate=1e-9", "model.head_init=random"]}
    tune(data, pretrained, tmp_path / "out", quiet=False, **options)
    said = capfd.readouterr().out
    assert "warning: 'score': the model predicts nearly the same for every row" in said
    assert "learning_rate" in said
    warned: list[str] = []
    scores = evaluate(tmp_path / "out", data / "test.csv", say=warned.append)
    assert "nearly the same" in warned[0]
    assert scores.as_json()["warnings"] == list(scores.warnings) == warned


def test_columns_by_name(tmp_path: Path):
    for name in ("score", "Rating", "value", "y", "target", "label", "stars"):
        assert read(tmp_path, f"text,{name}\nx, 1.5 \ny,-2e1\n") == ([(1.5,), (-20,)], (name,))
    assert read(tmp_path, "label,score,text\na,1,x\n") == ([(1,)], ("score",))
    assert read(tmp_path, "label,score,text\n2,1,x\n", label="label") == ([(2,)], ("label",))
    assert read(tmp_path, "b,text,a\n2,x,1\n", label="a, b") == ([(1, 2)], ("a", "b"))
    assert read(tmp_path, '"a,b",text\n2,x\n', label="a,b") == ([(2,)], ("a,b",))
    json_rows = '{"sentence1": "x", "sentence2": "y", "score": 3}'
    assert read(tmp_path, json_rows, "t.jsonl") == ([(3,)], ("score",))
    table = pa.table({"text": ["x"], "score": pa.array([0.5], pa.float32())})
    pq.write_table(table, tmp_path / "t.parquet")
    assert RegressionTask().read(tmp_path / "t.parquet") == [Row(1, ("x",), (0.5,))]


def test_a_second_file_is_read_by_the_names_of_the_first(tmp_path: Path):
    task = RegressionTask()
    for name, text in (("a.csv", "text,value\nx,1\n"), ("b.csv", "text,score,value\nx,9,1\n")):
        (tmp_path / name).write_text(text)
        assert task.read(tmp_path / name)[0].target == (1,)
    (tmp_path / "c.csv").write_text("text,rating\nx,4\n")
    assert task.read(tmp_path / "c.csv")[0].target == (4,)
    assert task.labels == ("value",)


COMMAS = "write numbers without commas, with a decimal point, such as 1234.5"
ODD_CELLS = [
    ("1.5,5", f"has '1.5,5'; {COMMAS}"),
    ("1,234", f"has '1,234'; {COMMAS}"),
    ("good", "has 'good'; a number such as 3 or 0.25 is needed"),
    ("1_000", "has '1_000'; a number such as"),
    ("-inf", "has -inf; a number from"),
    ("1e99", "has 1e99; a number from"),
]
ODD_VALUES = [
    ("true", "has True; a number such as"),
    ("[1, 2]", "has [1, 2]; give each number of a row its own column, and name these columns with"),
    ("1" + "0" * 400, "has a number of about 400 digits; a number such as"),
    ('"1,500"', f"has '1,500'; {COMMAS}"),
]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("t.csv", f'text,score\nx,1\ny,"{cell}"\n', said) for cell, said in ODD_CELLS]
    + [("t.jsonl", f'\n\n{{"text": "x", "score": {value}}}\n', said) for value, said in ODD_VALUES],
)
def test_what_is_no_number_is_refused(tmp_path: Path, name: str, text: str, message: str):
    with pytest.raises(InputError, match=re.escape(f"{name}, line 3: column 'score' {message}")):
        read(tmp_path, text, name)


@pytest.mark.parametrize(
    ("numbers", "first"),
    [
        (("810", "1.080", "4.351"), None),
        (("1", "1.333", "1.667", "2"), 1.0),  # means of three ratings
        (("4.350", "5.000", "12.125"), 4.35),
        (("1.080", "2.5", "3"), 1.08),
        (("0.120", "3"), 0.12),
    ],
)
def test_points_between_thousands_are_not_read_as_decimal_points(
    tmp_path: Path, numbers: tuple[str, ...], first: float | None
):
    text = "text;score\n" + "".join(f"x;{number}\n" for number in numbers)
    if first is not None:
        assert read(tmp_path, text)[0][0] == (first,)
        return
    message = "line 3: column 'score' has '1.080', and its numbers below 1,000 have no point"
    with pytest.raises(InputError, match=f"{message}.*write 1080, or 1.08 if it is decimal"):
        read(tmp_path, text)


def test_lists_of_one_number_are_numbers(tmp_path: Path):
    rows = '{"text": "x", "score": [1.5]}\n{"text": "y", "score": [2]}\n'
    assert read(tmp_path, rows, "t.jsonl") == ([(1.5,), (2.0,)], ("score",))


@pytest.mark.parametrize("cell", ["", "  ", "NA", "nan", "<NA>", "null", "None", "n/a", "?", "-"])
def test_rows_without_a_number_are_refused_with_their_count(tmp_path: Path, cell: str):
    state = f"missing: '{cell}'" if cell.strip() else "empty"
    message = f"t.csv, line 3: the number (column 'score') is {state}"
    for more, advice in (("", "a number is needed"), (f'"{cell}",z\n', "2 of 3 rows have none")):
        with pytest.raises(InputError, match=re.escape(f"{message}; {advice}")):
            read(tmp_path, f'score,text\n1,x\n"{cell}",y\n{more}')
    for value in ("null", "NaN"):
        with pytest.raises(InputError, match="line 1: 'score' is missing or null; a number is"):
            read(tmp_path, f'{{"text": "x", "score": {value}}}', "t.jsonl")


def test_files_that_cannot_be_learnt_or_measured_are_refused(
    data: Path, pretrained: Path, rater: Path, tmp_path: Path
):
    odd, output = tmp_path / "odd.csv", tmp_path / "out"
    odd.write_text("text,score,cold\nx,0.1,1\ny,0.1,2\nz,0.1,3\n")
    with pytest.raises(InputError, match=r"odd.csv: all rows have 0.1 in column 'score'"):
        tune(data, pretrained, output, train=odd)
    for label, message in (
        ("score,warm", "has no column 'warm'"),
        ("score,score", "the column 'score' cannot be used twice"),
        ("score,text", "the column 'text' cannot be used twice"),
        ("warm", "has no column 'warm'"),
    ):
        with pytest.raises(InputError, match=message):
            tune(data, pretrained, output, label_column=label)
    with pytest.raises(InputError, match=r"1 columns of numbers \(score\), but the model has 2"):
        evaluate(rater, data / "test.csv", label_column="score")
    for text, options, message in (
        ("text,score\n", {"train": odd}, "has no rows"),
        ("text,note,remark\nx,1,2\n", {"train": odd}, "cannot tell which column holds the labels"),
        ("", {"overrides": ["task.loss=mae"]}, r"task.loss"),
        ("", {"class_weights": "balanced"}, "does not apply to regress"),
    ):
        odd.write_text(text)
        with pytest.raises(InputError, match=message):
            tune(data, pretrained, output, **options)
    assert not output.exists()


def test_a_dry_run_tells_of_range_mean_and_spread(data: Path, pretrained: Path):
    command = ["finetune", "regress"]
    assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0
    files = ["--model", str(pretrained), "--train", str(data / "train.csv"), "--loss", "huber"]
    done = CliRunner().invoke(app, [*command, *files, "--label-column", "cold,score", "--dry-run"])
    assert done.exit_code == 0
    assert "loss: huber" in done.output
    numbers = np.loadtxt(data / "train.csv", delimiter=",", skiprows=1, usecols=(2, 1))
    for name, x in zip(("cold", "score"), numbers.T, strict=True):
        assert f"{name} from {x.min():g} to {x.max():g}, mean {x.mean():.4g}" in done.output
        assert f"spread {x.std():.4g}" in done.output
    assert f"\ncold {numbers[0, 0]:g}, score {numbers[0, 1]:g}: " in done.output


def example(parts: int, labels: list[float]) -> Example:
    ids = np.arange(parts * 2)
    return Example(ids, ids * 0, label=np.float32(labels), parts=(2,) * parts)


def test_the_losses_are_of_the_mean_of_the_windows():
    batch = pack([example(2, [0.5, 1]), example(1, [0, 4])])
    logits = torch.tensor([[1.0, 1.0], [0.5, 0.0], [0.2, 1.0]])
    errors = np.asarray([[0.25, -0.5], [0.2, -3]])  # of (0.75, 0.5) and (0.2, 1)
    squared = RegressionObjective()(logits, batch)
    assert_close(squared.total, (errors**2).mean(1).sum())
    assert (int(squared.correct), squared.count) == (0, 2)
    huber = np.where(np.abs(errors) < 1, errors**2 / 2, np.abs(errors) - 0.5)
    assert_close(RegressionObjective(loss="huber")(logits, batch).total, huber.mean(1).sum())
    near = RegressionObjective()(torch.tensor([[0.5, 1.2], [0.5, 1.2], [0.2, 1.0]]), batch)
    assert int(near.correct) == 1


def test_the_distance_is_the_divergence_of_two_normal_distributions():
    batch = pack([example(1, [0, 0]), example(1, [0, 0])])
    one, two = torch.tensor([[1.0, 2.0], [0.0, 3.0]]), torch.tensor([[0.0, 2.5], [1.0, -1.0]])
    p, q = torch.distributions.Normal(one, 1.0), torch.distributions.Normal(two, 1.0)
    expected = torch.distributions.kl_divergence(p, q).mean(1).sum()
    assert_close(RegressionObjective().distance(one, two, batch), expected)


@given(st.lists(st.tuples(*[st.integers(-9, 9)] * 4), min_size=2, max_size=20))
def test_scores_equal_scipys_and_scikit_learns(rows):
    table = np.asarray(rows, dtype=float)
    assume((table.min(0) < table.max(0)).all())
    true, said = table[:, :2], table[:, 2:]
    scores = score_regression(true, said, ("a", "b"))
    pairs = list(zip(true.T, said.T, strict=True))
    assert scores.spearman == pytest.approx(np.mean([spearmanr(*p).statistic for p in pairs]))
    assert scores.pearson == pytest.approx(np.mean([pearsonr(*p).statistic for p in pairs]))
    assert scores.mae == pytest.approx(mean_absolute_error(true, said))
    assert scores.r2 == pytest.approx(r2_score(true, said))


def test_scores_of_constants_are_numbers():
    one = score_regression(np.asarray([[3.0]]), np.asarray([[1.0]]), ("a",))
    assert one.values == {"spearman": 0, "pearson": 0, "mae": 2, "r2": 0}
    assert one.warnings == ()
    flat = score_regression(np.asarray([[1.0], [3.0]]), np.asarray([[2.0], [2.0]]), ("a",))
    assert flat.values == {"spearman": 0, "pearson": 0, "mae": 1, "r2": 0}
    assert "'a': the model predicts nearly the same for every row (2 to 2" in flat.warnings[0]
