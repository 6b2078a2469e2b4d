"""Choices that go with a prompt: reading, loss, learning, the same as Transformers."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer
from typer.testing import CliRunner

from ownbert import InputError, evaluate, predict
from ownbert.batches.batch import pack
from ownbert.checkpoint import describe
from ownbert.cli import app
from ownbert.finetuning.labelled_splits import fold_of
from ownbert.inference.open_folder import open_folder
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.multiple_choice import MultipleChoiceTask
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.row_objectives import MultipleChoiceObjective, RDrop
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import TextInputBuilder
from support.floats import assert_close
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned, write_jsonl

TOPICS = ("red", "green", "blue")


def question(rng: random.Random) -> dict:
    """A prompt of one topic, and two or three choices of which one is of it too."""
    topics = rng.sample(TOPICS, rng.randint(2, 3))
    topic = rng.choice(topics)
    texts = [" ".join(f"{name}{rng.randint(0, 11)}" for _ in range(4)) for name in [topic, *topics]]
    return {"prompt": texts[0], "choices": texts[1:], "label": topics.index(topic)}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl, dev.jsonl and test.jsonl."""
    folder, rng = tmp_path_factory.mktemp("questions"), random.Random(5)
    for name, count in (("train", 160), ("dev", 30), ("test", 60)):
        write_jsonl(folder / f"{name}.jsonl", [question(rng) for _ in range(count)])
    return folder


