"""Reads sentences in CoNLL columns: one word per line, blank lines between sentences, plain or
gzip.

Columns are separated by tabs if the first line has one, else by spaces. The word is in the first
column and the tag in the last one, or in given columns, numbered from 1. All lines have the same
number of columns as the first line, which is the first one that does not start with "#". A line
that starts with "#" and has another number of columns is a comment (as in CoNLL-U), else "#" is a
word. Lines that start with -DOCSTART- end a sentence and are skipped. A first line with column
names (such as word and tag) is skipped with a warning.

In CoNLL-U (ten columns, the first of which numbers the words) the word is in the second column and
the tag in the fourth one (UPOS). Contracted words ("3-4") and empty nodes ("5.1") are skipped.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ownbert.exceptions import InputError, counted, warn_of_input
from ownbert.files.text_files import open_text
from ownbert.language.messages import Message
from ownbert.tables.tables import PathLike

DOCUMENT = "-DOCSTART-"
# Lower-case names of word and tag columns in a header.
_WORD_HEADERS = frozenset({"word", "words", "token", "tokens", "form", "text"})
_TAG_HEADERS = frozenset(
    {
        *("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "ner-tag", "entity"),
        *("iob", "bio", "pos", "pos_tag", "upos", "xpos", "chunk", "chunk_tag", "class"),
    }
)
# Number of columns of CoNLL-U, and the number in the first one: that of the first line, and those
# of lines without a word.
_CONLLU = 10
_FIRST_NUMBER, _NO_WORD = re.compile(r"1|1-\d+|0\.1"), re.compile(r"\d+[-.]\d+")


@dataclass(frozen=True, slots=True)
class ConllSentence:
    """A sentence of a CoNLL file.

    Args:
        line: line number of its first word.
        words: words of the sentence.
        tags: one per word; empty if tags are not read.
        features: for each column of word features, one value per word.
    """

    line: int
    words: tuple[str, ...]
    tags: tuple[str, ...]
    features: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class _Layout:
    """The number of columns in line ``first``, and the indices of word, tag and feature columns.

    ``header`` is the number of the header line, 0 if there is none; ``numbered``: it is CoNLL-U.
    """

    path: Path
    first: int
    tabs: bool
    width: int
    word: int
    tag: int | None
    features: tuple[int, ...] = ()
    header: int = 0
    numbered: bool = False

    def read(self, number: int, fields: list[str]) -> tuple[str, str | None, list[str]]:
        """The word of a line, its tag if requested, and its features."""
        where = Message("{path}, line {number}", self.path, number)
        if len(fields) != self.width:
            raise InputError(
                "{where}: {columns}, but line {first} has {width}; {needed}",
                where,
                counted(len(fields), "column"),
                self.first,
                self.width,
                _needed(self.tag),
            )
        features = [(index, "word feature") for index in self.features]
        for index, what in ((self.word, "word"), (self.tag, "tag"), *features):
            if index is not None and not fields[index]:
                raise InputError(
                    "{where}: the {what} (column {index}) is empty", where, what, index + 1
                )
        tag = None if self.tag is None else fields[self.tag].strip()
        return fields[self.word], tag, [fields[index].strip() for index in self.features]


def read_conll(
    path: PathLike,
    *,
    tags: bool,
    word_column: str | None = None,
    tag_column: str | None = None,
    feature_columns: str | None = None,
) -> Iterator[ConllSentence]:
    """Stream the sentences of a file; without ``tags`` it may contain words only.

    Args:
        path: the file.
        tags: whether to read tags.
        word_column: number of the word column, from 1.
        tag_column: number of the tag column, from 1.
        feature_columns: numbers of the columns of word features, separated by commas.

    Raises:
        InputError: a column is missing, a line has another number of columns, or a word or tag is
            empty, with file and line; at the end, if the file has no words.
    """
    layout = _layout(Path(path), tags, word_column, tag_column, feature_columns)
    line, words, sentence_tags, features = 0, [], [], []
    for number, text in chain(_lines(layout.path), [(-1, "")]):
        fields = _fields(text, layout.tabs)
        if text.startswith("#") and len(fields) != layout.width:
            continue
        if number == layout.header or (layout.numbered and _NO_WORD.fullmatch(fields[0])):
            continue
        if text:
            word, tag, word_features = layout.read(number, fields)
            line = line or number
            words.append(word)
            sentence_tags += [] if tag is None else [tag]
            features.append(word_features)
        elif words:
            yield ConllSentence(
                line, tuple(words), tuple(sentence_tags), tuple(zip(*features, strict=True))
            )
            line, words, sentence_tags, features = 0, [], [], []
    if layout.header:
        warn_of_input(
            "{path}, line {header} names the columns and is skipped", layout.path, layout.header
        )


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line), with an empty line at the end of a sentence."""
    for number, line in open_text(path):
        ends = not line.strip(" \t") or line.startswith(DOCUMENT)
        yield number, "" if ends else line


