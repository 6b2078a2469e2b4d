"""Questions about texts with extractive answers: SQuAD's JSON, jsonl, parquet, csv, tsv.

SQuAD's JSON is a single document: {"data": [{"paragraphs": [{"context": "...", "qas": [{"id":
"...", "question": "...", "answers": [{"text": "...", "answer_start": 0}]}]}]}]}; version 2 also has
"is_impossible" (Rajpurkar et al. 2016, 2018). Tables have one row per question; its answers are
SQuAD's {"text": [...], "answer_start": [...]}, a list of {"text", "answer_start"}, a list of texts,
or one text; in csv and tsv, the JSON or Python text of these. A missing or empty answer means that
the text does not contain one.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from ownbert.exceptions import InputError
from ownbert.files.json_files import is_nested
from ownbert.files.text_files import open_text
from ownbert.language.messages import Message
from ownbert.tables.columns import COLUMNS, ColumnNames, find_columns, id_value
from ownbert.tables.memory import MemoryTable
from ownbert.tables.tables import Source, as_text, kind_of, not_empty, place, read_values

NEEDED = (
    'SQuAD JSON (one document with "data", "paragraphs", "context", "qas"), or rows with the '
    "columns question, context and answers"
)


# Maximum characters of answers that are written as text.
_LONGEST = 1 << 20


class GoldAnswer(NamedTuple):
    """An answer.

    Args:
        text: text of the answer.
        start: index of its first character in the context, None if it does not occur there.
    """

    text: str
    start: int | None


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a context.

    Args:
        line: line of the file, or number of the question in SQuAD's JSON.
        where: location, for messages.
        answers: empty if the context contains no answer.
    """

    line: int
    where: str
    id: Any
    question: str
    context: str
    answers: tuple[GoldAnswer, ...] = ()


def read_questions(
    path: Source, given: ColumnNames | None = None, *, labelled: bool = True
) -> Iterator[Question]:
    """Yield questions in the order of the file; without ``labelled`` answers are ignored.

    Answers that are not at the given position are searched for (``locate``).

    Args:
        path: the file.
        given: columns of a table for questions, contexts and answers.
        labelled: whether to read answers.

    Raises:
        InputError: the file is empty or of another kind, or a value is missing; the message has
            the file and the line or question.
    """
    document = _document(path)
    if document is None:
        found = _table(path, given, labelled)
    else:
        found = _paragraphs(document, path, labelled)
    yield from not_empty(
        found, Message("{path} has no questions; expected: {needed}", path, NEEDED)
    )


def locate(context: str, text: str, start: int | None = None) -> GoldAnswer:
    """Locate an answer in the context.

    It is searched for at ``start``, or at the nearest occurrence (the first one if ``start`` is
    None), or ignoring case and whitespace, in which case the text of the context is used.
    """
    if start is not None and start >= 0 and context.startswith(text, start):
        return GoldAnswer(text, start)
    loose = r"\s+".join(map(re.escape, text.split()))
    for pattern in (re.compile(re.escape(text)), re.compile(loose, re.IGNORECASE)):
        found = list(pattern.finditer(context))
        if found:
            nearest = min(found, key=lambda match: abs(match.start() - (start or 0)))
            return GoldAnswer(nearest.group(), nearest.start())
    return GoldAnswer(text, None)


def _document(path: Source) -> Mapping[str, Any] | None:
    """SQuAD's JSON, or None for a table; a .json file may be either."""
    if isinstance(path, MemoryTable) or kind_of(path) != "jsonl":
        return None
    lines = (line for _, line in open_text(path) if line.strip())
    first = next(lines, None)
    if first is None:
        raise InputError("{path} is empty", path)
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        value = _whole(path, "\n".join([first, *lines]))
    else:
        if isinstance(value, dict) and "data" not in value:
            return None
        if next(lines, None) is not None:
            raise InputError("{path} is not one JSON document; expected: {needed}", path, NEEDED)
    if is_nested(value):
        raise InputError("{path}: the JSON is nested too deeply", path)
    if not isinstance(value, dict) or "data" not in value:
        raise InputError(
            "{path} is JSON, but not in SQuAD format; expected: {needed}", path, NEEDED
        )
    return value


