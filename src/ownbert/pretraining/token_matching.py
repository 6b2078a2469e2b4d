"""Which vectors of an old vocabulary the tokens of a new one (V) start from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ownbert.data.masking import continuing_tokens
from ownbert.errors import InputError
from ownbert.files import open_text
from ownbert.text.bert import CONTINUATION
from ownbert.text.tokenizer import Tokenizer

WAYS = ("special", "name", "pieces", "rank", "new")
# From this share of whole numbers on, the numbers of a vocabulary are taken for ids.
_MOSTLY = 0.5

Ids = Sequence[int]


@dataclass(frozen=True)
class Match:
    """ways (V): how each token was found, one of WAYS. ids (V): the old tokens whose mean it
    starts from, none if it is new. unnamed: whether there are ids whose names say nothing and no
    ranking was given."""

    ways: list[str]
    ids: list[Ids]
    unnamed: bool


def match(
    tokenizer: Tokenizer,
    old: Tokenizer,
    counts: np.ndarray,
    ranking: Mapping[str, int] | None = None,
) -> Match:
    """Find each token of ``tokenizer`` in the vocabulary of ``old``.

    Special tokens by what they are for. Others by name: the same token, or what the old
    tokenizer makes of the text (one token, or several pieces). Anonymised ones by rank: the n-th
    most frequent by ``counts`` (V) is the n-th most frequent of ``ranking``, how often old tokens
    or words were; a word there that the old vocabulary cannot write leaves its rank empty.

    Anonymised are whole numbers where most tokens of blank text are (unless those of the old
    vocabulary are, too: then they are names), and all tokens of another vocabulary for which
    there is a ranking.
    """
    size = tokenizer.vocab_size
    ways = ["new"] * size
    ids: list[Ids] = [()] * size
    for ours, theirs in zip(tokenizer.special_ids, old.special_ids, strict=True):
        ways[ours], ids[ours] = "special", (theirs,)
    ordinary = [index for index in range(size) if ways[index] == "new"]
    hidden = _anonymous(tokenizer, old, ordinary, ranked=ranking is not None)
    named = [index for index in ordinary if index not in hidden]
    for index, found in _by_name(tokenizer, old, named).items():
        ways[index] = "name" if len(found) == 1 else "pieces"
        ids[index] = found
    if ranking is not None:
        taken = {tuple(ids[index]) for index in named}
        ranks = [found for found in _ranked(old, ranking) if not found or found not in taken]
        seen = sorted((i for i in hidden if counts[i] > 0), key=lambda i: (-counts[i], i))
        for index, found in zip(seen, ranks, strict=False):
            if found:
                ways[index], ids[index] = "rank", found
    return Match(ways, ids, bool(hidden) and ranking is None)


def read_counts(path: str | Path) -> dict[str, int]:
    """How often each token was: a line for each, token and count, a tab or blanks between them.

    Plain or gzip. Tokens that stand there twice are added up. Raises ``InputError`` that names
    the line.
    """
    counts: dict[str, int] = {}
    for number, line in open_text(path):
        if not line.strip():
            continue
        parts = line.split("\t") if "\t" in line else line.split()
        token, count = parts[0].strip(), parts[-1].strip()
        if len(parts) != 2 or not token or not (count.isascii() and count.isdecimal()):
            raise InputError(
                f"{path}, line {number}: {line[:60]!r} is not a token and a count; write them as "
                "token, tab, whole number"
            )
        counts[token] = counts.get(token, 0) + int(count)
    if not counts:
        raise InputError(f"{path} holds no counts; each line must have a token and a count")
    return counts


def _anonymous(tokenizer: Tokenizer, old: Tokenizer, ordinary: Ids, *, ranked: bool) -> set[int]:
    """The tokens whose names say nothing."""
    numbers = _numbers(tokenizer, ordinary)
    if numbers:
        others = [i for i in range(old.vocab_size) if i not in old.special_ids]
        return set() if not ranked and _numbers(old, others) else numbers
    return set(ordinary) if ranked else set()


def _numbers(tokenizer: Tokenizer, ordinary: Ids) -> set[int]:
    """The whole numbers of a vocabulary of which they are the most; else none."""
    tokens = tokenizer.vocabulary()
    found = {i for i in ordinary if tokens[i].isascii() and tokens[i].isdecimal()}
    most = tokenizer.kind == "blank" and len(found) >= _MOSTLY * len(ordinary)
    return found if most else set()


def _by_name(tokenizer: Tokenizer, old: Tokenizer, wanted: Ids) -> dict[int, Ids]:
    """The old tokens that write the same text, by our id; those that none do are left out."""
    vocabulary, inside = tokenizer.vocabulary(), continuing_tokens(tokenizer)
    found: dict[int, Ids] = {}
    words: dict[int, str] = {}
    for index in wanted:
        token = vocabulary[index]
        same = old.id_of(token) if tokenizer.kind == old.kind else None
        if same is not None and same not in old.special_ids:
            found[index] = (same,)
            continue
        text = _text(tokenizer, index, token)
        if not inside[index]:
            words[index] = text
        elif old.kind == "wordpiece" and (pieces := _continuing(text, old)):
            found[index] = pieces
    written = zip(words, _written(old, list(words.values())), strict=True)
    return found | {index: ids for index, ids in written if ids}


def _text(tokenizer: Tokenizer, index: int, token: str) -> str:
    """A token without the marks of its kind of vocabulary."""
    if tokenizer.kind == "blank":
        return token
    if tokenizer.kind == "wordpiece":
        return token.removeprefix(_prefix(tokenizer))
    return tokenizer.decode([index]).strip()


def _prefix(tokenizer: Tokenizer) -> str:
    return getattr(tokenizer.backend.model, "continuing_subword_prefix", CONTINUATION)


def _written(old: Tokenizer, words: Sequence[str]) -> list[Ids]:
    """The tokens that a word becomes; none where the old vocabulary cannot write all of it."""
    blank = " " if old.kind == "bpe" else ""
    encoded = old.encode_batch([blank + word for word in words])
    special = set(old.special_ids)
    return [() if special & set(ids) else tuple(ids) for ids in encoded]


def _continuing(text: str, old: Tokenizer) -> Ids:
    """The pieces of a text inside a word, the longest from the left; none if it has a part that
    is no piece."""
    pieces, start, prefix = [], 0, _prefix(old)
    while start < len(text):
        ends = range(len(text), start, -1)
        known = ((end, old.id_of(prefix + text[start:end])) for end in ends)
        start, piece = next(((end, i) for end, i in known if i is not None), (len(text), None))
        if piece is None:
            return ()
        pieces.append(piece)
    return tuple(pieces)


def _ranked(old: Tokenizer, ranking: Mapping[str, int]) -> list[Ids]:
    """The old tokens of each word of a ranking, the most frequent first. The old vocabulary's
    special tokens have no rank."""
    special = set(old.special_ids)
    words = [w for w in sorted(ranking, key=lambda w: -ranking[w]) if old.id_of(w) not in special]
    return [
        written if same is None else (same,)
        for same, written in zip(map(old.id_of, words), _written(old, words), strict=True)
    ]
