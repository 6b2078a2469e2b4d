"""Answering questions: learning, thresholds, long contexts, and rows that cannot be learnt."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ownbert import InputError, evaluate, finetune, predict
from ownbert.checkpoint import load, load_tokenizer
from ownbert.inference.open_folder import open_folder
from ownbert.tasks.answer import QuestionAnsweringTask, QuestionRow
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.row_network import forward_rows
from ownbert.tasks.text_input import TextInputBuilder


def made(rng: random.Random, *, empty: float = 0.0, words: int = 6) -> dict[str, Any]:
    """The answer is the word after red0; without red0 there is none."""
    text = [f"w{rng.randint(0, 30)}" for _ in range(words)]
    answer: dict[str, Any] = {"text": [], "answer_start": []}
    if rng.random() >= empty:
        place = rng.randrange(words - 1)
        text[place] = "red0"
        start = len(" ".join(text[: place + 1])) + 1
        answer = {"text": [text[place + 1]], "answer_start": [start]}
    return {
        "id": str(rng.random()),
        "question": "red0",
        "context": " ".join(text),
        "answers": answer,
    }


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("questions"), random.Random(3)
    written(folder / "train.jsonl", [made(rng, empty=0.3) for _ in range(280)])
    written(folder / "dev.jsonl", [made(rng, empty=0.3) for _ in range(60)])
    return folder


@pytest.fixture(scope="module")
def reader(pretrained: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader") / "reader"
    options = {part: files / f"{part}.jsonl" for part in ("train", "dev")}
    options |= {"epochs": 5, "learning_rate": 2e-3, "quiet": True}
    finetune("answer", model=pretrained, output=folder, **options)
    return folder


def test_it_learns_and_says_where_there_is_no_answer(reader: Path, files: Path, tmp_path: Path):
    scores = evaluate(reader, files / "dev.jsonl")
    assert scores.exact_match > 0.9
    assert scores.has_answer_f1 > 0.9
    assert scores.no_answer_accuracy > 0.8
    predict(reader, files / "dev.jsonl", tmp_path / "p.jsonl")
    rows = [json.loads(line) for line in (files / "dev.jsonl").read_text().splitlines()]
    for row, line in zip(rows, (tmp_path / "p.jsonl").read_text().splitlines(), strict=True):
        said = json.loads(line)
        assert said["id"] == row["id"]
        assert 0 <= said["score"] <= 1
        if said["answer"]:
            assert row["context"][said["start"] : said["end"]] == said["answer"]
        else:
            assert said["start"] is said["end"] is None
    kept = json.loads((reader / "config.json").read_text())["ownbert_task"]
    limit = kept["threshold"]
    said = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert all((s["no_answer_score"] > limit) == (s["answer"] == "") for s in said)


def test_a_question_gets_the_same_answer_in_any_company(reader: Path, files: Path):
    predictor = open_folder(reader)
    rows = predictor.task.read(files / "dev.jsonl")
    together = predictor(rows)
    for row, found in zip(rows[:20], together, strict=False):
        (alone,) = predictor([row])
        assert (alone.text, alone.start) == (found.text, found.start)
        assert alone.score == pytest.approx(found.score, abs=1e-5)


def test_transformers_gives_the_same_logits(reader: Path, files: Path):
    from transformers import AutoModelForQuestionAnswering

    theirs = AutoModelForQuestionAnswering.from_pretrained(reader).eval()
    predictor = open_folder(reader)
    rows = predictor.task.read(files / "dev.jsonl")[:4]
    data = predictor.task.encode(rows, predictor.builder, training=False)
    model, examples = predictor.models[0], data.examples
    raws = forward_rows(PackedNetwork(model), predictor.task, examples)
    for example, raw in zip(data.examples, raws, strict=True):
        with torch.no_grad():
            found = theirs(
                input_ids=torch.from_numpy(example.token_ids.astype(np.int64))[None],
                token_type_ids=torch.from_numpy(example.type_ids.astype(np.int64))[None],
            )
        both = torch.stack([found.start_logits[0], found.end_logits[0]], -1).numpy()
        assert np.abs(both - raw).max() < 1e-5


def test_a_long_context_is_read_in_windows_and_the_rest_is_cut(
    reader: Path, tmp_path: Path, pretrained: Path
):
    rng = random.Random(5)
    words = [f"w{rng.randint(0, 30)}" for _ in range(70_000)]
    context = " ".join(words)
    assert len(context) > 200_000
    short = "w1 w2 red0 w7 w3 w4"
    rows = [
        {"question": "red0", "context": context},
        {"question": "red0 " * 90, "context": ""},
        {"question": "red0", "context": short},
    ]
    said: list[str] = []
    path = written(tmp_path / "long.jsonl", rows)
    predict(reader, path, tmp_path / "p.jsonl", precision="float32", say=said.append)
    assert "2 of 3 questions" in said[0]
    found, empty, sure = map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines())
    assert sure["answer"] == "w7"
    assert (empty["answer"], empty["no_answer_score"]) == ("", None)
    if found["answer"]:
        assert context[found["start"] : found["end"]] == found["answer"]
    task = QuestionAnsweringTask(TaskSettings(name="answer", max_windows=5))
    tokenizer = load_tokenizer(pretrained)
    builder = TextInputBuilder(tokenizer, load(pretrained).config, 48)
    data = task.encode([QuestionRow(1, ("red0", context))], builder, training=False)
    assert (data.truncated, len(data.examples[0].parts or ())) == (1, 5)


def test_a_model_that_saw_no_empty_answer_always_answers(pretrained: Path, tmp_path: Path):
    rng = random.Random(9)
    train = written(tmp_path / "train.jsonl", [made(rng) for _ in range(32)])
    dev = written(tmp_path / "dev.jsonl", [made(rng, empty=0.5) for _ in range(20)])
    options = {"model": pretrained, "train": train, "dev": dev, "epochs": 1, "quiet": True}
    finetune("answer", output=tmp_path / "out", **options)
    predict(tmp_path / "out", dev, tmp_path / "p.jsonl")
    said = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert all(row["answer"] for row in said)
    assert evaluate(tmp_path / "out", dev).no_answer_accuracy == 0
    finetune("answer", output=tmp_path / "never", threshold=-1000.0, **options)
    assert evaluate(tmp_path / "never", dev).no_answer_accuracy == 1


def test_questions_without_their_answer_are_left_out_and_named(
    pretrained: Path, files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    rows = [json.loads(line) for line in (files / "train.jsonl").read_text().splitlines()[:30]]
    rows[3]["answers"] = "elsewhere"
    train = written(tmp_path / "train.jsonl", rows)
    options: dict[str, Any] = {"model": pretrained, "epochs": 1, "quiet": False}
    finetune("answer", output=tmp_path / "out", train=train, dev=train, **options)
    out = capfd.readouterr().out
    assert "1 of 30 training questions have an answer that does not occur" in out
    assert "train.jsonl, line 4" in out
    bad = written(tmp_path / "bad.jsonl", [{**rows[0], "answers": "elsewhere"}])
    with pytest.raises(InputError, match=r"bad.jsonl, line 1: no row has an answer that occurs"):
        finetune("answer", output=tmp_path / "none", train=bad, **options)
    assert not (tmp_path / "none").exists()