def _whole(path: Source, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "not readable"
        raise InputError(
            "{path} is not JSON ({reason}); expected: {needed}", path, reason, NEEDED
        ) from error


def _paragraphs(document: Mapping[str, Any], path: Source, labelled: bool) -> Iterator[Question]:
    number = 0
    for article, holder in enumerate(_list(document, "data", f"{path}"), start=1):
        where = f"{path}, article {article}"
        for paragraph in _list(holder, "paragraphs", where):
            context = as_text(_value(paragraph, "context", where), "context", where)
            for entry in _list(paragraph, "qas", where):
                number += 1
                name = entry.get("id") if isinstance(entry, dict) else None
                place = f"{path}, question {number if name is None else repr(name)}"
                yield Question(
                    number,
                    place,
                    None if name is None else str(name),
                    as_text(_value(entry, "question", place), "question", place),
                    context,
                    _gold_answers(_value(entry, "answers", place), None, context, place)
                    if labelled and not entry.get("is_impossible")
                    else (),
                )


def _table(path: Source, given: ColumnNames | None, labelled: bool) -> Iterator[Question]:
    try:
        several = find_columns(path, COLUMNS["answer"], given, labelled=labelled)
    except InputError as error:
        raise InputError("{error}; expected: {needed}", error, NEEDED) from None
    found = {role: column for role, (column,) in several.items()}
    for line, values in read_values(path, list(found.values())):
        where = place(path, line)
        row = dict(zip(found, values, strict=True))
        context = as_text(row["second"], found["second"], where)
        answers: tuple[GoldAnswer, ...] = ()
        if labelled and str(row.get("impossible")).lower() not in ("true", "1"):
            if row["label"] is None:
                raise InputError("{where}: {value!r} is missing or null", where, found["label"])
            answers = _gold_answers(row["label"], row.get("start"), context, where)
        named = given is not None and given.id is not None
        yield Question(
            line,
            where,
            id_value(row["id"], named=named) if "id" in row else None,
            as_text(row["text"], found["text"], where),
            context,
            answers,
        )


def _gold_answers(value: Any, starts: Any, context: str, where: str) -> tuple[GoldAnswer, ...]:
    """Answers in any of the supported forms; empty ones are skipped."""
    if isinstance(value, str) and value not in context:
        value = _parsed(value)
    if isinstance(value, dict):
        value, starts = _value(value, "text", where), value.get("answer_start")
    several = value if isinstance(value, list) else [value]
    if any(isinstance(one, dict) for one in several):
        starts = [_value(one, "answer_start", where, None) for one in several]
        several = [_value(one, "text", where) for one in several]
    places = starts if isinstance(starts, list) else [starts] * len(several)
    if len(places) != len(several):
        raise InputError(
            "{where}: {count} answers, but {count2} values in 'answer_start'; one per answer is "
            "needed",
            where,
            len(several),
            len(places),
        )
    texts = [as_text(text, "answers", where) for text in several]
    return tuple(
        locate(context, text, _whole_number(start, where))
        for text, start in zip(texts, places, strict=True)
        if text.strip()
    )


def _parsed(text: str) -> Any:
    """The answers in a text of JSON or Python, as in a csv file; other texts are one answer."""
    if len(text) > _LONGEST or text.strip()[:1] not in ("{", "["):
        return text
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return _literal(ast.parse(text.strip(), mode="eval").body)
    return text


def _literal(node: ast.expr) -> Any:
    """The value of a Python literal; pandas writes lists as calls: array(['a'], dtype=object)."""
    if isinstance(node, ast.Dict) and None not in node.keys:
        keys = [_literal(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple):
        return [*map(_literal, node.elts)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "array":
        return _literal(node.args[0]) if node.args else []
    return ast.literal_eval(node)


def _whole_number(value: Any, where: str) -> int | None:
    if value is None or value == "":
        return None
    with suppress(TypeError, ValueError, OverflowError):
        if float(value).is_integer():  # pandas writes 5.0 in columns with gaps
            return int(float(value))
    raise InputError("{where}: 'answer_start' is {value!r}, not a whole number", where, value)


_NEEDED_KEY = object()


def _value(holder: Any, key: str, where: str, default: Any = _NEEDED_KEY) -> Any:
    if not isinstance(holder, dict):
        raise InputError(
            "{where}: a {kind} instead of an object with {key!r}", where, type(holder).__name__, key
        )
    value = holder.get(key, default)
    if value is _NEEDED_KEY:
        raise InputError("{where}: the key {key!r} is missing", where, key)
    return value


def _list(holder: Any, key: str, where: str) -> list[Any]:
    value = _value(holder, key, where)
    if not isinstance(value, list):
        raise InputError(
            "{where}: {key!r} is a {kind}, a list is needed", where, key, type(value).__name__
        )
    return value
