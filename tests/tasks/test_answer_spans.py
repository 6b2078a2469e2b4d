"""QuestionWindows, the characters of tokens, what is learnt of windows, and the best span."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.checkpoint import save
from ownbert.config.encoder import EncoderConfig
from ownbert.nn.model import Model
from ownbert.tasks.answer import (
    QuestionAnsweringTask,
    QuestionRow,
    WindowPosition,
    best_span,
    best_spans,
    characters,
    encode_contexts,
    split_context,
    token_span,
)
from ownbert.tasks.row_objectives import RDrop, SpanObjective
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import Tokenizer
from support import tokenizer_folders

FAMILIES = ("bert", "roberta", "albert", "xlm_roberta")
CONTEXT = "Où est l'e\u0301te\u0301 ? 我喜欢自然语言处理。 😀 Größe 1,234 \u200bjumps\u200b"
PIECES = ("Où", "e\u0301te\u0301", "我喜", "喜欢自", "😀", "Größe 1,234", "jumps", "est l")


def test_the_objective_is_that_of_transformers(tmp_path: Path):
    from transformers import BertForQuestionAnswering

    torch.manual_seed(0)
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdef"])
    config = EncoderConfig(
        vocab_size=11,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
    )
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


def config_for(tokenizer: Tokenizer) -> EncoderConfig:
    return EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=128,
    )


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("stride", [0, 4, 8])
def test_windows_are_those_of_transformers(family: str, stride: int, tmp_path: Path):
    from transformers import AutoTokenizer

    folder = getattr(tokenizer_folders, f"{family}_folder")(tmp_path / family)
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path / "saved")
    kind = {"model_type": family}
    (tmp_path / "saved" / "config.json").write_text(json.dumps(kind))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    builder = TextInputBuilder(tokenizer, config_for(tokenizer), 40)
    question, context = "the lazy dog", " ".join(tokenizer_folders.LINES[::3])
    found = theirs(
        question,
        context,
        max_length=40,
        truncation="only_second",
        stride=stride,
        return_overflowing_tokens=True,
    )
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
        sizes, rows = rng.integers(0, 9, 3), 0
        places = []
        for number, size in enumerate(sizes):
            places.append(
                WindowPosition(rows, rows + size + 3, rows + 2, 5 * number, int(size), rows)
            )
            rows += int(size) + 3
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
