"""Words as pieces, windows, and what taggers learn."""

import json
import random
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from torchcrf import CRF

from ownbert.batches.batch import pack
from ownbert.config.encoder import EncoderConfig
from ownbert.tasks.finetune_recipe import TaskSettings
from ownbert.tasks.row_objectives import (
    CrfObjective,
    TaggingObjective,
    log_marginals,
    pad_sentences,
)
from ownbert.tasks.rows import Row
from ownbert.tasks.tag import TaggingTask
from ownbert.tasks.tag_rows import WordWindow, encode_words, split_into_windows
from ownbert.tasks.text_input import TextInputBuilder
from ownbert.text.tokenizer import Tokenizer


def _frame(tokenizer: Tokenizer, length: int) -> TextInputBuilder:

    config = EncoderConfig(vocab_size=tokenizer.vocab_size, hidden_size=128, num_attention_heads=2)
    return TextInputBuilder(tokenizer, config, length)


WORDPIECES = ("un", "##wan", "##ted", "runn", "##ing", ",", "the", "x", "我", "们")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def test_every_word_has_a_piece(tmp_path: Path):
    from transformers import AutoTokenizer

    tokenizer = Tokenizer.wordpiece([*SPECIAL, *WORDPIECES])
    words = ["Unwanted", "x,the", "\u200b\x01", "running", "我们", "q"]
    pieces = encode_words(words, _frame(tokenizer, 48))
    assert tokenizer.tokens(pieces["Unwanted"]) == ["un", "##wan", "##ted"]
    assert tokenizer.tokens(pieces["我们"]) == ["我", "们"]
    assert pieces["\u200b\x01"] == pieces["q"] == [tokenizer.unk_id]
    tokenizer.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    known = [w for w in words if w != "\u200b\x01"]
    inputs = theirs(known, is_split_into_words=True, add_special_tokens=False)
    assert [i for w in known for i in pieces[w]] == inputs["input_ids"]


def test_byte_level_words_start_with_a_blank(tmp_path: Path):
    from tokenizers import pre_tokenizers
    from transformers import RobertaTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {t: i for i, t in enumerate([*special, *letters, "Ġa", "Ġab"])}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nĠ a\nĠa b\n")
    theirs = RobertaTokenizerFast(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"), add_prefix_space=True
    )
    words = ["ab", "a,", "ba", "é"]
    inputs = theirs(words, is_split_into_words=True, add_special_tokens=False)
    plain = RobertaTokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    for number, tokenizer in enumerate((theirs, plain)):
        folder = tmp_path / str(number)
        tokenizer.save_pretrained(folder)
        pieces = encode_words(words, _frame(Tokenizer.load(folder), 48))
        assert [i for word in words for i in pieces[word]] == inputs["input_ids"]


def margin(window: WordWindow, word: int, size: int) -> int:
    """How far a word is from the nearer edge of a window; the sentence's ends are none."""
    left = size if window.start == 0 else word - window.start
    right = size if window.stop == size else window.stop - 1 - word
    return min(left, right)


@pytest.mark.parametrize("stride", [0, 3, 32])
def test_windows_answer_each_word_once_where_it_is_farthest_from_an_edge(stride: int):
    rng = random.Random(stride)
    for size in (0, 1, 7, 46, 47, 200):
        sizes = [rng.choice([1, 1, 1, 2, 5, 46]) for _ in range(size)]
        windows = split_into_windows(sizes, 46, stride)
        assert all(sum(sizes[w.start : w.stop]) <= 46 for w in windows)
        assert [i for w in windows for i in range(w.first, w.last)] == list(range(size))
        for window in windows:
            for word in range(window.first, window.last):
                others = [w for w in windows if w.start <= word < w.stop]
                assert margin(window, word, size) == max(margin(w, word, size) for w in others)


def test_neighbouring_windows_share_the_words_that_were_asked_for():
    windows = split_into_windows([1] * 100, 40, 10)
    assert [(w.start, w.stop) for w in windows] == [(0, 40), (30, 70), (60, 100)]
    assert [(w.first, w.last) for w in windows] == [(0, 35), (35, 65), (65, 100)]


def test_all_pieces_of_a_word_learn_its_tag():
    tokenizer = Tokenizer.wordpiece([*SPECIAL, *WORDPIECES])
    builder = _frame(tokenizer, 48)
    row = Row(1, ("unwanted", "running", "unwanted", "x"), ("B-a", "B-b", "O", "B-a"))
    labels = ("B-a", "B-b", "I-a", "O")
    for tag_all, wanted in (
        (False, [-1, 0, -1, -1, 1, -1, 3, -1, -1, 0, -1]),
        (True, [-1, 0, 2, 2, 1, 1, 3, 3, 3, 0, -1]),
    ):
        task = TaggingTask(TaskSettings(name="tag", tag_all=tag_all), labels=labels)
        learnt = pack(task.encode([row], builder, training=True).examples).tags
        assert learnt is not None
        assert learnt.tolist() == wanted
        # In use the first piece answers.
        used = pack(task.encode([Row(1, row.texts)], builder, training=False).examples).tags
        assert used is not None
        assert (used >= 0).tolist() == [place in (1, 4, 6, 9) for place in range(11)]


def test_marginals_and_loss_are_those_of_all_paths():
    torch.manual_seed(0)
    crf = CRF(3, batch_first=True)
    lengths = [4, 1, 3]
    emissions = torch.randn(sum(lengths), 3)
    padded, mask = pad_sentences(emissions, lengths)
    marginals = log_marginals(crf, padded, mask).exp()
    start, between, end = (
        p.detach() for p in (crf.start_transitions, crf.transitions, crf.end_transitions)
    )
    for row, (length, own) in enumerate(zip(lengths, emissions.split(lengths), strict=True)):
        expected = torch.zeros(length, 3)
        total = 0.0
        for path in product(range(3), repeat=length):
            score = start[path[0]] + end[path[-1]] + sum(own[i, t] for i, t in enumerate(path))
            score += sum(between[a, b] for a, b in pairwise(path))
            total += float(score.exp())
            for i, t in enumerate(path):
                expected[i, t] += score.exp()
        assert torch.allclose(marginals[row, :length], expected / total, atol=1e-5)


def test_losses_count_words_and_divide_by_sentence():
    torch.manual_seed(0)
    labels = ("B-x", "I-x", "O")
    tokenizer = Tokenizer.blank([*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "a", "b"])
    task = TaggingTask(labels=labels)
    rows = [Row(1, ("a", "b", "a"), ("B-x", "I-x", "O")), Row(2, ("b",), ("O",))]
    builder = _frame(tokenizer, 48)
    batch = pack(task.encode(rows, builder, training=True).examples)
    logits = torch.randn(batch.tokens, 3)
    words = logits[[1, 2, 3, 6]]
    plain = TaggingObjective()(logits, batch)
    expected = torch.nn.functional.cross_entropy(words, torch.tensor([0, 1, 2, 2]), reduction="sum")
    assert float(plain.total) == pytest.approx(float(expected), abs=1e-5)
    assert plain.count == 4
    crf = CRF(3, batch_first=True)
    loss = CrfObjective(crf=crf)(logits, batch)
    one = crf(words[None, :3], torch.tensor([[0, 1, 2]])) + crf(
        words[None, 3:], torch.tensor([[2]])
    )
    assert float(loss.total.detach()) == pytest.approx(-float(one.detach()), abs=1e-5)
    assert loss.count == CrfObjective(crf=crf).count(batch) == 4
