"""Finds the columns of a table that a task reads, by their usual names.

``COLUMNS`` has the columns of all tasks; ``find_columns`` and ``ownbert finetune TASK --help`` use
it, so this module imports nothing that is slow to load.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ownbert.exceptions import InputError, in_short
from ownbert.files.text_files import open_text
from ownbert.language.messages import Message, Option, join
from ownbert.tables.column_proposals import (
    are_numbers,
    bit_columns,
    is_headless,
    propose_labels,
    propose_text,
    warn_if_headless,
)
from ownbert.tables.memory import MemoryTable
from ownbert.tables.name_lists import join_names, split_names
from ownbert.tables.tables import (
    Source,
    as_text,
    at_least_one,
    columns,
    kind_of,
    place,
    read_values,
    require_column,
    shown_columns,
)

# Usual names in lower case, in order of preference.
TEXT_NAMES = (
    *("text", "texts", "content", "contents", "document", "doc", "sentence", "sentences"),
    *("body", "review", "comment", "message", "abstract", "description", "utterance"),
    *("文本", "正文", "内容", "句子", "评论"),
    *("query", "question", "headline", "title", "摘要", "标题", "tokens", "words", "ids"),
)
LABEL_NAMES = (
    *("label", "labels", "class", "category", "target", "topic", "intent", "sentiment"),
    *("tag", "y", "label_id", "class_name", "coarse_label"),
    *("标签", "类别", "分类", "类目", "标注"),
)
# Names of two texts that form a pair.
PAIRS = (
    *(("sentence1", "sentence2"), ("sentence_1", "sentence_2"), ("sentence_a", "sentence_b")),
    *(("text1", "text2"), ("text_1", "text_2"), ("text_a", "text_b"), ("s1", "s2")),
    *(("question1", "question2"), ("premise", "hypothesis"), ("query", "passage")),
    *(("query", "document"), ("anchor", "positive"), ("text", "text_pair")),
    *(("文本1", "文本2"), ("句子1", "句子2")),
)
WORD_NAMES, TAG_NAMES = ("tokens", "words"), ("tags", "labels", "ner_tags")
# Names of columns that number the rows: neither texts nor labels.
COUNTERS = frozenset({"", "id", "idx", "index", "no", "row", "guid", "uid", "unnamed: 0"})

# Names of id columns; the first one in a table is used.
_IDS = ("id", "guid", "uid", "uuid", "row_id", "idx")

_NUMBERED = re.compile(r"(.*?)(\d+)")
# choice_a, optionA, or a single letter.
_LETTERED = re.compile(r"(.*[ _.-]|.*[a-z](?=[A-Z])|)([A-Za-z])")


@dataclass(frozen=True)
class ColumnNames:
    """The columns named by the user; None: found by their usual names."""

    text: str | None = None
    second: str | None = None
    label: str | None = None
    id: str | None = None
    features: str | None = None

    def settings(self) -> dict[str, str]:
        """The named columns by their recipe settings, which are also arguments of functions; only
        predictions and vectors have ids."""
        return {_setting(role): name for role, name in vars(self).items() if name is not None}


def _setting(role: str) -> str:
    return "feature_columns" if role == "features" else f"{role}_column"


def with_label_columns(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with ``label_columns``, a list of names, joined into the setting for one name, and
    ``label_names`` as one text if they are a list."""
    result = dict(options)
    if isinstance(names := result.get("label_names"), list | tuple):
        quoted = (str(name).replace('"', '""') for name in names)
        result["label_names"] = ",".join(f'"{name}"' for name in quoted)
    if (several := result.pop("label_columns", None)) is not None:
        # A single name is used as it is, also if it contains a comma.
        names = [several] if isinstance(several, str) else [*map(str, several)]
        result["label_column"] = names[0] if len(names) == 1 else join_names(names)
    return result


