"""Texts of an XLNet in every task: <cls> at the end, with a segment of its own."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from ownbert.batches.masking import ordinary_tokens
from ownbert.checkpoint import load, load_tokenizer
from ownbert.corpus.pretraining_examples import pretraining_data
from ownbert.corpus.store import prepare
from ownbert.exceptions import InputError
from ownbert.exporting.padded import PaddedModel
from ownbert.inference.embedder import Embedder
from ownbert.inference.fill_mask import Filler
from ownbert.inspect.trace.model_trace import trace_folder
from ownbert.objectives.language_modelling import PermutedSpans
from ownbert.tasks.answer import encode_contexts, split_context
from ownbert.tasks.tag_rows import WordWindow, window_example
from ownbert.tasks.text_input import TextInputBuilder
from support.floats import assert_close
from support.tokenizer_folders import LINES, xlnet_folder

pytest.importorskip("sentencepiece")
CLS, SEP, PAD, MASK = 3, 4, 5, 6
TEXTS = ["The quick brown fox jumps over the lazy dog", "words", "we <mask> tokens and <mask>"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = xlnet_folder(tmp_path_factory.mktemp("xlnet"))
    tokenizer = transformers.XLNetTokenizerFast.from_pretrained(made)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "initializer_range": 0.3}
    config = transformers.XLNetConfig(vocab_size=len(tokenizer), **sizes)
    transformers.XLNetLMHeadModel(config).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def builder(folder: Path) -> TextInputBuilder:
    return TextInputBuilder(load_tokenizer(folder), load(folder, heads=()).config, 12)


def test_one_text_two_texts_and_windows(builder: TextInputBuilder):
    one, truncated = builder.example([[20, 21]])
    assert (one.token_ids.tolist(), one.type_ids.tolist()) == ([20, 21, SEP, CLS], [0, 0, 0, 2])
    assert not truncated
    two, truncated = builder.example([[20] * 9, [21, 22]])
    assert two.token_ids.tolist() == [*[20] * 7, SEP, 21, 22, SEP, CLS]
    assert two.type_ids.tolist() == [*[0] * 8, 1, 1, 1, 2]
    assert truncated
    long, _ = builder.windows(list(range(20, 35)), stride=2, most=5)
    assert long.parts == (12, 9)
    assert long.token_ids[10:12].tolist() == long.token_ids[-2:].tolist() == [SEP, CLS]
    assert np.flatnonzero(long.type_ids == 2).tolist() == [11, 20]


def test_tags_and_answers_are_at_their_words(builder: TextInputBuilder):
    window = WordWindow(0, 2, 0, 2)
    tagged = window_example(window, [[20, 21], [22]], [1, 2], builder)
    assert tagged.tags is not None
    assert tagged.tags.tolist() == [1, -1, 2, -1, -1]
    text = "The quick brown fox"
    (context,) = encode_contexts([text], builder).values()
    split = split_context([30, 31], context, builder, stride=2, most=9)
    for (ids, types), place in zip(split.pieces, split.positions, strict=True):
        first = place.first - place.start
        inside = context.ids[place.begin : place.begin + place.size]
        assert ids[first : first + place.size].tolist() == inside.tolist()
        assert ids[place.cls - place.start] == CLS
        assert set(types[first : first + place.size].tolist()) == {1}
    far = len(context.ids) - 1
    *others, last = split.examples((far, far))
    assert last.tags is not None
    assert last.tags[split.positions[-1].first - split.positions[-1].start :].any()
    for example in others:
        assert example.tags is not None
        assert np.flatnonzero(example.tags).tolist() == [len(example.tags) - 1]


def test_vectors_are_those_of_transformers(folder: Path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.XLNetModel.from_pretrained(folder).eval()
    given = tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert given["input_ids"][1, 0] == PAD
    assert given["token_type_ids"][1, 0] == 3
    with torch.no_grad():
        hidden = model(**given).last_hidden_state
    mask = given["attention_mask"][..., None]
    expected = (hidden * mask).sum(1) / mask.sum(1)
    found = torch.from_numpy(Embedder(folder).encode(TEXTS))
    assert_close(found, expected)


def test_masks_are_filled_by_the_query_stream(folder: Path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    found = list(Filler(folder, top=3)([TEXTS[2], "a <mask>"]))
    for text, filled in zip([TEXTS[2], "a <mask>"], found, strict=True):
        given = tokenizer(text, return_tensors="pt")
        (at,) = np.nonzero(given["input_ids"][0].numpy() == MASK)
        length = given["input_ids"].shape[1]
        hidden = torch.zeros(1, length, length)
        hidden[:, :, at] = 1
        targets = torch.eye(length)[at][None]
        with torch.no_grad():
            logits = model(**given, perm_mask=hidden, target_mapping=targets).logits[0]
        best = logits.softmax(-1).topk(3)
        for mask, ids, values in zip(filled.masks, best.indices, best.values, strict=True):
            tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
            assert [c.token for c in mask.candidates] == tokens
            shares = torch.tensor([c.probability for c in mask.candidates])
            assert_close(shares, values)


def test_pretraining_has_the_same_format(folder: Path, tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n".join(LINES), encoding="utf-8")
    tokenizer = load_tokenizer(folder)
    store = prepare([tmp_path / "a.txt"], tmp_path / "s", tokenizer=tokenizer)
    ordinary = ordinary_tokens(tokenizer.vocab_size, tokenizer.special_ids)
    data, _ = pretraining_data(
        store,
        tokenizer,
        PermutedSpans(ordinary),
        max_length=24,
        pairs=None,
        held_out=0.1,
        seed=0,
    )
    for index in range(len(data)):
        example = data.example(0, index)
        assert example.token_ids[-2:].tolist() == [SEP, CLS]
        assert example.type_ids.tolist() == [0] * (len(example.type_ids) - 1) + [2]
        assert example.masked_positions is not None
        assert example.order is not None
        assert sorted(example.order) == list(range(len(example.masked_positions)))
        again = data.example(0, index)
        assert (again.masked_positions == example.masked_positions).all()
        assert (again.order == example.order).all()


def test_what_an_xlnet_cannot_do(folder: Path):
    with pytest.raises(InputError, match="an xlnet model cannot be exported"):
        PaddedModel(load(folder))
    with pytest.raises(InputError, match="a trace has no steps for the distances and segments"):
        trace_folder(folder, "a text")
