"""Which documents are cut and which are read in windows, and what an epoch learns from."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert import InputError, evaluate, finetune
from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import load
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.initial_model import WordsInUse
from ownbert.inference.open_folder import open_folder
from ownbert.inspect.explain.targets import probability
from ownbert.settings import resolve
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneModel, FinetuneRecipe, TaskSettings
from ownbert.tasks.row_network import sigmoid, softmax
from ownbert.tasks.rows import Row
from ownbert.tasks.task import task_class
from ownbert.tasks.text_input import EncodedRows
from support.tiny import change_config, made


def documents(path: Path, *words: int) -> Path:
    """A row for each number of words, with its topic at the end."""
    rng = np.random.default_rng(len(words))
    lines = ["label,text"]
    for number, length in enumerate(words):
        topic = ("red", "green", "blue")[number % 3]
        noise = " ".join(f"w{i}" for i in rng.integers(0, 30, length))
        lines.append(f"{topic},{noise} {' '.join(f'{topic}{i}' for i in rng.integers(0, 12, 4))}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run_of(model: Path, train: Path, **settings) -> FinetuningRun:
    recipe = FinetuneRecipe(
        data=FinetuneData(train=str(train)),
        model=FinetuneModel(folder=str(model)),
        task=TaskSettings(**settings),
    )
    return FinetuningRun(recipe)


def test_rows_that_fit_are_cut(pretrained: Path, tmp_path: Path):
    # 2 of 40 rows are longer than 48 tokens.
    train = documents(tmp_path / "train.csv", *[10] * 38, 90, 90)
    run = run_of(pretrained, train)
    assert (run.recipe.task.long, run.recipe.task.train_windows) == ("cut", None)
    assert run.splits.train_data.truncated == 2
    assert not any(e.parts for e in run.splits.train_data.examples)
    assert not run.task.notes()
    # Three are too many; a number of windows that was given stays.
    more = documents(tmp_path / "more.csv", *[10] * 37, 90, 90, 90)
    run = run_of(pretrained, more, max_windows=9)
    assert run.recipe.task.max_windows == 9
    assert run.recipe.task.long == "windows"
    assert run.splits.train_data.truncated == 0


def test_long_documents_are_read_to_their_end(pretrained: Path, tmp_path: Path):
    train = documents(tmp_path / "train.csv", *[100] * 12)
    output = tmp_path / "out"
    finetune("classify", model=pretrained, train=train, output=output, epochs=1, quiet=True)
    saved = json.loads((output / "config.json").read_text())["ownbert_task"]["settings"]
    assert saved == {
        "long": "windows",
        "window": 48,
        "stride": 23,
        "max_windows": 682,
        "train_windows": 10,
        "window_mean": "logits",
    }
    recipe = resolve(FinetuneRecipe, config=output / "recipe.yaml")
    assert recipe.task.long == "windows"
    assert FinetuningRun(recipe).recipe == recipe
    predictor = open_folder(output)
    noise = "w1 " * 400
    ends = [noise + "red1 red2 red3", noise + "blue1 blue2 blue3"]
    one, other = map(np.asarray, predictor([Row(i, (text,)) for i, text in enumerate(ends)]))
    assert predictor.cut == 0
    assert np.abs(one - other).max() > 1e-6
    assert evaluate(output, train).accuracy >= 0


@pytest.mark.parametrize("task", ["classify", "multilabel"])
def test_logits_of_windows_are_averaged(pretrained: Path, tmp_path: Path, task: str):
    """Folders from before there was a choice average probabilities."""
    train, output = documents(tmp_path / "train.csv", *[100] * 12), tmp_path / "out"
    finetune(task, model=pretrained, train=train, output=output, window=24, stride=4, epochs=2,
             quiet=True)  # fmt: skip
    text = "w1 w2 red1 " * 60 + "blue1 blue2 " * 20

    def answers() -> tuple[np.ndarray, np.ndarray]:
        """The logits of the windows, and the probabilities of the document."""
        opened = open_folder(output)
        data = opened.encoded([Row(1, (text,))])
        batch = pack(data.examples)
        logits = opened.networks[0].logits(data.examples, "classification")
        found = np.asarray(opened.raws_of(data)[0])
        again = probability(opened.task, torch.from_numpy(logits), batch)
        assert again[0].numpy() == pytest.approx(found, abs=1e-6)
        assert len(logits) > 10
        return logits, found

    function = softmax if task == "classify" else sigmoid
    logits, found = answers()
    assert found == pytest.approx(function(logits.mean(0)), abs=1e-6)
    settings = json.loads((output / "config.json").read_text())["ownbert_task"]
    assert settings["settings"].pop("window_mean") == "logits"
    change_config(output, ownbert_task=settings)
    logits, older = answers()
    assert older == pytest.approx(function(logits).mean(0), abs=1e-6)
    assert np.abs(older - found).max() > 1e-6


def test_windows_may_be_shorter_than_the_longest_sequence(pretrained: Path, tmp_path: Path):
    train = documents(tmp_path / "train.csv", *[80] * 6)
    for long in ("auto", "windows", "segments"):
        run = run_of(pretrained, train, long=long, window=20, stride=4)
        examples = run.splits.train_data.examples
        assert {e.parts[0] for e in examples if e.parts} == {20}
        assert [len(e.parts or ()) for e in examples] == [6] * 6  # 18 tokens, then 14 more each
        assert run.max_length == 48
    with pytest.raises(InputError, match=r"task\.stride is 32; with windows of 20 tokens"):
        run_of(pretrained, train, long="windows", window=20)


def test_a_folder_that_names_no_way_cuts(pretrained: Path, topics: Path, tmp_path: Path):
    finetune("classify", model=pretrained, train=topics / "train.csv", output=tmp_path / "out",
             long="cut", epochs=1, quiet=True)  # fmt: skip
    saved = json.loads((tmp_path / "out" / "config.json").read_text())["ownbert_task"]
    assert "long" not in saved["settings"]  # as all folders were before there was a choice
    predictor = open_folder(tmp_path / "out")
    predictor([Row(1, ("w1 " * 100,))])
    assert (predictor.task.settings.long, predictor.cut) == ("cut", 1)


def test_recipes_of_other_tasks_may_have_cut():
    for long in ("cut", "auto"):
        task_class("tag")(TaskSettings(name="tag", long=long))
    with pytest.raises(InputError, match=r"task\.long does not apply to tag"):
        task_class("tag")(TaskSettings(name="tag", long="windows"))


def test_pairs_are_cut(pretrained: Path, tmp_path: Path):
    rows = [
        {"premise": "w1 " * 60, "hypothesis": "w2 " * 60, "label": "ab"[i % 2]} for i in range(6)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = run_of(pretrained, tmp_path / "train.jsonl")
    assert run.recipe.task.long == "cut"
    assert max(len(e.token_ids) for e in run.splits.train_data.examples) == 48


def test_an_epoch_learns_from_a_bounded_number_of_tokens(pretrained: Path, tmp_path: Path):
    train = documents(tmp_path / "train.csv", 10_000, 30, 30)
    run = run_of(pretrained, train)
    data = run.splits.train_data
    assert len(data.examples[0].token_ids) > 10_000  # prediction takes all
    assert data.truncated == 0
    model = load(pretrained, heads=["classification"], labels=("a", "b", "c"))
    for rows in (data, WordsInUse(model, data).data):
        assert len(rows.example(0, 0).token_ids) <= 512
        assert rows.sizes[0] <= 512


def test_windows_are_drawn_anew_in_each_epoch():
    ids = np.asarray([2, 10, 3, 2, 11, 12, 3, 2, 13, 3])
    long, short = (
        Example(ids, ids * 0, label=1, parts=(3, 4, 3)),
        Example(ids[:3], ids[:3] * 0, label=0, parts=(3,)),
    )
    data = EncodedRows([long, short], windows=2, seed=5)
    assert data.sizes.tolist() == [7, 3]
    found = set()
    for epoch in range(20):
        example = data.example(epoch, 0)
        assert example.parts is not None
        assert len(example.parts) == 2
        assert len(example.token_ids) == len(example.type_ids) == sum(example.parts)
        assert example.label == 1
        assert np.array_equal(example.token_ids, data.example(epoch, 0).token_ids)
        found.add(tuple(t for t in example.token_ids.tolist() if t > 3))
        assert data.example(epoch, 1) is short
    assert found == {(10, 11, 12), (10, 13), (11, 12, 13)}


PEAK = """
import resource, sys
from ownbert import predict
predict(*sys.argv[1:3], output=sys.argv[3])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("head", "most"), [("classification", 350), ("tokens", 500)])
def test_memory_of_a_long_text(head: str, most: int, tmp_path: Path):
    """A text of 10 MB had taken a gigabyte more than a short one to be cut to a few tokens, and
    seven to have each of its five million words tagged."""
    made(tmp_path / "model", head, max_position_embeddings=64)
    peaks = []
    for text in ("a", "a b c d " * 1_250_000):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"text": text}) + "\n")
        names = (tmp_path / "model", tmp_path / "rows.jsonl", tmp_path / "out.jsonl")
        # ru_maxrss is inherited by a fork: a small process starts them.
        command = ["sh", "-c", '"$0" -c "$1" "$2" "$3" "$4"', sys.executable, PEAK]
        done = subprocess.run([*command, *map(str, names)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < most