@dataclass(frozen=True)
class ColumnSpec:
    """A column that a task reads, and how it is found if the user does not name it.

    Args:
        role: text, second, label or features, as in ``ColumnNames``; others have no option.
        what: noun for its content, in messages.
        help: help text of the option.
        names: usual names in lower case, in order of preference.
        pairs: pairs of names of this column and another one, which are used together.
        set_aside: names to exclude when no usual name matches; a single remaining column is then
            used. None: it is not.
        prefixes: the role may have several columns, with these prefixes before a number or letter;
            ``names`` are then names of columns with lists.
        several: whether the user may name several columns, separated by commas.
        required: whether a file must have the column.
        labelled: whether it is only expected in labelled files.
        of: command with the option, for messages of other commands.
        note: appended to the default shown by --help.
    """

    role: str
    what: str = ""
    help: str = ""
    names: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    set_aside: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] = ()
    several: bool = False
    required: bool = True
    labelled: bool = False
    of: str = ""
    note: str = ""

    @property
    def title(self) -> str:
        """Noun for the content, for rows without column names."""
        return {"text": "a text", "second": "a second text", "label": "an answer"}[self.role]

    @property
    def option(self) -> str:
        """The option that names the column."""
        return f"--{self.setting.replace('_', '-')}"

    @property
    def setting(self) -> str:
        """The name of the setting for this column."""
        return _setting(self.role)

    @property
    def default(self) -> str:
        """The default for --help; Chinese names are only in the docs, because lines with wide
        characters wrap incorrectly."""
        if not self.names and not self.pairs:
            return "none"
        if self.role == "second" and self.pairs:
            pairs = ", ".join(f"{one} and {two}" for one, two in self.pairs if one.isascii())
            first = "none; if no text column is named and the file has a pair: {pairs}"
            return Message(first, pairs)
        text = Message("the first of {names}", ", ".join(filter(str.isascii, self.names)))
        if self.pairs:
            text = Message("that of a pair (see --second-column), else {names}", text)
        if self.prefixes:
            prefixes = " (lists; not in csv and tsv), or of {prefixes} (before numbers or letters)"
            text += Message(prefixes, ", ".join(self.prefixes))
        if self.set_aside is not None:
            text += "; else the only remaining column"
        elif not self.required:
            text += "; none if there is no such column"
        return text + Message("; {note!t}", self.note) if self.note else text


def find_columns(
    path: Source,
    specs: Sequence[ColumnSpec],
    given: ColumnNames | None = None,
    *,
    labelled: bool = True,
    pair: bool | None = None,
) -> dict[str, tuple[str, ...]]:
    """Find the columns of a table that a task reads, by role.

    Columns named by the user come first, then usual names, then a single remaining column after
    counters and impossible ones are excluded. A second text is used if it was named, or if the file
    has both columns of a pair and no text column was named.

    Args:
        path: a table; see ``ownbert.tables.tables``.
        specs: columns that the task reads.
        given: columns named by the user.
        labelled: whether to find label columns, too.
        pair: whether a second text is required, or (False) not allowed.

    Returns:
        One column per role that was found, or several if the spec allows it.

    Raises:
        InputError: a column is missing or used twice; the message lists the existing columns and
            the option that names one.
    """
    names, given = columns(path), given or ColumnNames()
    wanted = [spec for spec in specs if labelled or not spec.labelled]
    if pair is False and given.second is not None:
        raise InputError(
            "{path}: the model was trained on single texts; omit {--second-column}", path
        )
    found: dict[str, tuple[str, ...]] = {}

    def free() -> list[str]:
        """Columns without another role. A usual text name stays free even if the user named it
        among several numeric columns, so that this mistake is reported."""
        taken = {
            name
            for other in wanted
            for name in found.get(other.role, ())[: 1 if other.several else None]
        }
        return [name for name in names if name not in taken]

    # Prefixes come last: one of their numbered columns may have been named for another role.
    for spec in sorted(wanted, key=lambda spec: bool(spec.prefixes)):
        if (name := getattr(given, spec.role, None)) is not None:
            found[spec.role] = _named_columns(path, names, free(), spec, name)
    if pair is not False and "text" not in found and "second" not in found:
        pairs = next((spec.pairs for spec in wanted if spec.role == "second"), ())
        lower = _by_lower(names)
        if usual := next((both for both in pairs if {*both} <= {*lower}), None):
            found["text"], found["second"] = ((lower[name],) for name in usual)
    # Labels first: a question may be named "answer2", but "answer" is the answer.
    for spec in reversed(wanted):
        if spec.role not in found and (usual := _usual_columns(path, free(), spec)):
            found[spec.role] = usual
    for spec in wanted:
        if spec.role not in found and spec.set_aside is not None:
            excluded = {*COUNTERS, *spec.set_aside}
            taken = {name for several in found.values() for name in several}
            left = [name for name in names if name.lower() not in excluded and name not in taken]
            text = spec.role == "text"
            if len(left) == 1 and not (text and are_numbers(path, left[0])):
                found[spec.role] = (left[0],)
                if text and len(names) == 1:
                    warn_if_headless(path, names)
    for spec in wanted:
        needed = bool(pair) if pair is not None and spec.role == "second" else spec.required
        if spec.role not in found and needed:
            raise InputError(_missing(path, names, spec, _proposals(path, names, wanted, found)))
    used = [name for several in found.values() for name in several]
    if twice := [name for name in used if used.count(name) > 1]:
        raise InputError("{path}: the column {twice!r} cannot be used twice", path, twice[0])
    return found


