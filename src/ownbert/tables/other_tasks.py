"""Recognises tables of questions, choices and tagged words, which are not for classification."""

from collections.abc import Mapping, Sequence
from typing import Any

from ownbert.exceptions import InputError
from ownbert.tables.column_proposals import first_rows_of
from ownbert.tables.columns import (
    COLUMNS,
    LABEL_NAMES,
    PROMPT_NAMES,
    TAG_NAMES,
    WORD_NAMES,
    ColumnNames,
    numbered_series,
)
from ownbert.tables.tables import Source, columns

_ROWS = 20  # rows that are compared
_DATA = {
    "answer": "questions with answers in a text",
    "choose": "choices for a prompt",
    "tag": "words with tags",
}
# Values of the first rows by column.
Sample = Mapping[str, Sequence[Any]]


def refuse_other_tasks(path: Source, given: ColumnNames) -> None:
    """Raise ``InputError`` with the right command if a table is for another task than those with
    labels or numbers for texts."""
    sample = first_rows_of(path, columns(path), _ROWS)
    label = given.label or _first(LABEL_NAMES, sample)
    for task, find in (("tag", _words), ("choose", _choices), ("answer", _questions)):
        if used := find(sample, label):
            raise InputError(
                "{path}: the columns {used} look like {data}: ownbert finetune {task}; to use "
                "fit all the same, give {--task classify}",
                path,
                ", ".join(used),
                _DATA[task],
                task,
            )


def _questions(sample: Sample, label: str | None) -> Sequence[str]:
    """The columns of questions, contexts and answers that occur in these; or of SQuAD's JSON."""
    if "paragraphs" in str(sample.get("data", ""))[:1000]:
        return ["data"]
    # The first names; "document" and "label" are usual in other tables, too.
    question, context, answer = (_first(_names("answer", each)[:3], sample) for each in range(3))
    if not (question and context and answer) or label not in (None, answer):
        return []
    pairs = list(zip(sample[answer], sample[context], strict=True))
    found = [a for a, text in pairs if "answer_start" in str(a) or (a and str(a) in str(text))]
    return [question, context, answer] if 2 * len(found) > len(pairs) else []


def _choices(sample: Sample, label: str | None) -> Sequence[str]:
    """The columns of prompts, choices and labels that are numbers, letters or texts of choices."""
    spec = COLUMNS["choose"][1]
    label = label or _first(_names("choose", 2), sample)
    prompt, column = _first(PROMPT_NAMES, sample), _first(spec.names, sample)
    series = numbered_series(list(sample))
    several = next((series[each] for each in spec.prefixes if each in series), ())
    lists = column is not None and _are_lists(sample[column])
    used = (column,) if column is not None and lists else several
    if not label or label not in sample or not prompt or not used or {label, prompt} & {*used}:
        return []
    rows = list(zip(*(sample[name] for name in used), strict=True))
    choices = [row[0] for row in rows] if lists else rows
    labels = [str(value).strip() for value in sample[label]]
    return [prompt, *used, label] if all(map(_names_choice, labels, choices)) else []


def _names_choice(label: str, choices: Sequence[Any]) -> bool:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(choices)]
    return (
        label in map(str, choices)
        or (label.isdecimal() and int(label) <= len(choices))
        or (len(label) == 1 and label.upper() in letters)
    )


def _words(sample: Sample, label: str | None) -> Sequence[str]:
    """The columns of words and as many tags, if these are lists."""
    words, tags = _first(WORD_NAMES, sample), _first(TAG_NAMES, sample)
    if not words or not tags or label not in (None, tags):
        return []
    if not _are_lists(sample[words]) or not _are_lists(sample[tags]):
        return []
    pairs = zip(sample[words], sample[tags], strict=True)
    return [words, tags] if all(len(one) == len(two) for one, two in pairs) else []


def _are_lists(values: Sequence[Any]) -> bool:
    return bool(values) and all(isinstance(value, list) for value in values)


def _names(task: str, role: int) -> Sequence[str]:
    """The usual names of one of the columns of a task."""
    return COLUMNS[task][role].names


def _first(names: Sequence[str], sample: Sample) -> str | None:
    """The column with the most preferred name, in any case."""
    lower = {column.lower(): column for column in sample}
    return next((lower[name] for name in names if name in lower), None)
