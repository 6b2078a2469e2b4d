"""What a fine-tuning run would do, without doing it. N rows, L tokens of an example."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ownbert.data.batch import Example
from ownbert.tasks.checks import check_rows, label_counts, shortened
from ownbert.tasks.finetune import given
from ownbert.tasks.finetuning import Finetuning
from ownbert.tasks.frame import Frame, Unknown
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.rows import Row, find_columns
from ownbert.tasks.sentence import SentenceTask
from ownbert.tasks.task import Task
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.settings import dump, resolve

_SHOWN = 5
# With more labels than _ALL, so many of the most frequent and of the rarest.
_ALL, _FREQUENT, _RARE = 20, 10, 5
# From this share of unknown tokens on the vocabulary does not fit the texts.
_UNKNOWN = 0.05
_CHARACTERS = 200  # of an example's tokens
_TEXTS = 5  # of an example, each on a line


def preview_finetuning(
    task: str | None = None,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """The resolved recipe, counts, columns, shares of the labels, lengths, rows that look wrong,
    and examples as the model sees them."""
    asked = given(task, options)
    run = Finetuning(resolve(FinetuneRecipe, config=config, overrides=overrides, options=asked))
    lines = [
        _settings(run),
        *run.summary(),
        *_columns(run),
        *_labels(run),
        *_lengths(run),
        *(f"{'warning' if f.grave else 'note'}: {f.line}" for f in check_rows(*run.lesson.parts)),
        *_examples(run),
    ]
    return "\n".join(lines)


def _settings(run: Finetuning) -> str:
    """The resolved recipe, without what other tasks can be told."""
    values = yaml.safe_load(dump(run.recipe))
    known = run.task.uses | {"name"}
    values["task"] = {name: value for name, value in values["task"].items() if name in known}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _columns(run: Finetuning) -> Iterator[str]:
    """Which columns are read, of tasks that have texts and labels in a table."""
    task = run.task
    if not isinstance(task, SentenceTask):
        return
    # A regression may have several columns of numbers, and its labels are their names.
    numbers = task.labels if task.name == "regress" else ()
    given = replace(task.columns, label=numbers[0]) if numbers else task.columns
    for part in run.lesson.parts:
        found = find_columns(part.source, given, labelled=True)
        texts = " and ".join(map(repr, found.texts))
        labels = ", ".join(map(repr, numbers or [found.label]))
        yield f"columns, {part.name}: {texts} to read, {labels} to answer"


def _labels(run: Finetuning) -> Iterator[str]:
    for part in run.lesson.parts:
        if shares := label_shares(run.task, part.rows):
            yield f"labels, {part.name}: {shares}"


def label_shares(task: Task, rows: Sequence[Row]) -> str:
    """How the answers are spread; where there are many labels, the most frequent and rarest."""
    if len(task.labels) <= _ALL or not isinstance(task, SentenceTask):
        return task.shares(rows)
    counts = label_counts(rows, task.labels).most_common()
    shown = [f"{label} {count:,} ({count / len(rows):.1%})" for label, count in counts]
    return (
        f"{len(shown)} in all; the most frequent: {', '.join(shown[:_FREQUENT])}; "
        f"the rarest: {', '.join(shown[-_RARE:])}"
    )


def _lengths(run: Finetuning) -> Iterator[str]:
    """Of the training rows, as they are after cutting."""
    data, together = (
        run.lesson.train_data,
        [len(e.parts or (0,)) for e in run.lesson.train_data.examples],
    )
    parts = (e.parts or (len(e.token_ids),) for e in data.examples)
    sizes = np.asarray([size for of_example in parts for size in of_example])
    half, most, nearly = np.percentile(sizes, (50, 90, 99)).round().astype(int).tolist()
    several = f" (up to {max(together)} of them together)" if max(together) > 1 else ""
    cut = f"{data.cut:,} {run.task.unit} are" if data.cut else "none is"
    yield (
        f"tokens a sequence{several}: median {half:,}, 90% up to {most:,}, 99% up to {nearly:,}, "
        f"longest {sizes.max():,}; {cut} cut at {run.max_length:,}"
    )
    unknown = Unknown(run.tokenizer)
    unknown.count(data.examples)
    yield unknown.warning() or f"unknown tokens: {unknown.share:.2%}"


def _examples(run: Finetuning) -> Iterator[str]:
    """Rows from the first to the last in equal steps: files are often sorted by label."""
    count = min(_SHOWN, len(run.lesson.train_rows))
    places = np.linspace(0, len(run.lesson.train_rows) - 1, count).round().astype(int)
    rows = [run.lesson.train_rows[i] for i in places]
    frame = Frame(run.tokenizer, run.config, run.max_length)
    encoded = run.task.encode(rows, frame, training=False)
    yield "examples, as the model sees them:"
    for row, example in zip(rows, encoded.examples, strict=True):
        target = shortened(run.task.preview(row), _CHARACTERS)
        texts = readable(example, run.tokenizer)
        yield f"{target}: {texts[0]}" if len(texts) == 1 else f"{target}:"
        shown = texts if len(texts) <= _TEXTS else [*texts[:_TEXTS], "..."]
        yield from (f"    {text}" for text in shown if len(texts) > 1)


def readable(example: Example, tokenizer: Tokenizer) -> list[str]:
    """The tokens of an example, with the middle of long texts left out: the two texts of a
    sequence by themselves, or, of several sequences, each of these."""
    if not example.parts:
        return _texts(example.token_ids, tokenizer)
    begins = np.cumsum(example.parts)[:-1]
    return [" ".join(_texts(ids, tokenizer)) for ids in np.split(example.token_ids, begins)]


def _texts(ids: np.ndarray, tokenizer: Tokenizer) -> list[str]:
    """Each up to its separator; RoBERTa's second one is the first token of the second text."""
    ends = (np.flatnonzero(ids[:-1] == tokenizer.sep_id) + 1).tolist()
    pieces = np.split(ids, [end for end in ends if end - 1 not in ends])
    most = _CHARACTERS // len(pieces)
    return [shortened(" ".join(tokenizer.tokens(piece.tolist())), most) for piece in pieces]