def id_column(path: Source, taken: Sequence[str] = (), named: str | None = None) -> tuple[str, ...]:
    """The id column of a table, if it has one.

    Args:
        path: a table; see ``ownbert.tables.tables``.
        taken: columns with other roles.
        named: column named by the user; None: found by its usual names.

    Raises:
        InputError: the named column is missing, or has another role.
    """
    names = columns(path)
    if named is not None:
        named = require_column(names, named, source=path, option="--id-column")
        if named in taken:
            raise InputError("{path}: the column {named!r} cannot be used twice", path, named)
        return (named,)
    lower = _by_lower([name for name in names if names.count(name) == 1 and name not in taken])
    usual = next((lower[name] for name in _IDS if name in lower), None)
    return () if usual is None else (usual,)


def kept_columns(path: Source, keep: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table that are copied to the output.

    Args:
        path: a table; see ``ownbert.tables.tables``.
        keep: names, also several separated by commas; "all" means all columns.

    Raises:
        InputError: a column is missing.
    """
    names = columns(path)
    wanted: list[str] = []
    for given in keep:
        several = [given] if given in names else split_names(given)
        wanted += names if several == ["all"] and "all" not in names else several
    found = (require_column(names, name, source=path, option="--keep") for name in wanted)
    return tuple(dict.fromkeys(found))


def usual_names(specs: Sequence[ColumnSpec], given: ColumnNames) -> frozenset[str]:
    """Lower-case names of text columns: those named by the user, and the usual ones."""
    texts = [spec for spec in specs if spec.role in ("text", "second")]
    usual = {name for spec in texts for name in (*spec.names, *chain(*spec.pairs))}
    named = (name.lower() for name in (given.text, given.second) if name is not None)
    return frozenset({*usual, *named})


def positional_names(
    specs: Sequence[ColumnSpec], given: ColumnNames, *, labelled: bool, pair: bool | None = None
) -> Callable[[int], Sequence[str]]:
    """Column names for rows without names, by the number of values.

    Texts come first and, if ``labelled``, the label last; optional columns are omitted if there are
    fewer values.

    Args:
        specs: columns that the task reads.
        given: columns named by the user, now or in training.
        labelled: whether rows have labels.
        pair: whether a second text is required, or (False) not allowed.
    """

    def names(width: int) -> Sequence[str]:
        roles = ("text", "second", "label") if labelled else ("text", "second")
        wanted = [spec for spec in specs if spec.role in roles]
        if pair is False:
            wanted = [spec for spec in wanted if spec.role != "second"]
        for spec in reversed([spec for spec in wanted if not spec.required]):
            if len(wanted) > width:
                wanted.remove(spec)
        if len(wanted) != width:
            several = " and ".join(spec.title for spec in wanted)
            raise InputError("a row must be {several}", several or "one text")
        both = next((spec.pairs[0] for spec in wanted if spec.role == "second" and spec.pairs), ())
        usual: dict[str, str] = dict(zip(("text", "second"), both, strict=False))
        if not labelled and wanted[0].names[0] in WORD_NAMES:
            usual["text"] = TEXT_NAMES[0]  # a plain text; a row of words is a list
        return [getattr(given, s.role) or usual.get(s.role) or s.names[0] for s in wanted]

    return names


def _by_lower(names: Sequence[str]) -> dict[str, str]:
    """Names by their lower-case form; the first of several."""
    return {name.lower(): name for name in reversed(names)}


def _named_columns(
    path: Source, names: Sequence[str], free: Sequence[str], spec: ColumnSpec, given: str
) -> tuple[str, ...]:
    """Check and return the columns named by the user."""
    if spec.prefixes and given not in names:
        prefix = given.rstrip(" _.-").lower()
        if several := numbered_series(free).get(prefix):
            return several
        raise InputError(_missing(path, names, spec))
    several = [given]
    if spec.several and given not in names:
        several = split_names(given)
    option = spec.option
    if spec.of:
        option = Message("{option} of {command}", Option(option), spec.of)
    return tuple(require_column(names, name, source=path, option=option) for name in several)


def _usual_columns(path: Source, free: Sequence[str], spec: ColumnSpec) -> tuple[str, ...] | None:
    """The column with the most preferred usual name, or those with a usual prefix."""
    lower = _by_lower(free)
    # csv and tsv cannot contain lists.
    lists = not spec.prefixes or kind_of(path) != "delimited"
    if lists and (usual := next((name for name in spec.names if name in lower), None)):
        return (lower[usual],)
    if not spec.prefixes:
        return None
    series = numbered_series(free)
    # Numbered columns with a usual name of prompts (sent1, sent2) are not choices.
    others = [
        prefix
        for prefix, several in series.items()
        if not {name.lower() for name in several} & {*PROMPT_NAMES}
    ]
    prefixes = [*spec.prefixes, *(others if len(others) == 1 else ())]
    return next((series[prefix] for prefix in prefixes if prefix in series), None)


def numbered_series(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Columns that differ by a running number (from 0 or 1) or letter, keyed by their lower-case
    prefix."""
    series: dict[str, dict[int, str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            number = int(match[2])
        elif match := _LETTERED.fullmatch(name):
            number = ord(match[2].lower()) - ord("a")
        else:
            continue
        series.setdefault(match[1].rstrip(" _.-"), {})[number] = name
    return {
        prefix.lower(): tuple(by_number[n] for n in sorted(by_number))
        for prefix, by_number in series.items()
        if len(by_number) > 1
        and sorted(by_number) in [[*range(first, first + len(by_number))] for first in (0, 1)]
    }


def _proposals(
    path: Source, names: Sequence[str], wanted: Sequence[ColumnSpec], found: Mapping[str, Any]
) -> list[str]:
    """Options for missing text and label columns, with proposed columns."""
    taken = {name for several in found.values() for name in several}
    left = [name for name in names if name.lower() not in COUNTERS and name not in taken]
    proposals = []
    missing = {s.role: s for s in wanted if s.set_aside is not None and s.role not in found}
    text = propose_text(path, left) if "text" in missing else None
    if text is not None:
        proposals.append(
            Message("{option} (the longest texts)", Option(missing["text"].option, text))
        )
        taken.add(text)
    spec = missing.get("label")
    labels = propose_labels(path, left, taken, numbers=spec is not None and spec.several)
    if text is not None and kind_of(path) == "delimited" and is_headless(path, text, [*labels]):
        raise InputError(
            "{path}: the first line ({names}) seems to be a row; add a header line with the "
            "column names before it, such as text and label",
            path,
            in_short(shown_columns(names)),
        )
    if spec is not None:
        bits = bit_columns(path, [name for name in left if name not in taken])
        if len(bits) > 1:
            option = Option(spec.option, ",".join(bits))
            proposals.append(Message("{option} (a column of 0 and 1 for each label)", option))
        elif len(labels) == 1:
            (count,) = labels.values()
            proposals.append(
                Message(
                    "{option} ({count:,} different values)", Option(spec.option, *labels), count
                )
            )
        elif labels:
            proposals.append(Message("{option}", Option(spec.option, *labels)))
    return proposals


def _missing(
    path: Source, names: Sequence[str], spec: ColumnSpec, proposals: Sequence[str] = ()
) -> str:
    """The error message for a file without a required column."""
    shown = shown_columns(names)
    if spec.prefixes:
        return Message(
            "{path}: cannot tell which columns hold the choices (choices, a list; or "
            "choice0, choice1, ...); name the column of lists, or the prefix before the "
            "numbers, with {option}; the columns are: {shown}",
            path,
            Option(spec.option),
            shown,
        )
    if spec.role == "second" and spec.pairs:
        return Message(
            "{path} has one text per row, but two are needed; name their columns with "
            "{--text-column} and {--second-column}; the columns are: {shown}",
            path,
            shown,
        )
    start = Message("no column {what}", Message(spec.what))
    if spec.set_aside is not None:
        start = Message("cannot tell which column holds the {what}", Message(spec.what))
    if spec.set_aside is not None and proposals:
        return Message(
            "{path}: {start}; name it, such as {proposals}; the columns (from the first "
            "line) are: {shown}",
            path,
            start,
            join(proposals, " and "),
            shown,
        )
    return Message(
        "{path}: {start}; name it with {option}; the columns (from the first line) are: {shown}",
        path,
        start,
        Option(spec.option),
        shown,
    )


def read_texts(path: Source, *, text_column: str | None = None) -> Iterator[str]:
    """Stream the texts to predict: a table's text column, or plain text with one per line.

    Empty texts are kept, so that the n-th prediction belongs to the n-th text.

    Raises:
        InputError: there are no texts.
    """
    return (text for _, text in read_texts_with_ids(path, ColumnNames(text=text_column)))


def read_texts_with_ids(path: Source, given: ColumnNames) -> Iterator[tuple[Any, str]]:
    """Like ``read_texts``, with ids; ids are None unless an id column is named. A missing or null
    text is blank, like an empty cell of a csv file."""
    return ((id, text) for _, id, text in read_numbered_texts(path, given))


def read_numbered_texts(path: Source, given: ColumnNames) -> Iterator[tuple[int, Any, str]]:
    """Like ``read_texts_with_ids``, with the numbers of lines or rows first."""
    if given.id is None and not isinstance(path, MemoryTable) and kind_of(path) == "txt":
        return at_least_one(((line, None, text) for line, text in open_text(path)), path)
    (column,) = find_columns(path, [TEXT], given)["text"]
    ids = () if given.id is None else id_column(path, [column], given.id)
    rows = (
        (
            line,
            id_value(*id) if id else None,
            as_text("" if value is None else value, column, place(path, line)),
        )
        for line, (value, *id) in read_values(path, [column, *ids])
    )
    return at_least_one(rows, path)


def id_value(value: Any, *, named: bool = True) -> Any:
    """An id in a form for output files: a JSON value, or else text (dates, UUIDs).

    If the user has not ``named`` the column, a missing id is blank, as in csv: only rows of tables
    without ids are identified by their texts.
    """
    if value is None and not named:
        return ""
    if value is None or isinstance(value, str | int | float):
        return value
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return str(value)
    return value


TEXT = ColumnSpec("text", "texts", names=TEXT_NAMES, set_aside=LABEL_NAMES)
_TEXT = replace(TEXT, help="Column with the texts, or with the first texts of pairs.", pairs=PAIRS)
_SECOND = ColumnSpec(
    "second", help="Column with the second texts, if rows are pairs.", pairs=PAIRS, required=False
)
_LABEL = ColumnSpec(
    "label",
    "labels",
    "Column with the labels.",
    names=LABEL_NAMES,
    set_aside=TEXT_NAMES,
    labelled=True,
)

_FEATURES = ColumnSpec(
    "features",
    "word features",
    "Columns with one tag per word (parts of speech, semantic roles, dictionary flags), which "
    "the model reads as additional input; separated by commas.",
    several=True,
    required=False,
    of="ownbert finetune",  # a finished model uses the columns of its training
)
CORPUS_FEATURES = replace(_FEATURES, of="")
# The second texts of pairs are documents, too.
CORPUS_SECOND = _SECOND

_STARTS = ("answer_start", "start")
_OF_QUESTIONS = (
    ColumnSpec(
        "text", "'question'", "Column with the questions, in tables.", names=("question", "query")
    ),
    ColumnSpec(
        "second",
        "'context'",
        "Column with the contexts that contain the answers, in tables.",
        names=("context", "passage", "paragraph", "document", "text"),
    ),
    ColumnSpec(
        "label",
        "'answers'",
        "Column with the answers, in tables.",
        names=("answers", "answer", "answer_text", "label"),
        labelled=True,
        note=f"{' or '.join(_STARTS)} for their positions",
    ),
    ColumnSpec("id", names=("id", "qid", "question_id"), required=False),
    ColumnSpec("start", names=_STARTS, required=False, labelled=True),
    ColumnSpec("impossible", names=("is_impossible",), required=False, labelled=True),
)

PROMPT_NAMES = (
    *("prompt", "premise", "question", "context", "startphrase", "sentence", "sent1", "text"),
    "stem",
)
_OF_CHOICES = (
    ColumnSpec("text", "of the prompt", "Column with the prompts.", names=PROMPT_NAMES),
    ColumnSpec(
        "second",
        "of the choices",
        "Column with lists of choices; or, with one column per choice, the part of their names "
        "before the numbers or letters.",
        names=("choices", "options", "endings", "candidates", "answers"),
        prefixes=("ending", "choice", "option", "answer", "candidate"),
    ),
    ColumnSpec(
        "label",
        "of the label",
        "Column with the correct choices: numbers, letters or texts.",
        names=("label", "answer", "answerkey", "answer_key", "correct", "gold", "target"),
        labelled=True,
    ),
)

_OF_PAIRS = (
    replace(_TEXT, help="Column with the first texts: queries, anchors."),
    replace(
        _SECOND,
        help="Column with the second texts, which match the first or are compared with them.",
    ),
    ColumnSpec(
        "label",
        "scores",
        "Column with the scores, which state how similar the two texts are.",
        names=(
            *("score", "similarity", "similarity_score", "relatedness", "relatedness_score"),
            *("sim", "gold_score", "label", "is_duplicate"),
        ),
        required=False,
        labelled=True,
    ),
    ColumnSpec(
        "negative",
        names=("negative", "hard_negative", "neg", "negative_1"),
        required=False,
        labelled=True,
    ),
)

# The columns of each task by name; images have no columns.
COLUMNS: Mapping[str, tuple[ColumnSpec, ...]] = {
    "classify": (_TEXT, _SECOND, _FEATURES, _LABEL),
    "multilabel": (
        _TEXT,
        _SECOND,
        _FEATURES,
        replace(
            _LABEL,
            help="Column with the labels, or one column of 0 and 1 per label, separated by commas.",
            several=True,
        ),
    ),
    "regress": (
        _TEXT,
        _SECOND,
        _FEATURES,
        replace(
            _LABEL,
            help="Column with the numbers, or several columns separated by commas.",
            # Numeric scores are more common than classes.
            names=("score", "rating", "value", *LABEL_NAMES),
            several=True,
        ),
    ),
    "answer": _OF_QUESTIONS,
    "choose": _OF_CHOICES,
    "embed": _OF_PAIRS,
    "tag": (
        replace(
            TEXT,
            help="Column with the words; in CoNLL files, its number from 1.",
            names=tuple(dict.fromkeys((*WORD_NAMES, *TEXT_NAMES))),
            note="in CoNLL the first one",
        ),
        replace(
            _FEATURES,
            help="Columns with one tag per word (parts of speech, dictionary flags), which the "
            "model reads as additional input; separated by commas; in CoNLL files, their numbers "
            "from 1.",
        ),
        replace(
            _LABEL,
            help="Column with the tags; in CoNLL files, its number from 1.",
            names=tuple(dict.fromkeys((*TAG_NAMES, *LABEL_NAMES))),
            note="in CoNLL the last one",
        ),
    ),
}
