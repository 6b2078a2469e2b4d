"""Arbitrary Unicode through our tokenizers and those of Transformers 4.57.6, side by side."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import ownbert.hf as ours_module
from ownbert.exceptions import InputError
from support.tokenizer_folders import FOLDERS, SNIPPETS

transformers = pytest.importorskip("transformers")
pytest.importorskip("sentencepiece")
transformers.logging.set_verbosity_error()

TEXT = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=8)), max_size=6).map("".join)
WORDS = st.lists(st.one_of(st.sampled_from(SNIPPETS), st.text(max_size=5)), max_size=5)
QUIET = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
RETURNS = {
    "return_offsets_mapping": True,
    "return_special_tokens_mask": True,
    "return_length": True,
    "return_overflowing_tokens": True,
    "return_token_type_ids": True,
}


@pytest.fixture(scope="module", params=FOLDERS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A family's tokenizer of theirs and of ours, from the same released files."""
    name = request.param
    folder = FOLDERS[name](tmp_path_factory.mktemp(name))
    options = {"add_prefix_space": True} if name == "Roberta" else {}
    theirs = getattr(transformers, f"{name}TokenizerFast").from_pretrained(folder, **options)
    ours = getattr(ours_module, f"{name}Tokenizer").from_pretrained(folder, **options)
    return theirs, ours


@st.composite
def call_options(draw: st.DrawFn) -> dict[str, Any]:
    options: dict[str, Any] = {"add_special_tokens": draw(st.booleans())}
    options["truncation"] = draw(
        st.sampled_from([None, False, True, "longest_first", "only_first", "only_second"])
    )
    options["padding"] = draw(st.sampled_from([False, True, "longest", "max_length", "do_not_pad"]))
    options["max_length"] = draw(st.sampled_from([None, 0, 3, 6, 8, 16, 32]))
    options["pad_to_multiple_of"] = draw(st.sampled_from([None, None, 8]))
    options["padding_side"] = draw(st.sampled_from([None, "left", "right"]))
    options["split_special_tokens"] = draw(st.booleans())
    return options


def outcome(tokenizer: Any, errors: type[BaseException], *args: Any, **options: Any) -> Any:
    """Everything that an encoding tells, or None for a refusal."""
    try:
        encoding = tokenizer(*args, **options)
    except errors:
        return None
    rows = range(len(encoding.encodings))
    details = [
        (encoding.tokens(row), encoding.word_ids(row), encoding.sequence_ids(row)) for row in rows
    ]
    return dict(encoding), details


def compare(both: tuple[Any, Any], *args: Any, **options: Any) -> Any:
    theirs, ours = both
    expected = outcome(theirs, Exception, *copy.deepcopy(args), **options)
    found = outcome(ours, InputError, *args, **options)
    assert found == expected
    return found


@QUIET
@given(text=TEXT, pair=st.one_of(st.none(), TEXT), options=call_options())
def test_one_text_or_pair(both: tuple[Any, Any], text: str, pair: str | None, options: dict):
    compare(both, text, pair, **options, **RETURNS)


@QUIET
@given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), options=call_options())
def test_batches(both: tuple[Any, Any], pairs: list[tuple[str, str]], options: dict):
    first, second = [list(column) for column in zip(*pairs, strict=True)]
    compare(both, first, **options)
    compare(both, first, second, **options, **RETURNS)
    assert (
        both[0].batch_encode_plus(pairs)["input_ids"]
        == (both[1].batch_encode_plus(pairs)["input_ids"])
    )


@QUIET
@given(words=WORDS, more=WORDS, options=call_options())
def test_words(both: tuple[Any, Any], words: list[str], more: list[str], options: dict):
    compare(both, words, is_split_into_words=True, **options, **RETURNS)
    compare(both, [words, more], is_split_into_words=True, **options, **RETURNS)


@QUIET
@given(text=TEXT, stride=st.integers(0, 6), left=st.booleans())
def test_long_texts_in_parts(both: tuple[Any, Any], text: str, stride: int, left: bool):
    for tokenizer in both:
        tokenizer.truncation_side = "left" if left else "right"
    try:
        options = {"max_length": 24, "stride": stride, **RETURNS}
        compare(both, text, truncation=True, **options)
        compare(both, "the?", text, truncation="only_second", padding="max_length", **options)
    finally:
        for tokenizer in both:
            tokenizer.truncation_side = "right"


