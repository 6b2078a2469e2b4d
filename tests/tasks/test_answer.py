"""Answering questions: learning, thresholds, windows of long contexts, spans, and measures."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ownbert import InputError, evaluate, finetune, predict
from ownbert.batches.batch import Batch, Example, pack
from ownbert.checkpoint import load, load_tokenizer, save
from ownbert.config.encoder import EncoderConfig
from ownbert.inference.open_folder import open_folder
from ownbert.nn.model import Model
from ownbert.tasks.answer import (
    QuestionAnsweringTask,
    QuestionRow,
    WindowPosition,
    best_span,
    best_spans,
    best_threshold,
    characters,
    compare,
    encode_contexts,
    score_answers,
    split_context,
    token_span,
)
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.packed_network import PackedNetwork
from ownbert.tasks.row_network import forward_rows
from ownbert.tasks.row_objectives import RDrop, SpanObjective
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import Tokenizer
from support import tokenizer_folders
from support.task_runs import assert_same_in_any_company, read_jsonl, tuned, write_jsonl
from support.tiny import CONFIG


def made(rng: random.Random, *, empty: float = 0.0, words: int = 6) -> dict[str, Any]:
    """The answer is the word after red0; without red0 there is none."""
    text = [f"w{rng.randint(0, 30)}" for _ in range(words)]
    answer: dict[str, Any] = {"text": [], "answer_start": []}
    if rng.random() >= empty:
        place = rng.randrange(words - 1)
        text[place] = "red0"
        start = len(" ".join(text[: place + 1])) + 1
        answer = {"text": [text[place + 1]], "answer_start": [start]}
    row = {"id": str(rng.random()), "question": "red0", "context": " ".join(text)}
    return {**row, "answers": answer}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("questions"), random.Random(3)
    write_jsonl(folder / "train.jsonl", [made(rng, empty=0.3) for _ in range(280)])
    write_jsonl(folder / "dev.jsonl", [made(rng, empty=0.3) for _ in range(60)])
    return folder


@pytest.fixture(scope="module")
def reader(pretrained: Path, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader") / "reader"
    tuned("answer", files, pretrained, folder, epochs=5, learning_rate=2e-3)
    return folder


def test_it_learns_and_says_where_there_is_no_answer(reader: Path, files: Path, tmp_path: Path):
    scores = evaluate(reader, files / "dev.jsonl")
    assert scores.exact_match > 0.9
    assert scores.has_answer_f1 > 0.9
    assert scores.no_answer_accuracy > 0.8
    predict(reader, files / "dev.jsonl", tmp_path / "p.jsonl")
    found = read_jsonl(tmp_path / "p.jsonl")
    for row, said in zip(read_jsonl(files / "dev.jsonl"), found, strict=True):
        assert said["id"] == row["id"]
        assert 0 <= said["score"] <= 1
        if said["answer"]:
            assert row["context"][said["start"] : said["end"]] == said["answer"]
        else:
            assert said["start"] is said["end"] is None
    limit = json.loads((reader / "config.json").read_text())["ownbert_task"]["threshold"]
    assert all((row["no_answer_score"] > limit) == (row["answer"] == "") for row in found)


def test_a_question_gets_the_same_answer_in_any_company(reader: Path, files: Path):
    assert_same_in_any_company(reader, files / "dev.jsonl")


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
    path = write_jsonl(tmp_path / "long.jsonl", rows)
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
    train = write_jsonl(tmp_path / "train.jsonl", [made(rng) for _ in range(32)])
    dev = write_jsonl(tmp_path / "dev.jsonl", [made(rng, empty=0.5) for _ in range(20)])
    options = {"model": pretrained, "train": train, "dev": dev, "epochs": 1, "quiet": True}
    finetune("answer", output=tmp_path / "out", **options)
    predict(tmp_path / "out", dev, tmp_path / "p.jsonl")
    assert all(row["answer"] for row in read_jsonl(tmp_path / "p.jsonl"))
    assert evaluate(tmp_path / "out", dev).no_answer_accuracy == 0
    finetune("answer", output=tmp_path / "never", threshold=-1000.0, **options)
    assert evaluate(tmp_path / "never", dev).no_answer_accuracy == 1


def test_questions_without_their_answer_are_left_out_and_named(
    pretrained: Path, files: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    rows = read_jsonl(files / "train.jsonl")[:30]
    rows[3]["answers"] = "elsewhere"
    train = write_jsonl(tmp_path / "train.jsonl", rows)
    options: dict[str, Any] = {"model": pretrained, "epochs": 1, "quiet": False}
    finetune("answer", output=tmp_path / "out", train=train, dev=train, **options)
    out = capfd.readouterr().out
    assert "1 of 30 training questions have an answer that does not occur" in out
    assert "train.jsonl, line 4" in out
    bad = write_jsonl(tmp_path / "bad.jsonl", [{**rows[0], "answers": "elsewhere"}])
    with pytest.raises(InputError, match=r"bad.jsonl, line 1: no row has an answer that occurs"):
        finetune("answer", output=tmp_path / "none", train=bad, **options)
    assert not (tmp_path / "none").exists()


# QuestionWindows, the characters of tokens, what is learnt of windows, and the best span.


FAMILIES = ("bert", "roberta", "albert", "xlm_roberta")
CONTEXT = "Où est l'e\u0301te\u0301 ? 我喜欢自然语言处理。 😀 Größe 1,234 \u200bjumps\u200b"
PIECES = ("Où", "e\u0301te\u0301", "我喜", "喜欢自", "😀", "Größe 1,234", "jumps", "est l")


def config_for(tokenizer: Tokenizer, longest: int = 128) -> EncoderConfig:
    return replace(CONFIG, vocab_size=tokenizer.vocab_size, max_position_embeddings=longest)


def test_the_objective_is_that_of_transformers(tmp_path: Path):
    from transformers import BertForQuestionAnswering

    torch.manual_seed(0)
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"])
    config = config_for(tokenizer, 12)
    model = Model(config, ["span"]).eval()
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    save(model, tmp_path, tokenizer=tokenizer)
    builder, task = TextInputBuilder(tokenizer, config, 10), QuestionAnsweringTask()
    rows = [
        QuestionRow(1, ("a b", "c d e f a c f d"), (("a c", 8),)),
        QuestionRow(2, ("f", "b a"), ()),
    ]
    theirs = BertForQuestionAnswering.from_pretrained(tmp_path).eval()
    total, count = 0.0, 0
    examples = task.encode(rows, builder, training=True).examples
    for example in examples:
        assert example.tags is not None
        found = theirs(
            input_ids=torch.from_numpy(example.token_ids.astype(np.int64))[None],
            token_type_ids=torch.from_numpy(example.type_ids.astype(np.int64))[None],
            start_positions=torch.from_numpy(np.flatnonzero(example.tags & 1)),
            end_positions=torch.from_numpy(np.flatnonzero(example.tags & 2)),
        )
        total, count = total + found.loss.item(), count + 1
    assert count == 3
    batch = pack(examples)
    loss = SpanObjective()(model(batch, ["span"]).logits["span"], batch)
    assert (loss.count, SpanObjective().count(batch)) == (count, count)
    assert loss.total.item() == pytest.approx(total, abs=1e-4)
    # The same rows as they are used: a group of windows each, and so the same loss.
    used = pack(task.encode(rows, builder, training=False).examples)
    assert used.answers == 2
    again = SpanObjective()(model(used, ["span"]).logits["span"], used)
    assert again.total.item() == pytest.approx(total, abs=1e-4)


def random_batch(*lengths: int) -> tuple[torch.Tensor, Batch]:
    tags = [np.r_[3, np.zeros(n - 1, np.int64)] for n in lengths]
    zeros = [np.zeros(n, np.int64) for n in lengths]
    batch = pack([Example(z, z, tags=t) for z, t in zip(zeros, tags, strict=True)])
    return torch.randn(sum(lengths), 2, requires_grad=True), batch


def test_right_spans_are_counted_and_the_distance_is_a_divergence():
    torch.manual_seed(1)
    logits, batch = random_batch(4, 7)
    sure = torch.zeros(11, 2)
    sure[0] = sure[4] = 9
    assert SpanObjective()(sure, batch).correct == 2
    sure[5, 1] = 10
    assert SpanObjective()(sure, batch).correct == 1
    other = torch.randn(11, 2)
    wanted = 0.0
    for rows in (slice(0, 4), slice(4, 11)):
        p, q = logits[rows].softmax(0), other[rows].softmax(0)
        wanted += (((p / q).log() * p).sum() + ((q / p).log() * q).sum()).item() / 4
    found = SpanObjective().distance(logits, other, batch)
    assert found.item() == pytest.approx(wanted, rel=1e-4)
    twice, doubled = random_batch(4, 7, 4, 7)
    inner = SpanObjective()
    one, two = twice.chunk(2)
    apart = inner.distance(one, two, batch)
    loss = RDrop(inner, 0.5)(twice, doubled)
    assert loss.total.item() == pytest.approx((inner(twice, doubled).total + apart).item())


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_go_back_to_the_very_characters(family: str, tmp_path: Path):
    tokenizer = Tokenizer.load(getattr(tokenizer_folders, f"{family}_folder")(tmp_path / family))
    builder = TextInputBuilder(tokenizer, config_for(tokenizer), 64)
    context = encode_contexts([CONTEXT], builder)[CONTEXT]
    assert context.ids.tolist() == builder.ids([CONTEXT])[0]
    for text in PIECES:
        start = CONTEXT.index(text)
        span = token_span(context, start, start + len(text))
        assert span is not None
        left, right = characters(CONTEXT, context.offsets, *span)
        # A subword may go on beyond the piece, but not into another word.
        assert left <= start
        assert right >= start + len(text)
        assert len(CONTEXT[left:right].split()) == len(text.split())
        if family == "bert":
            assert CONTEXT[left:right] == text
    assert token_span(context, len(CONTEXT) - 1, len(CONTEXT)) is None or family != "bert"


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("stride", [0, 4, 8])
def test_windows_are_those_of_transformers(family: str, stride: int, tmp_path: Path):
    from transformers import AutoTokenizer

    folder = getattr(tokenizer_folders, f"{family}_folder")(tmp_path / family)
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": family}))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    builder = TextInputBuilder(tokenizer, config_for(tokenizer), 40)
    question, context = "the lazy dog", " ".join(tokenizer_folders.LINES[::3])
    options = {"max_length": 40, "truncation": "only_second", "stride": stride}
    found = theirs(question, context, return_overflowing_tokens=True, **options)
    known = encode_contexts([context], builder)[context]
    windows = split_context(builder.ids([question])[0], known, builder, stride=stride, most=99)
    assert [ids.tolist() for ids, _ in windows.pieces] == found["input_ids"]
    assert len(windows.pieces) > 3
    if family == "bert":
        assert [types.tolist() for _, types in windows.pieces] == found["token_type_ids"]
    for (ids, _), place in zip(windows.pieces, windows.positions, strict=True):
        own = ids[place.first - place.cls :][: place.size]
        assert own.tolist() == known.ids[place.begin :][: place.size].tolist()


def test_the_best_span_is_that_of_all_spans():
    rng = np.random.default_rng(0)
    for _ in range(200):
        places, rows = [], 0
        for number, size in enumerate(rng.integers(0, 9, 3).tolist()):
            end = rows + size + 3
            places.append(WindowPosition(rows, end, rows + 2, 5 * number, size, rows))
            rows = end
        raw = rng.normal(size=(rows, 2)).astype(np.float32)
        longest = int(rng.integers(1, 12))
        every = [
            (float(raw[p.first + i, 0] + raw[p.first + j, 1]), n, p.begin + i, p.begin + j)
            for n, p in enumerate(places)
            for i in range(p.size)
            for j in range(i, min(p.size, i + longest))
        ]
        found = best_span(raw, places, longest)
        assert (found is None) == (not every)
        if found is not None:
            assert tuple(found) == pytest.approx(max(every))
        # Windows overlap; a span in several of them counts once.
        scores = {each[2:]: each[0] for each in sorted(every)}
        expected = sorted(scores, key=lambda span: -scores[span])[:4]
        assert [span[2:] for span in best_spans(raw, places, longest, 4)] == expected


# Measures of answers, beside those of SQuAD's script as Transformers has it, and by hand.


def random_text(rng: random.Random) -> str:
    words = ["the", "A", "an", "cat", "Cat.", "sat,", "on", "U.S.", "it's", "1,000", "--", "été"]
    return " ".join(rng.choices(words, k=rng.randint(0, 5)))


def test_measures_are_those_of_squads_script():
    from transformers.data.metrics.squad_metrics import compute_exact, compute_f1

    rng = random.Random(2)
    for _ in range(500):
        golds, said = [random_text(rng) for _ in range(rng.randint(1, 3))], random_text(rng)
        kept = [gold for gold in golds if compute_f1(gold, "") == 0] or [""]
        wanted = tuple(max(f(gold, said) for gold in kept) for f in (compute_exact, compute_f1))
        assert compare(golds, said) == pytest.approx(wanted)
    assert compare([], "") == (1, 1)
    assert compare([], "cat") == (0, 0)
    scores = score_answers([["a cat"], [], []], ["the black cat", "", "x"])
    expected = {"f1": (2 / 3 + 1) / 3, "exact_match": 1 / 3, "has_answer_f1": 2 / 3}
    assert scores.values == pytest.approx({**expected, "no_answer_accuracy": 1 / 2})
    assert set(score_answers([["cat"]], ["cat"]).values) == {"f1", "exact_match"}


@pytest.mark.parametrize(
    ("gold", "said", "exact", "f1"),
    [
        ("北京大学", "北京大学。", 1, 1),
        ("北京大学", "北京", 0, 2 * 2 / 6),
        # The longest run is two long, though three characters are common in this order.
        ("北京大学", "北方大学", 0, 2 * 2 / 8),
        ("1999年", "在1999年", 0, 2 * 2 / 5),
        ("Windows XP系统", "windows xp", 0, 2 * 2 / 6),
        ("《红楼梦》", "红楼梦", 1, 1),
        ("红楼梦", "西游记", 0, 0),
        ("红楼梦", "", 0, 0),
    ],
)
def test_chinese_answers_are_compared_by_character(gold: str, said: str, exact: float, f1: float):
    assert compare([gold], said) == pytest.approx((exact, f1))
    assert compare(["别的", gold], said) == pytest.approx((exact, f1))


def test_the_threshold_is_the_best_of_all():
    from transformers.data.metrics.squad_metrics import find_best_thresh

    rng = np.random.default_rng(4)
    for _ in range(100):
        count = int(rng.integers(1, 15))
        # Positive, as SQuAD's script takes 0 for "answer nothing".
        differences = rng.integers(1, 9, count).astype(float)
        f1, has = rng.random(count).round(1), rng.random(count) < 0.5
        f1 = np.where(has, f1, 0)
        limit = best_threshold(differences, f1, has)
        found = np.where(differences > limit, ~has, f1).mean()
        every = [-1.0, *(np.unique(differences) + 0.5)]
        best = max(np.where(differences > at, ~has, f1).mean() for at in every)
        assert found == pytest.approx(best)
        if len(np.unique(differences)) == count:
            names = [str(n) for n in range(count)]
            columns = (dict(zip(names, x, strict=True)) for x in (f1, differences, has))
            theirs = find_best_thresh(dict.fromkeys(names, "text"), *columns)
            assert 100 * found == pytest.approx(theirs[0])
