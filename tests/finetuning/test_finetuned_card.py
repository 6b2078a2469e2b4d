"""The model card: what the hub reads, what people read, and nothing of the texts."""

import hashlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from ownbert import Predictor, finetune
from ownbert.config.encoder import SIZES
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuned_card import base_name, write_card
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.row_checks import LabelledSplit
from ownbert.run.model_card import MARK, hub_base
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe, FinetuneRun
from ownbert.tasks.metrics import LabelScore
from ownbert.tasks.rows import Row
from ownbert.train.training_settings import Optim


def front(card: str) -> dict:
    """The YAML at the top."""
    _, values, rest = card.split("---\n", 2)
    assert rest.startswith(f"\n{MARK}\n")
    return yaml.safe_load(values)


def table(card: str, first: str) -> dict[str, list[str]]:
    """The rows of a table by their first cell; ``first``: how its head begins."""
    lines = card.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    found = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        found[name] = cells
    return found


def words_of(path: Path) -> set[str]:
    return {w for line in path.read_text().splitlines()[1:] for w in line.split(",")[1].split()}


@pytest.fixture
def recipe(pretrained: Path) -> FinetuneRecipe:
    return FinetuneRecipe(
        data=FinetuneData(batch_size=16, max_length=48),
        model=FinetuneModel(folder=str(pretrained)),
        optim=Optim(learning_rate=1e-3, betas=(0.9, 0.999), schedule="linear", warmup=0.1),
        run=FinetuneRun(epochs=3, device="cpu", precision="float32"),
    )


def test_the_hub_can_read_it(classifier: Path):
    assert front((classifier / "README.md").read_text()) == {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": ["ownbert"],
    }


def test_it_says_what_was_learnt_and_how_well(classifier: Path, topics: Path):
    card = (classifier / "README.md").read_text()
    files = table(card, "")
    for name, file in (("training", "train.csv"), ("dev", "dev.csv")):
        digest = hashlib.sha256((topics / file).read_bytes()).hexdigest()
        assert files[name][0] == file
        assert files[name][2] == digest
    assert table(card, "label")["red"] == ["20", "10"]
    settings = table(card, "setting")
    made = yaml.safe_load((classifier / "recipe.yaml").read_text())
    assert settings["learning rate"] == [f"{made['optim']['learning_rate']:g}"]
    assert settings["epochs"] == ["4 at most"]
    assert settings["batch size"] == [str(made["data"]["batch_size"])]
    logged = [json.loads(line) for line in (classifier / "log.jsonl").read_text().splitlines()]
    best = max(row["macro_f1"] for row in logged if row.get("evaluation"))
    assert float(table(card, "metric")["macro F1"][0]) == pytest.approx(best, abs=1e-3)
    assert "3 labels: blue, green, red." in card


def test_no_text_and_no_folder_stands_in_it(classifier: Path, topics: Path, pretrained: Path):
    card = (classifier / "README.md").read_text()
    words = words_of(topics / "train.csv") | words_of(topics / "dev.csv")
    assert len(words) > 60
    # "9" ends the sentences of these texts, and may be a figure here.
    assert not words - {"9"} & set(re.findall(r"\w+", card))
    for folder in (topics, pretrained.parent, classifier.parent):
        assert str(folder) not in card


@pytest.mark.usefixtures("transformers")
def test_its_python_predicts(
    classifier: Path,
    monkeypatch: pytest.MonkeyPatch,
    topics: Path,
    capsys: pytest.CaptureFixture[str],
):
    card = (classifier / "README.md").read_text()
    ours, theirs = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    monkeypatch.chdir(classifier.parent)
    _, _, text = (topics / "test.csv").read_text().splitlines()[1].partition(",")
    label = Predictor(classifier)(text)[0]["label"]
    exec(ours.replace("a text", text), {})
    assert f"'label': '{label}'" in capsys.readouterr().out
    exec(theirs.replace("a text", text), {})
    assert capsys.readouterr().out == f"{label}\n"


def test_pictures_stand_in_it(classifier: Path):
    card = (classifier / "README.md").read_text()
    shown = re.findall(r"!\[.+\]\((.+)\)", card)
    assert shown == ["curves.png", "confusion.png"]
    assert all((classifier / name).exists() for name in shown)


