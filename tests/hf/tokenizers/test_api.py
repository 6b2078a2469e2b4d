"""The tokenizers under Transformers' names: attributes, encodings, mistakes."""

import copy
import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ownbert.hf as ours_module
from ownbert.exceptions import InputError
from ownbert.hf import AutoTokenizer, BertTokenizer, DistilBertTokenizer, RobertaTokenizer
from support.tokenizer_folders import FOLDERS, SNIPPETS

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


@pytest.fixture
def bert(folders: dict[str, Path]) -> Any:
    return BertTokenizer.from_pretrained(folders["Bert"])


def test_the_sentence_of_the_manual(shared_data: Path):
    tokenizer = BertTokenizer(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    text = "I like natural language progressing!"
    ids = [101, 1045, 2066, 3019, 2653, 27673, 999, 102]
    assert tokenizer(text)["input_ids"] == tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == "[CLS] i like natural language progressing! [SEP]"
    assert (tokenizer.vocab_size, len(tokenizer), tokenizer.mask_token_id) == (30522, 30522, 103)


def test_all_reference_cases(shared_data: Path):
    files = {"en": "bert-base-uncased-vocab.txt", "zh": "bert-base-chinese-vocab.txt"}
    with gzip.open(shared_data / "reference" / "tokenizer_expected.jsonl.gz", "rt") as stream:
        cases = [json.loads(line) for line in stream]
    for name in {case["vocab"] for case in cases}:
        file = shared_data / "vocab" / files[name[-2:]]
        tokenizer = BertTokenizer(file, do_lower_case=not name.startswith("cased"))
        mine = [case for case in cases if case["vocab"] == name]
        options = {"add_special_tokens": False, "return_offsets_mapping": True}
        found = tokenizer([case["text"] for case in mine], **options)
        assert found.input_ids == [case["ids"] for case in mine]
        assert found.offset_mapping == [[tuple(o) for o in case["offsets"]] for case in mine]
        assert [found.tokens(row) for row in range(len(mine))] == [c["tokens"] for c in mine]


def test_words_of_roberta_get_a_blank_as_in_the_slow_tokenizer(folders: dict[str, Path]):
    ours = RobertaTokenizer.from_pretrained(folders["Roberta"])
    slow = transformers.RobertaTokenizer.from_pretrained(folders["Roberta"])
    words = ["the", "lazy", "fox,", "été", ""]
    expected = slow(words, is_split_into_words=True)["input_ids"]
    found = ours(words, is_split_into_words=True)
    assert found.input_ids == expected
    assert {0, 1, 2, 3, None} == set(found.word_ids())
    assert ours("the lazy").input_ids == slow("the lazy").input_ids != ours(" the lazy").input_ids


def test_words_and_pieces_of_words(bert: Any, folders: dict[str, Path]):
    from transformers.models.bert import tokenization_bert as theirs

    texts = [
        " \tHeLLo!how  \n Are yoU? [UNK]",
        "Don't Élan 我喜欢 [UNK], a\u0301",
        "",
        *SNIPPETS[:6],
    ]
    for options in (
        {},
        {"do_lower_case": False, "never_split": ["[UNK]", "Don't"]},
        {"never_split": ["HeLLo!how", "\u00c9lan"], "strip_accents": False},
        {"do_split_on_punc": False, "tokenize_chinese_chars": False},
    ):
        basic = ours_module.BasicTokenizer(**options), theirs.BasicTokenizer(**options)
        assert [basic[0].tokenize(t) for t in texts] == [basic[1].tokenize(t) for t in texts]
        assert basic[0].tokenize("Are Are?", ["Are"]) == basic[1].tokenize("Are Are?", ["Are"])
    vocabulary = {"a": 0, "##b": 1}
    text = "ab abb b " + "a" + "b" * 9
    pieces = [
        m.WordpieceTokenizer(vocabulary, "?", 5).tokenize(text) for m in (ours_module, theirs)
    ]
    assert pieces[0] == pieces[1]
    slow = transformers.BertTokenizer.from_pretrained(folders["Bert"])
    words = bert.basic_tokenizer.tokenize("The lazy foxes, 9")
    assert words == slow.basic_tokenizer.tokenize("The lazy foxes, 9")
    for word in words:
        assert bert.wordpiece_tokenizer.tokenize(word) == slow.wordpiece_tokenizer.tokenize(word)
    with pytest.raises(AttributeError, match="has no basic_tokenizer"):
        RobertaTokenizer.from_pretrained(folders["Roberta"]).basic_tokenizer  # noqa: B018


def test_tokens_and_ids_in_place_of_text(folders: dict[str, Path], bert: Any):
    slow = transformers.BertTokenizer.from_pretrained(folders["Bert"])
    tokens = bert.tokenize("the lazy dog jumps over the fox")
    ids = bert.convert_tokens_to_ids(tokens)
    options = {"max_length": 12, "truncation": True, "padding": "max_length"}
    for one, two in ((tokens, None), (ids, None), (tokens, ids)):
        assert dict(bert.encode_plus(one, two, **options)) == (
            dict(slow.encode_plus(one, two, **options))
        )
        assert bert.encode(one, two) == slow.encode(one, two)
    found = bert.encode_plus(ids, return_tensors="pt")
    assert (
        found["input_ids"].tolist() == slow.encode_plus(ids, return_tensors="pt").input_ids.tolist()
    )
    pairs = [(ids, ids[:3]), (ids[:1], ids)]
    assert bert.batch_encode_plus(pairs).input_ids == slow.batch_encode_plus(pairs).input_ids
    for padding in (True, "max_length"):
        options["padding"] = padding
        assert dict(bert.batch_encode_plus(pairs, **options)) == (
            dict(slow.batch_encode_plus(pairs, **options))
        )
    assert bert.batch_encode_plus([ids, ids[:2]]).input_ids == [
        bert.build_inputs_with_special_tokens(row) for row in (ids, ids[:2])
    ]
    with pytest.raises(InputError, match="has no words or characters"):
        bert.encode_plus(ids).word_ids()
    bert("the dog", max_length=4, truncation=True, padding="max_length")  # holds for this call only
    assert bert.encode(ids, "the lazy dog") == slow.encode(ids, "the lazy dog")


def test_the_encoding_is_a_mapping(bert: Any):
    found = bert(["the dog", "the lazy fox jumps"], padding=True, return_tensors="pt")
    assert list(found) == list(found.keys()) == ["input_ids", "token_type_ids", "attention_mask"]
    assert dict(**found).keys() == found.keys()
    assert found.input_ids is found["input_ids"]
    assert found.input_ids.dtype == torch.int64
    assert found.to("cpu") is found
    assert found.to(torch.device("meta")).attention_mask.device.type == "meta"
    assert found[0].tokens == found.tokens(0)
    assert "labels" not in found
    assert not hasattr(found, "labels")
    found["labels"] = torch.tensor([1, 0])
    assert found.labels.tolist() == [1, 0]
    for copied in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert copied.tokens(1) == found.tokens(1)
    arrays = bert("the dog", return_tensors="np", return_offsets_mapping=True)
    assert isinstance(arrays.input_ids, np.ndarray)
    assert arrays.offset_mapping.shape == (*arrays.input_ids.shape, 2)
    words = bert([["Don't", "jumps"]], is_split_into_words=True)
    spans = [tuple(words.word_to_tokens(word)) for word in (0, 1)]
    assert spans[0][1] == spans[1][0]
    assert set(words.word_ids()) == {None, 0, 1}
    assert words.word_to_chars(1) == (0, 5)
    targets = bert("the dog", text_target="the fox")
    assert targets.labels == bert("the fox").input_ids


def test_padding_as_a_collate_function(bert: Any):
    rows = [{**bert(text), "label": mark} for text, mark in (("the", 0.5), ("the lazy dog", 1.0))]
    batch = bert.pad(rows, return_tensors="pt", pad_to_multiple_of=8)
    assert batch.input_ids.shape == (2, 8)
    assert batch.label.dtype == torch.float32
    again = bert.pad({"input_ids": batch.input_ids}, padding="max_length", max_length=10)
    assert again.input_ids.shape == (2, 10)
    assert again.input_ids[0, -1] == bert.pad_token_id


def test_attributes(bert: Any, folders: dict[str, Path]):
    theirs = transformers.BertTokenizerFast.from_pretrained(folders["Bert"])
    assert [bert.num_special_tokens_to_add(pair) for pair in (False, True)] == [2, 3]
    for what in ("bos_token", "bos_token_id", "cls_token", "cls_token_id", "is_fast", "vocab"):
        assert getattr(bert, what) == getattr(theirs, what)
    for what in ("padding_side", "truncation_side", "pad_token_type_id", "do_lower_case"):
        assert getattr(bert, what) == getattr(theirs, what)
    assert bert.max_len_single_sentence == theirs.max_len_single_sentence
    assert bert.ids_to_tokens[4] == "[MASK]"
    assert bert.convert_tokens_to_ids("nowhere") == bert.unk_token_id
    assert bert.convert_ids_to_tokens(torch.tensor([2, 3])) == ["[CLS]", "[SEP]"]
    assert bert.decode(torch.tensor(2)) == "[CLS]"
    assert bert.batch_decode(torch.tensor([[2, 3]]), skip_special_tokens=True) == [""]
    assert "BertTokenizer(" in repr(bert)
    by_file = BertTokenizer.from_pretrained(folders["Bert"] / "vocab.txt")
    assert by_file.encode("the dog") == bert.encode("the dog")
    assert by_file.save_vocabulary(folders["Bert"], "copy")[0].endswith("copy-vocab.txt")
    assert bool(bert)
    assert DistilBertTokenizer.from_pretrained(folders["Bert"])("the").keys() == {
        "input_ids",
        "attention_mask",
    }
    assert ours_module.BertTokenizerFast is BertTokenizer
    assert pickle.loads(pickle.dumps(bert)).encode("the dog") == bert.encode("the dog")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t(), "needs text or text_target"),
        (lambda t: t(3), "text must be a string"),
        (lambda t: t([3]), "text must be a string"),
        (lambda t: t(["a", None]), "text must be a string"),
        (
            lambda t: t(["a", "b"], "c"),
            "2 texts need the same number of second texts, not one string",
        ),
        (lambda t: t(["a", "b"], ["c"]), "2 texts need the same number of second texts, not 1"),
        (lambda t: t("a", pad_to_max_length=True), "has no argument pad_to_max_length"),
        (lambda t: t("a", padding="long"), "padding is 'long'; True, False or one of longest"),
        (lambda t: t("a", truncation="x"), "truncation is 'x'"),
        (lambda t: t("a", padding_side="up"), "padding_side 'up' is not known; use one of"),
        (
            lambda t: t("a", max_length=-1, truncation=True),
            "max_length is -1; it must be a whole number",
        ),
        (lambda t: t("a", max_length=2.5, truncation=True), "max_length is 2.5"),
        (lambda t: t("a b", max_length=4, stride=9, truncation=True), "stride"),
        (
            lambda t: t("a b c", max_length=9, truncation=True, padding=True, pad_to_multiple_of=4),
            "max_length 9 is not a multiple of pad_to_multiple_of 4",
        ),
        (lambda t: t(["a", "a b"], return_tensors="pt"), "input_ids has rows of different lengths"),
        (lambda t: t("a", return_tensors="tf"), "return_tensors is 'tf'"),
        (lambda t: t("\ud800"), "half of a surrogate pair"),
        (lambda t: t.decode([-5]), "decode needs one list of ids"),
        (lambda t: t.decode([[1]]), "decode needs one list of ids"),
        (lambda t: t.pad([{"ids": [1]}]), "pad needs input_ids"),
        (lambda t: t.add_special_tokens({"mask": "x"}), "'mask' is not a special token"),
        (lambda t: setattr(t, "pad_token", 3), "pad_token must be a token, not 3"),
        (lambda t: BertTokenizer(), "needs its files: vocab_file"),
        (lambda t: BertTokenizer("absent.txt"), "no such file: absent.txt"),
        (lambda t: BertTokenizer.from_pretrained("no/such/folder"), "no such folder"),
        (lambda t: AutoTokenizer.from_pretrained("no/such/folder"), "no such folder"),
        (lambda t: AutoTokenizer(), "AutoTokenizer.from_pretrained"),
    ],
)
def test_mistakes_get_one_clear_line(call: Any, message: str, bert: Any):
    with pytest.raises(InputError, match=message) as caught:
        call(bert)
    assert "\n" not in str(caught.value)