@pytest.fixture(scope="module")
def chooser(questions: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chooser") / "chooser"
    tuned("choose", questions, pretrained, folder, epochs=3)
    return folder


def read(
    tmp_path: Path, text: str, name: str = "rows.csv", columns: ColumnNames | None = None
) -> list[Row]:
    path = tmp_path / name
    path.write_text(text)
    return MultipleChoiceTask(columns=columns).read(path)


def test_it_learns_to_choose(chooser: Path, questions: Path, tmp_path: Path):
    accuracy = evaluate(chooser, questions / "test.jsonl").accuracy
    assert accuracy > 0.8  # chance is between a third and a half
    predict(chooser, questions / "test.jsonl", tmp_path / "out.jsonl", probabilities=True)
    asked, found = map(read_jsonl, (questions / "test.jsonl", tmp_path / "out.jsonl"))
    for row, answer in zip(asked, found, strict=True):
        assert len(answer["probabilities"]) == len(row["choices"])
        assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert answer["choice"] == int(np.argmax(answer["probabilities"]))
        assert answer["prompt"] == row["prompt"]
        assert answer["text"] == row["choices"][answer["choice"]]
    right = [row["label"] == answer["choice"] for row, answer in zip(asked, found, strict=True)]
    assert np.mean(right) == pytest.approx(accuracy)


def test_it_is_the_model_of_transformers(chooser: Path, questions: Path):
    config = json.loads((chooser / "config.json").read_text())
    assert config["architectures"] == ["BertForMultipleChoice"]
    theirs, loading = AutoModelForMultipleChoice.from_pretrained(chooser, output_loading_info=True)
    assert not any(loading.values())
    tokenizer, predictor = AutoTokenizer.from_pretrained(chooser), open_folder(chooser)
    rows = predictor.task.read(questions / "test.jsonl")[:20]
    for row, ours in zip(rows, predictor(rows), strict=True):
        prompt, *choices = row.texts
        given = tokenizer([prompt] * len(choices), choices, padding=True, return_tensors="pt")
        given = {name: tensor[None] for name, tensor in given.items()}
        with torch.no_grad():
            logits = theirs.eval()(**given).logits[0]
        data = predictor.task.encode([row], predictor.builder, training=False)
        model = predictor.task.load(describe(chooser))
        with torch.no_grad():
            found = model(pack(data.examples)).logits["choice"][:, 0]
        torch.testing.assert_close(found, logits, atol=1e-5, rtol=0)
        assert_close(ours, logits.softmax(-1))


def test_a_row_gets_the_same_answer_in_any_company(chooser: Path, questions: Path):
    assert_same_in_any_company(chooser, questions / "test.jsonl")


def batch_of(chooser: Path, rows: list[Row]):
    predictor = open_folder(chooser)
    examples = predictor.task.encode(rows, predictor.builder, training=True).examples
    return pack(list(examples)), pack([*examples, *examples])


ROWS = [
    Row(1, ("red1", "red2", "blue3"), 0),
    Row(2, ("red1 red2", "green3", "blue3 w1", "red4", "w2"), 2),
    Row(3, ("blue1", "green3", "w1", "blue2"), 2),
]


def test_the_loss_is_that_of_plain_torch(chooser: Path):
    batch, doubled = batch_of(chooser, ROWS)
    assert batch.groups == (2, 4, 3)
    torch.manual_seed(0)
    logits = torch.randn(9, 1, requires_grad=True)
    loss = MultipleChoiceObjective()(logits, batch)
    parts = logits[:, 0].split((2, 4, 3))
    targets = torch.tensor([0, 2, 2])
    by_hand = [torch.nn.functional.cross_entropy(x, y) for x, y in zip(parts, targets, strict=True)]
    torch.testing.assert_close(loss.total, torch.stack(by_hand).sum())
    assert loss.correct == sum(x.argmax() == y for x, y in zip(parts, targets, strict=True))
    assert loss.count == MultipleChoiceObjective().count(batch) == 3
    found = torch.autograd.grad(loss.total, logits, retain_graph=True)[0]
    expected = torch.autograd.grad(torch.stack(by_hand).sum(), logits)[0]
    torch.testing.assert_close(found, expected)
    # The distance of two passes, of rows with different numbers of choices.
    both = torch.randn(18, 1, requires_grad=True)
    objective = MultipleChoiceObjective()
    plain, twice = objective(both, doubled), RDrop(objective, 0.5)(both, doubled)
    one, two = ([x.log_softmax(0) for x in half[:, 0].split((2, 4, 3))] for half in both.chunk(2))
    kinds = [((a.exp() - b.exp()) * (a - b)).sum() / 2 for a, b in zip(one, two, strict=True)]
    torch.testing.assert_close(twice.total, plain.total + torch.stack(kinds).sum())
    twice.total.backward()
    assert both.grad is not None
    assert both.grad.isfinite().all()


def test_poolings_and_two_passes(pretrained: Path, questions: Path, tmp_path: Path):
    overrides = ("task.pooling=mean", "task.rdrop=1")
    tuned("choose", questions, pretrained, tmp_path / "out", *overrides)
    assert open_folder(tmp_path / "out").models[0].specs["choice"].pooling == "mean"


def test_long_texts_are_cut_and_counted(chooser: Path):
    predictor = open_folder(chooser)
    long = " ".join(["red1"] * 100)
    rows = [Row(1, (long, "red1", "blue2")), Row(2, ("red1", "red1", "blue2"))]
    data = predictor.task.encode(rows, predictor.builder, training=False)
    assert data.truncated == 1
    assert data.examples[0].parts == (48, 48)
    assert data.examples[1].parts == (5, 5)
    builder = TextInputBuilder(predictor.tokenizer, predictor.models[0].config, 48)
    one, types = builder.pair(*builder.ids(["red1", "blue2"]))
    assert data.examples[1].token_ids[5:].tolist() == one.tolist()
    assert data.examples[1].type_ids[5:].tolist() == types.tolist() == [0, 0, 0, 1, 1]


def test_tables_of_every_kind(tmp_path: Path):
    expected = [(("p", "x", "y", "z"), 2), (("q", "u", "v"), 0)]

    def same(rows: list[Row]) -> bool:
        return [(row.texts, row.target) for row in rows] == expected

    assert same(read(tmp_path, "prompt,ending0,ending1,ending2,label\np,x,y,z,2\nq,u,v,,0\n"))
    text = "id\tQuestion\tA\tB\tC\tanswer\n7\tp\tx\ty\tz\tC\n8\tq\tu\tv\t\ta\n"
    assert same(read(tmp_path, text, "rows.tsv"))
    text = "premise,choice_a,choice_b,choice_c,label\np,x,y,z,z\nq,u,v,,u\n"
    assert same(read(tmp_path, text))
    text = "p1,p2,sent1,sent2,why\nx,y,p,0,1\nu,v,q,0,0\n"
    named = read(tmp_path, text, columns=ColumnNames("sent1", "p", "why"))
    assert [row.texts for row in named] == [("p", "x", "y"), ("q", "u", "v")]
    table = {"stem": ["p", "q"], "options": [["x", "y", "z"], ["u", "v"]], "label": [2, 0]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")
    assert same(MultipleChoiceTask().read(tmp_path / "rows.parquet"))
    lines = ['{"question": "p", "choices": ["x", "y", "z"], "label": "z"}']
    lines += ['{"question": "q", "choices": ["u", "v"], "label": "A"}']
    assert same(read(tmp_path, "\n".join(lines), "rows.jsonl"))
    rows = list(MultipleChoiceTask().stream(tmp_path / "rows.jsonl"))
    assert [(row.texts, row.target) for row in rows] == [(texts, None) for texts, _ in expected]


def test_empty_prompts_do_not_connect_rows():
    rows = [Row(i, ("", f"one {i}", f"other {i}"), 0) for i in range(20)]
    keys = [MultipleChoiceTask().fold_keys(row) for row in rows]
    folds = fold_of(rows, 5, seed=0, clusters=clusters_of(keys))
    assert sorted(Counter(folds).values()) == [4] * 5


def test_labels_from_one_are_seen_by_the_whole_file(tmp_path: Path):
    head = "prompt,choice1,choice2,choice3,label\n"
    task = MultipleChoiceTask()

    def targets(*labels: int | str) -> list[int]:
        (tmp_path / "rows.csv").write_text(head + "".join(f"p,x,y,z,{n}\n" for n in labels))
        return [row.target for row in task.read(tmp_path / "rows.csv")]

    assert targets(1, 2) == [1, 2]  # it does not tell
    assert targets(0, 1, 2) == [0, 1, 2]
    assert targets(1, "y", 3) == [0, 1, 2]
    assert targets(1, 2) == [0, 1]  # as the file before it
    again = MultipleChoiceTask()
    again.restore(task.values()["ownbert_task"])
    assert again.first_label == 1
    with pytest.raises(InputError, match=r"rows.csv, line 3: label 3 must be from 0 to 2"):
        targets(0, 3)
    with pytest.raises(InputError, match=r"rows.csv, line 2: label 4 must be from 0 to 2"):
        targets(4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,a0,a1,label\np,x,y,-1\n", r"rows.csv, line 2: label -1 must be from 0 to 1"),
        ("prompt,a0,a1,label\np,x,y,0\np,x,,0\n", "line 3: at least two choices .* there are 1"),
        ("prompt,a0,a1,label\np,x,y,\n", "line 2: 'label' is missing or empty"),
        ("prompt,a0,a1,a2,label\np,x, ,z,0\n", r"line 2: choice 1 \(from 0\) is empty"),
        ("prompt,a0,a1,label\np,x,y,nobody\n", "line 2: label 'nobody' is none of the choices"),
        ("prompt,a0,a1,label\np,x,x,x\n", "line 2: label 'x' is several choices"),
        ("prompt,a0,a1\np,x,y\n", "no column of the label; name it with label_column"),
        ("x,a0,a1,label\np,x,y,0\n", "no column of the prompt; name it with text_column"),
        ("prompt,a0,b1,label\np,x,y,0\n", "cannot tell which columns hold the choices"),
        ("prompt,a0,a1,label\n", "rows.csv has no rows"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str):
    with pytest.raises(InputError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "line 1: at least two choices are needed, but there are 0"),
        (["x"], "line 1: at least two choices are needed, but there are 1"),
        ("x", "line 1: 'choices' must contain a list of texts"),
        (None, "line 1: 'choices' must contain a list of texts"),
        (["x", None], "line 1: 'choices' is missing or null"),
    ],
)
def test_mistakes_of_lists(tmp_path: Path, choices: object, message: str):
    row = {"prompt": "p", "choices": choices, "label": 0}
    with pytest.raises(InputError, match=message):
        read(tmp_path, json.dumps(row), "rows.jsonl")
    (tmp_path / "rows.txt").write_text("p\n")
    with pytest.raises(InputError, match="is plain text and has no columns"):
        MultipleChoiceTask().stream(tmp_path / "rows.txt")


def test_a_real_file(shared_data: Path):
    task = MultipleChoiceTask()
    for name, count in (("train", 1665), ("dev", 556), ("test", 555)):
        rows = task.read(shared_data / "codah" / f"{name}.tsv")
        assert len(rows) == count
        assert {len(row.texts) for row in rows} == {5}
        assert {row.target for row in rows} == {0, 1, 2, 3}
    assert rows[0].texts[1 + rows[0].target] == "met her friends at the gate."
    assert task.first_label == 0


def test_the_command(pretrained: Path, questions: Path, tmp_path: Path):
    names = ["--model", str(pretrained), "--train", str(questions / "train.jsonl")]
    done = CliRunner().invoke(app, ["finetune", "choose", *names, "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "160 training and no dev questions, from" in done.stdout
    assert CliRunner().invoke(app, ["finetune", "choose", "--help"]).exit_code == 0