def _fields(line: str, tabs: bool) -> list[str]:
    # Split at plain spaces only: a wide or non-breaking space can be a word.
    return line.split("\t") if tabs else [field for field in line.split(" ") if field]


def _layout(
    path: Path, tags: bool, word: str | None, tag: str | None, features: str | None
) -> _Layout:
    first, line = 0, ""
    for number, text in _lines(path):
        if text and (not first or not text.startswith("#")):
            first, line = number, text
        if line and not line.startswith("#"):
            break
    if not first:
        raise InputError("{path} is empty", path)
    tabs = "\t" in line
    width = len(_fields(line, tabs))
    numbered = tabs and width == _CONLLU and bool(_FIRST_NUMBER.fullmatch(_fields(line, tabs)[0]))
    if numbered:
        word, tag = word or "2", tag or "4"
    if tags and tag is None and width < 2:
        raise InputError(
            "{path}, line {first}: {columns}; {needed}",
            path,
            first,
            counted(width, "column"),
            _needed(1),
        )
    last = None
    if tags:
        last = width - 1 if tag is None else _column(path, "--label-column", tag, width)
    index = 0 if word is None else _column(path, "--text-column", word, width)
    if index == last:
        raise InputError(
            "{path}: column {index} cannot be both the word and the tag", path, index + 1
        )
    names = [] if features is None else [name.strip() for name in features.split(",")]
    numbers = tuple(_column(path, "--feature-columns", name, width) for name in names)
    if repeated := [i for i in numbers if i in (index, last) or numbers.count(i) > 1]:
        raise InputError("{path}: column {repeated} cannot be used twice", path, repeated[0] + 1)
    tag_index = width - 1 if last is None else last
    named = _names_columns(path, first, line, tabs, index, tag_index)
    return _Layout(path, first, tabs, width, index, last, numbers, first if named else 0, numbered)


def _names_columns(path: Path, first: int, line: str, tabs: bool, word: int, tag: int) -> bool:
    """Whether line ``first`` is a header: it has names for words and tags, and its tag occurs in no
    other line."""
    fields = _fields(line, tabs)
    if word == tag or fields[word].strip().lower() not in _WORD_HEADERS:
        return False
    name = fields[tag].strip()
    if name.lower() not in _TAG_HEADERS:
        return False
    others = (_fields(text, tabs) for number, text in _lines(path) if number > first and text)
    tags = [fields[tag].strip() for fields in others if len(fields) > tag]
    return bool(tags) and name not in tags


def _column(path: Path, option: str, given: str, width: int) -> int:
    if not given.isdecimal() or not 1 <= int(given) <= width:
        raise InputError(
            "{path} has no column {value!r} ({option}); its lines are CoNLL columns, numbered "
            "from 1 to {width}",
            path,
            given,
            option,
            width,
        )
    return int(given) - 1


def _needed(tag: int | None) -> str:
    if tag is None:
        return "one word per line is needed, with the same columns everywhere"
    return "a word and its tag per line are needed, separated by a tab or spaces"