@QUIET
@given(text=TEXT, data=st.data())
def test_tokens_and_back(both: tuple[Any, Any], text: str, data: st.DataObject):
    theirs, ours = both
    assert ours.tokenize(text) == theirs.tokenize(text)
    assert ours.encode(text) == theirs.encode(text)
    tokens = theirs.tokenize(text)
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    assert ours.convert_tokens_to_string(tokens) == theirs.convert_tokens_to_string(tokens)
    ids = data.draw(st.lists(st.integers(0, len(theirs) + 3), max_size=12)) + theirs.encode(text)
    for skip in (False, True):
        assert ours.convert_ids_to_tokens(ids, skip_special_tokens=skip) == (
            theirs.convert_ids_to_tokens(ids, skip_special_tokens=skip)
        )
        for clean in (None, False, True):
            options = {"skip_special_tokens": skip, "clean_up_tokenization_spaces": clean}
            assert ours.decode(ids, **options) == theirs.decode(ids, **options)
    assert ours.batch_decode([ids, ids[:2]]) == theirs.batch_decode([ids, ids[:2]])


@QUIET
@given(text=TEXT, pair=TEXT, data=st.data())
def test_places(both: tuple[Any, Any], text: str, pair: str, data: st.DataObject):
    theirs, ours = [tokenizer(text, pair) for tokenizer in both]
    for which, source in enumerate((text, pair)):
        for place in range(len(source)):
            for name in ("char_to_token", "char_to_word"):
                assert getattr(ours, name)(0, place, which) == (
                    getattr(theirs, name)(0, place, which)
                )
    for token in range(len(theirs["input_ids"])):
        for name in ("token_to_chars", "token_to_word", "token_to_sequence"):
            assert getattr(ours, name)(token) == getattr(theirs, name)(token)
    for word in {word for word in theirs.word_ids() if word is not None}:
        assert ours.word_to_tokens(word) == theirs.word_to_tokens(word)


@QUIET
@given(rows=st.lists(st.lists(st.integers(5, 20), max_size=9), min_size=1, max_size=4), d=st.data())
def test_padding_later(both: tuple[Any, Any], rows: list[list[int]], d: st.DataObject):
    theirs, ours = both
    options = {
        "padding": d.draw(st.sampled_from([False, True, "max_length"])),
        "max_length": d.draw(st.sampled_from([None, 4, 12])),
        "pad_to_multiple_of": d.draw(st.sampled_from([None, 4])),
        "padding_side": d.draw(st.sampled_from([None, "left"])),
        "return_attention_mask": d.draw(st.sampled_from([None, True, False])),
    }
    examples = [{"input_ids": row, "token_type_ids": [1] * len(row)} for row in rows]
    for given_rows in (examples, examples[0]):
        expected = theirs.pad(copy.deepcopy(given_rows), **options)
        assert dict(ours.pad(given_rows, **options)) == dict(expected)


@QUIET
@given(a=st.lists(st.integers(9, 20)), b=st.one_of(st.none(), st.lists(st.integers(9, 20))))
def test_ids_in(both: tuple[Any, Any], a: list[int], b: list[int] | None):
    theirs, ours = both
    for name in ("build_inputs_with_special_tokens", "create_token_type_ids_from_sequences"):
        assert getattr(ours, name)(a, b) == getattr(theirs, name)(a, b)
    for strategy in ("longest_first", "only_first", "only_second"):
        arguments = (a, b, 3, strategy, 2)
        assert ours.truncate_sequences(*arguments) == theirs.truncate_sequences(*arguments)
        options = {"truncation": strategy, "max_length": 9, "padding": "max_length"}
        assert dict(ours.prepare_for_model(a, b, **options)) == (
            dict(theirs.prepare_for_model(a, b, **options))
        )
    built = theirs.build_inputs_with_special_tokens(a, b)
    options = {"already_has_special_tokens": True}
    mask = theirs.get_special_tokens_mask(built, **options)
    assert ours.get_special_tokens_mask(built, **options) == mask
    assert ours.get_special_tokens_mask(a, b) == mask


KEPT = [
    "Lazy-Dog",
    "U.S.",
    "été",
    "the",
    "É",
    "über",
    "我",
    "ZZZ",
    "Don't",
    "…",
    "don't",
    "lazy-dog",
]


@pytest.fixture(scope="module", params=[{}, {"strip_accents": False}, {"do_lower_case": False}])
def slow_pairs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Slow BertTokenizers and ours, without and with words that are never split."""
    folder: Path = FOLDERS["Bert"](tmp_path_factory.mktemp("slow"))
    with (folder / "vocab.txt").open("a", encoding="utf-8") as stream:
        stream.write("Lazy-Dog\nU.S.\nÉ\n")
    file = str(folder / "vocab.txt")
    return [
        tuple(
            module.BertTokenizer(file, never_split=words, **request.param)
            for module in (transformers, ours_module)
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
    expected = their_keeping.tokenize(text)
    assert our_keeping.tokenize(text) == expected
    assert our_keeping.encode(text) == their_keeping.encode(text)
