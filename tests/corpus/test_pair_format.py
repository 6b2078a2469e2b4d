"""Pretraining and fine-tuning put the same special tokens around texts, for every tokenizer."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ownbert import InputError, pretrain
from ownbert.corpus.learn_vocabulary import learn_tokenizer
from ownbert.corpus.pretraining_examples import PretrainingData
from ownbert.corpus.store import Store, prepare
from ownbert.text.styles import InputFormat
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.state import SavedState, newest_state, require_same_identity
from support.small_corpus import CLS, SEP, data_of, make_corpus

FORMATS = {
    "bert": InputFormat(CLS, SEP),
    "roberta": InputFormat(CLS, SEP, double_sep=True),
    "t5": InputFormat(None, SEP),
    "xlnet": InputFormat(CLS, SEP, cls_last=True),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, Tokenizer]:
    return make_corpus(tmp_path_factory.mktemp("format"))


@pytest.mark.parametrize("pairs", [None, "nsp", "sop"])
@pytest.mark.parametrize("name", FORMATS)
def test_examples_look_like_the_inputs_of_fine_tuning(
    corpus: tuple[Store, Tokenizer], name: str, pairs: str | None
):
    around = FORMATS[name]
    data = replace(data_of(*corpus, pairs=pairs, max_length=32)[0], format=around)
    longest = 0
    for index in range(len(data)):
        ids, types = _unmasked(data, index)
        texts = [part for part in _split(ids) if part]
        if pairs is None:
            assert len(texts) == 1
            expected = around.one(texts[0]), around.types(len(ids))
        else:
            expected = around.pair(texts[0], texts[1])
        assert (ids, types) == expected
        assert len(ids) <= data.sizes[index] <= 32 or pairs == "nsp"
        longest = max(longest, len(ids))
    assert longest > 30


def _unmasked(data: PretrainingData, index: int) -> tuple[list[int], list[int]]:
    example = data.example(0, index)
    ids = example.token_ids.copy()
    ids[example.masked_positions] = example.masked_ids
    return ids.tolist(), example.type_ids.tolist()


def _split(ids: list[int]) -> list[list[int]]:
    """The texts between special tokens."""
    array = np.asarray(ids)
    marks = np.flatnonzero((array == CLS) | (array == SEP))
    return [part[part > SEP].tolist() for part in np.split(array, marks)]


def _state(run: Path) -> SavedState:
    newest = newest_state(run)
    assert newest is not None
    return SavedState.read(newest)


def test_a_run_of_an_earlier_version_with_other_pairs_is_not_continued(
    topics: Path, pretrained: Path, tmp_path: Path
):
    texts = (topics / "corpus.txt").read_text().splitlines()
    tokenizer = learn_tokenizer(lambda: iter(texts), kind="bpe", vocab_size=280)
    prepare([topics / "corpus.txt"], tmp_path / "store", tokenizer=tokenizer)
    run = tmp_path / "run"
    pretrain(tmp_path / "store", run, objectives="mlm,nsp", max_steps=1, max_length=16, quiet=True)
    now = _state(run).metadata["identity"]
    assert now.pop("special tokens around texts") == "{1: 2, 2: 4}"
    of_bert = _state(pretrained).metadata["identity"]
    assert now.keys() == of_bert.keys()  # those of earlier versions are continued
    with pytest.raises(InputError, match="an earlier version of ownbert began it with other"):
        require_same_identity(run, now, _state(run).metadata["identity"])