@pytest.mark.usefixtures("transformers")
def test_the_card_of_pretraining(
    pretrained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    card = (pretrained / "README.md").read_text()
    assert front(card) == {
        "library_name": "transformers",
        "pipeline_tag": "fill-mask",
        "tags": ["ownbert"],
    }
    assert table(card, "setting")["steps"] == ["60 at most"]
    assert table(card, "setting")["task.objectives"] == ["mlm,nsp"]
    last = [json.loads(row) for row in (pretrained / "log.jsonl").read_text().splitlines()]
    loss = next(row["mlm_loss"] for row in reversed(last) if row.get("evaluation"))
    assert float(table(card, "metric")["masked words: loss"][0]) == pytest.approx(loss, abs=1e-4)
    assert "](curves.png)" in card
    assert str(pretrained.parent) not in card
    monkeypatch.chdir(pretrained.parent)
    ours, theirs = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    exec(ours, {})
    exec(theirs, {})
    shape, best = capsys.readouterr().out.splitlines()
    assert shape == f"(2, {SIZES['tiny'][1]})"
    assert len(eval(best)) == 5


def test_the_base_model_is_one_of_the_hub(tmp_path: Path):
    assert hub_base("hf:google/bert") == "google/bert"
    cached = tmp_path / "models--google--bert_uncased" / "snapshots" / "0123abc"
    cached.mkdir(parents=True)
    assert hub_base(str(cached)) == "google/bert_uncased"
    local = tmp_path / "runs" / "my-bert"
    local.mkdir(parents=True)
    assert hub_base(str(local)) == ""
    (local / "README.md").write_text(f"---\nbase_model: google/bert\n---\n\n{MARK}\n")
    assert hub_base(str(local)) == "google/bert"


def test_of_many_labels_ten_have_a_row(classifier: Path, recipe: FinetuneRecipe, tmp_path: Path):
    labels = [LabelScore(f"l{i}", 0.5, 0.5, (i * 7 % 30) / 30, 3) for i in range(30)]
    write_card(tmp_path, recipe, [], metrics={"accuracy": [0.5]}, labels=labels, model=classifier)
    card = (tmp_path / "README.md").read_text()
    rows = table(card, "label")
    assert [cells[2] for cells in rows.values()] == [f"{i / 30:.3f}" for i in range(10)]
    assert "the 10 with the lowest F1:" in card
    assert "and 20 more." in card


def test_a_head_of_our_own_is_said_to_be_one(pretrained: Path, topics: Path, tmp_path: Path):
    finetune(
        model=pretrained,
        train=topics / "train.csv",
        output=tmp_path / "out",
        pooling="attention",
        max_steps=1,
        quiet=True,
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert "ownbert_heads" in card
    assert "import AutoTokenizer, AutoModel\n" in card
    assert table(card, "setting")["task.pooling"] == ["attention"]
    assert "there were no dev rows" in card


def test_a_card_that_somebody_wrote_stays(pretrained: Path, topics: Path, tmp_path: Path, capfd):
    output = tmp_path / "out"
    output.mkdir()
    (output / "README.md").write_text("# My own model\n")
    given = {"model": pretrained, "train": topics / "train.csv", "output": output, "max_steps": 1}
    finetune(**given)
    assert (output / "README.md").read_text() == "# My own model\n"
    assert "README.md was not written by ownbert and is kept" in capfd.readouterr().out
    (output / "README.md").write_text(f"# Of an earlier run\n\n{MARK}\n")
    finetune(**given, overwrite=True, quiet=True)
    assert "# out" in (output / "README.md").read_text()


def test_several_models_have_a_mean_and_a_spread(
    classifier: Path, recipe: FinetuneRecipe, tmp_path: Path
):
    values = [0.5, 0.7, 0.9]
    rows = LabelledSplit("training", [Row(1, ("a text",), "red")])
    told = write_card(
        tmp_path,
        recipe,
        [rows],
        metrics={"macro_f1": values, "accuracy": [0.25]},
        several="3 seeds",
        model=classifier,
    )
    assert told is None
    card = (tmp_path / "README.md").read_text()
    metrics = table(card, "metric")
    assert metrics["macro F1"] == [f"{np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}"]
    assert metrics["accuracy"] == ["0.2500"]
    assert "mean ± standard deviation of 3 seeds" in card
    assert f'from_pretrained("{tmp_path.name}/{classifier.name}")' in card
    assert table(card, "")["training"] == ["rows given in Python", "1 documents", ""]


def test_labels_that_would_break_a_table(classifier: Path, recipe: FinetuneRecipe, tmp_path: Path):
    labels = [LabelScore("a|b\nc", 0.5, 0.5, 0.5, 3)]
    metrics = {"accuracy": [0.5]}
    write_card(tmp_path, recipe, [], metrics=metrics, labels=labels, model=classifier)
    card = (tmp_path / "README.md").read_text()
    assert table(card, "label")["a\\|b c"] == ["0.500", "0.500", "0.500", "3"]


def test_from_scratch_has_no_base_model(classifier: Path, recipe: FinetuneRecipe, tmp_path: Path):
    recipe = replace(recipe, model=replace(recipe.model, from_scratch=True, dropout=0.2))
    write_card(tmp_path, recipe, [], metrics={}, model=classifier)
    card = (tmp_path / "README.md").read_text()
    assert "base_model" not in front(card)
    assert "starts from scratch, with" in card
    assert table(card, "setting")["model.dropout"] == ["0.2"]


def test_the_name_of_a_model_is_without_its_folder(tmp_path: Path, monkeypatch):
    assert base_name(str(tmp_path / "some" / "bert")) == "bert"
    assert base_name("google/bert_uncased") == "google/bert_uncased"
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert base_name("runs") == "runs"
    assert base_name(".") == tmp_path.name


def test_answers_that_are_texts_are_not_counted_as_labels(
    classifier: Path, recipe: FinetuneRecipe, tmp_path: Path
):
    rows = [Row(1, ("question", "context"), ("a private answer",)), Row(2, ("q", "c"), ())]
    write_card(tmp_path, recipe, [LabelledSplit("training", rows)], metrics={}, model=classifier)
    assert "private" not in (tmp_path / "README.md").read_text()


OTHERS = {
    "tag": ("rows.conll", "secret0 O\nsecret1 B-x\n\n" * 6, "token-classification"),
    "regress": (
        "rows.csv",
        "score,text\n" + "".join(f"{i % 5}.5,secret{i} 9\n" for i in range(20)),
        "text-classification",
    ),
    "embed": (
        "rows.csv",
        "query,document\n" + "".join(f"secret{i},secret{i + 1} 9\n" for i in range(20)),
        "sentence-similarity",
    ),
    "choose": (
        "rows.tsv",
        "prompt\tchoice0\tchoice1\tlabel\n" + "secret0\tsecret1\tsecret2\t0\n" * 8,
        "multiple-choice",
    ),
    "answer": (
        "rows.jsonl",
        '{"question": "secret0", "context": "secret1 secret2", "answers": ["secret2"]}\n' * 8,
        "question-answering",
    ),
}
LOADED_BY = {
    "tag": "AutoModelForTokenClassification",
    "regress": "AutoModelForSequenceClassification",
    "embed": "SentenceTransformer",
    "choose": "AutoModelForMultipleChoice",
    "answer": "AutoModelForQuestionAnswering",
}


@pytest.mark.parametrize("task", OTHERS)
def test_cards_of_other_tasks(pretrained: Path, tmp_path: Path, task: str):
    """Each from a small file of its own, with secret words in it."""
    name, text, tag = OTHERS[task]
    (tmp_path / name).write_text(text)
    output = tmp_path / "out"
    given = {"train": tmp_path / name, "output": output, "max_steps": 1, "quiet": True}
    finetune(task, model=pretrained, **given)
    card = (output / "README.md").read_text()
    assert front(card)["pipeline_tag"] == tag
    assert LOADED_BY[task] in card
    assert "secret" not in card


def test_rows_given_in_python_are_said_to_be(pretrained: Path, topics: Path, tmp_path: Path):
    texts = [line.split(",") for line in (topics / "train.csv").read_text().splitlines()[1:]]
    rows = [Row(i, (text,), label) for i, (label, text) in enumerate(texts)]
    recipe = FinetuneRecipe(
        model=FinetuneModel(folder=str(pretrained)), run=FinetuneRun(max_steps=1)
    )
    FinetuningRun(recipe, (rows, rows[:9])).train(FinetuneFolder(tmp_path), quiet=True)
    card = (tmp_path / "README.md").read_text()
    assert table(card, "")["dev"] == ["rows given in Python", "9 documents", ""]
    assert not {w for _, text in texts for w in text.split()} - {"9"} & set(
        re.findall(r"\w+", card)
    )


def test_it_names_the_versions(classifier: Path):
    import torch

    card = (classifier / "README.md").read_text()
    assert f"torch {torch.__version__}, Python {sys.version.split()[0]}" in card
