"""Which old tokens a new one starts from: by role, by name, as pieces, by rank; lists of counts."""

import gzip
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ownbert import InputError
from ownbert.pretraining.vocabulary_alignment import (
    TokenMatch,
    match_vocabulary,
    read_counts,
)
from ownbert.text.tokenizer import Tokenizer
from support.tiny import SPECIAL

OLD = [
    *("[UNK]", "the", "[PAD]", "of", "cat", "[MASK]", "[CLS]", "run", "[SEP]", "##s", "##ing"),
    *("s", ".", "2005", "20", "##05", "ca", "##t", "dog"),
]
OLD_TOKENIZER = Tokenizer.wordpiece(OLD)


def matched(found: TokenMatch, tokenizer: Tokenizer, old: Tokenizer) -> dict[str, tuple]:
    """Ordinary token -> how it was found, and the old tokens."""
    rows = zip(tokenizer.vocabulary(), found.kinds, found.ids, strict=True)
    return {t: (way, *old.tokens(ids)) for t, way, ids in rows if way != "special"}


def match_tokens(tokens: Sequence[str], ranking=None, counts=None, old=OLD_TOKENIZER):
    tokenizer = Tokenizer.blank([*SPECIAL, *tokens])
    counts = torch.tensor([0] * 5 + list(counts or range(len(tokens), 0, -1))).numpy()
    return matched(match_vocabulary(tokenizer, old, counts, ranking), tokenizer, old)


def test_words_are_found_by_name_and_as_pieces():
    assert match_tokens(["the", "Cats", "running", "zebra", "s", "cat.", "[PAD]s"]) == {
        "the": ("name", "the"),
        "Cats": ("pieces", "cat", "##s"),  # the old tokenizer writes it in lower case
        "running": ("new",),
        "zebra": ("new",),
        "s": ("name", "s"),
        "cat.": ("pieces", "cat", "."),
        "[PAD]s": ("new",),
    }


def test_pieces_inside_words_are_not_words():
    tokenizer = Tokenizer.wordpiece([*SPECIAL, "##s", "s", "##the", "##sing", "##sx", "runs"])
    found = match_vocabulary(tokenizer, OLD_TOKENIZER, torch.ones(11).numpy())
    assert matched(found, tokenizer, OLD_TOKENIZER) == {
        "##s": ("name", "##s"),
        "s": ("name", "s"),
        "##the": ("new",),
        "##sing": ("pieces", "##s", "##ing"),
        "##sx": ("new",),
        "runs": ("pieces", "run", "##s"),
    }
    blank = Tokenizer.blank([*SPECIAL, "s", "the"])
    found = match_vocabulary(tokenizer, blank, torch.ones(11).numpy())
    assert matched(found, tokenizer, blank)["##s"] == ("new",)
    assert matched(found, tokenizer, blank)["s"] == ("name", "s")


def test_special_tokens_are_found_by_what_they_are_for():
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    other = dict(zip(names, ("<0>", "<1>", "<2>", "<3>", "[PAD]"), strict=True))
    backend = Tokenizer.blank(["[PAD]", "the", "<3>", *SPECIAL[1:], "<2>", "<1>", "<0>"]).backend
    tokenizer = Tokenizer(backend, special=other)
    found = match_vocabulary(tokenizer, OLD_TOKENIZER, torch.ones(tokenizer.vocab_size).numpy())
    for ours, theirs in zip(other.values(), SPECIAL, strict=True):
        assert found.kinds[tokenizer.id_of(ours)] == "special"
        assert found.ids[tokenizer.id_of(ours)] == (OLD.index(theirs),)


def test_numbers_are_matched_by_rank_and_not_as_years():
    ranking = {"cat": 5, "the": 90, "cats": 20, "[UNK]": 1000, "zzz": 40, "of": 50, "dog": 1}
    # In the order of the counts: 7, 2005, 20, 8, 9; the word zzz, third, cannot be written.
    found = match_tokens(["2005", "20", "7", "8", "9", "10"], ranking, [8, 7, 9, 6, 5, 0])
    assert found == {
        "7": ("rank", "the"),
        "2005": ("rank", "of"),
        "20": ("new",),
        "8": ("rank", "cat", "##s"),
        "9": ("rank", "cat"),
        "10": ("new",),  # is not in the corpus: it has no rank
    }


def test_what_is_not_a_number_beside_numbers_keeps_its_name():
    found = match_tokens([".", "7", "8", "the"], {".": 9, "the": 8, "of": 7, "cat": 6})
    assert found == {
        ".": ("name", "."),
        "7": ("rank", "of"),
        "8": ("rank", "cat"),
        "the": ("name", "the"),
    }


def test_with_counts_codes_are_matched_by_rank_too():
    assert match_tokens(["the", "qx"], {"of": 2, "cat": 1}) == {
        "the": ("rank", "of"),
        "qx": ("rank", "cat"),
    }


def test_numbers_are_names_among_numbers_only():
    assert match_tokens(["2005", "20", "7"]) == dict.fromkeys(("2005", "20", "7"), ("new",))
    numbers = Tokenizer.blank([*SPECIAL, "7", "20"])
    assert match_tokens(["2005", "20", "7"], old=numbers) == {
        "2005": ("new",),
        "20": ("name", "20"),
        "7": ("name", "7"),
    }


@pytest.mark.parametrize("pack_it", [False, True])
def test_counts_are_read(tmp_path: Path, pack_it: bool):
    content = b"the\t90\nof 50\n\nthe 3\n. \t7\r\n"
    path = tmp_path / "counts.txt"
    path.write_bytes(gzip.compress(content) if pack_it else content)
    assert read_counts(path) == {"the": 93, "of": 50, ".": 7}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("the 1\nof\n", r"line 2: 'of' is not a token and a count"),
        (f"the {'9' * 400}\n", r"not a token and a count.* integer of at most 18 digits"),
        ("the 1\nof 2 3\n", "line 2"),
        ("the -1\n", "line 1"),
        ("the\t1.5\n", "line 1"),
        ("word\tcount\n", "line 1"),
        ("\t5\n", "line 1"),
        ("\n", "contains no counts"),
    ],
)
def test_damaged_counts_are_named(tmp_path: Path, content: str, message: str):
    path = tmp_path / "counts.txt"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as error:
        read_counts(path)
    assert str(path) in str(error.value)
