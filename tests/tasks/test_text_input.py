"""Sequences of one text, of two, and of many windows."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import transformers

from ownbert.batches.batch import Example, pack
from ownbert.checkpoint import describe
from ownbert.config.encoder import EncoderConfig
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder, UnknownWords, join
from ownbert.text.tokenizer import Tokenizer
from support.tiny import made
from support.tokenizer_folders import FOLDERS

SHORT, LONG, OTHER = (
    "The quick brown fox",
    "over the lazy dog, and other animals " * 3,
    "words 1,234",
)


def input_builder(tokenizer: Tokenizer, max_length: int) -> TextInputBuilder:
    config = EncoderConfig(vocab_size=tokenizer.vocab_size, type_vocab_size=2)
    return TextInputBuilder(tokenizer, config, max_length)


def test_a_folder_that_names_more_tokens_than_positions_is_cut_at_these(tmp_path: Path):
    made(tmp_path / "model", "classification", max_position_embeddings=6)
    builder = ClassificationTask().input_builder(describe(tmp_path / "model"), 12)
    assert builder.max_length == 6


@pytest.mark.parametrize("name", FOLDERS)
def test_sequences_are_those_of_transformers(name: str, tmp_path: Path):
    folder = FOLDERS[name](tmp_path / name)
    tokenizer = Tokenizer.load(folder)
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folder)
    for texts in ((SHORT,), (SHORT, LONG), (LONG, SHORT), (LONG, LONG), (OTHER, SHORT)):
        for max_length in (12, 13, 30, 200):
            options = {"truncation": True, "max_length": max_length}
            truth = theirs(*texts, return_token_type_ids=True, **options)
            ours = input_builder(tokenizer, max_length)
            found, cut = ours.example(ours.ids(texts))
            assert found.token_ids.tolist() == truth["input_ids"], (texts, max_length)
            assert found.type_ids.tolist() == truth["token_type_ids"], (texts, max_length)
            assert cut == (len(theirs(*texts)["input_ids"]) > max_length), (texts, max_length)


def blank(max_length: int) -> TextInputBuilder:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    return input_builder(Tokenizer.blank([*special, *"abcdef"]), max_length)


@pytest.mark.parametrize("stride", [0, 1, 5])
def test_windows_hold_every_token_and_share_so_many(stride: int):
    for length in range(30):
        ids = list(range(100, 100 + length))
        example, cut = blank(10).windows(ids, stride=stride, most=99)
        assert example.parts is not None
        windows = np.split(example.token_ids, np.cumsum(example.parts)[:-1])
        assert not cut
        assert all(w[0] == 2 and w[-1] == 3 and len(w) <= 10 for w in windows)
        inner = [w[1:-1].tolist() for w in windows]
        assert sorted({i for w in inner for i in w}) == ids
        for one, two in pairwise(inner):
            assert one[len(one) - stride :] == two[:stride]
        assert len(inner) == 1 or all(len(w) > stride for w in inner)


def test_windows_beyond_the_most_are_cut_off():
    example, cut = blank(10).windows(list(range(20)), stride=0, most=2)
    assert cut
    assert example.parts == (10, 10)


def test_a_group_is_packed_as_sequences_that_have_one_answer():
    one = Example(np.arange(4), np.zeros(4, int))
    batch = pack([join([one, one], label=1), join([one, one, one], label=0)])
    assert batch.layout.lengths == (4,) * 5
    assert batch.groups == (2, 3)
    assert (batch.answers, batch.sequences) == (2, 5)
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0]
    assert batch.positions.tolist() == [0, 1, 2, 3] * 5


def test_identity_tells_answers_and_texts_apart():
    def encoded(label: int, token: int, parts: tuple[int, ...] | None = None) -> str:
        ids = np.asarray([2, token, 3])
        return EncodedRows([Example(ids, ids * 0, label=label, parts=parts)]).identity()

    assert encoded(0, 5) == encoded(0, 5)
    assert len({encoded(0, 5), encoded(1, 5), encoded(0, 6), encoded(0, 5, (1, 2))}) == 4


def warning_of(vocabulary: list[str], texts: list[str]) -> str:
    """The warning about unknown words; empty if there is none."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer.blank([*special, *vocabulary])
    unknown = UnknownWords(tokenizer)
    ids = [np.asarray(each) for each in tokenizer.encode_batch(texts)]
    unknown.count(ids, texts)
    return unknown.warning() or ""


def test_rare_words_of_a_vocabulary_that_fits_are_no_reason_to_warn():
    # A tenth of the tokens are names, each in one text, as often as there are.
    texts = [f"the man of the name{i} name{i} " + "is here " * 8 for i in range(50)]
    assert warning_of(["the", "man", "of", "is", "here"], texts) == ""


def test_frequent_words_that_are_unknown_are_one():
    texts = [f"the man of the name{i} " + "is here " * 8 for i in range(50)]
    found = warning_of(["man", "is", "here", *(f"name{i}" for i in range(50))], texts)
    assert found.startswith("warning: 14.3% of the tokens are [UNK], including frequent words (")
    assert "ownbert vocab" in found
    # The same text over and over is one text.
    assert warning_of(["man", "is", "here", "of", "name1"], texts[1:2] * 50) == ""


def test_texts_in_clear_do_not_fit_a_vocabulary_of_ids():
    ids = [str(i) for i in range(1000)]
    for text, said in (
        ("one text", "100.0% of the tokens are [UNK]: the model's vocabulary contains no word"),
        ("one more text 7", "75.0% of the tokens are [UNK]: the model's vocabulary does not fit"),
    ):
        assert said in warning_of(ids, [text])
    assert warning_of(ids, ["17 4 940"] * 3) == ""
