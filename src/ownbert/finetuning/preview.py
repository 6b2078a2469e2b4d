"""What a fine-tuning run would do, without doing it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ownbert.finetuning.checks import check_rows, label_counts
from ownbert.finetuning.finetune import given, in_memory
from ownbert.finetuning.run import FinetuningRun
from ownbert.settings import dump, resolve
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.multilabel import MultiLabel
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.rows import Row, shortened
from ownbert.tasks.sentence_task import SentenceTask
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import readable as readable

_SHOWN = 5
# With more labels than _ALL, so many of the most frequent and of the rarest.
_ALL, _FREQUENT, _RARE = 20, 10, 5
_CHARACTERS = 200  # of an answer


def preview_finetuning(
    task: str | None = None,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """The resolved recipe, counts, columns, shares of the labels, lengths, rows that look wrong,
    and examples as the model sees them."""
    rows, asked = in_memory(task, given(task, options))
    recipe = resolve(FinetuneRecipe, config=config, overrides=overrides, options=asked)
    run = FinetuningRun(recipe, rows)
    lines = [
        _settings(run),
        *run.summary(),
        *_columns(run),
        *_labels(run),
        *run.builder.about(run.splits.train_data, run.task.unit),
        *(f"{'warning' if f.grave else 'note'}: {f.line}" for f in check_rows(*run.splits.parts)),
        *_examples(run),
    ]
    return "\n".join(lines)


def _settings(run: FinetuningRun) -> str:
    """The resolved recipe, without what other tasks can be told."""
    values = yaml.safe_load(dump(run.recipe))
    known = run.task.uses | {"name"}
    values["task"] = {name: value for name, value in values["task"].items() if name in known}
    if run.config.image is None:
        del values["model"]["vit"]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _columns(run: FinetuningRun) -> Iterator[str]:
    """Which columns are read, of tasks that have texts and labels in a table."""
    task = run.task
    if not isinstance(task, SentenceTask):
        return
    for part in run.splits.parts:
        texts, labels = (map(repr, names) for names in task.find_columns(part.source))
        yield f"columns, {part.name}: {' and '.join(texts)} to read, {', '.join(labels)} to answer"


def _labels(run: FinetuningRun) -> Iterator[str]:
    for part in run.splits.parts:
        if shares := label_shares(run.task, part.rows):
            yield f"labels, {part.name}: {shares}"


def label_shares(task: Task, rows: Sequence[Row]) -> str:
    """How the answers are spread; where there are many labels, the most frequent and rarest."""
    if len(task.labels) <= _ALL or not isinstance(task, SingleLabelTask | MultiLabel):
        return task.shares(rows)
    counts = label_counts(rows, task.labels).most_common()
    shown = [f"{label} {count:,} ({count / len(rows):.1%})" for label, count in counts]
    return (
        f"{len(shown)} in all; the most frequent: {', '.join(shown[:_FREQUENT])}; "
        f"the rarest: {', '.join(shown[-_RARE:])}"
    )


def _examples(run: FinetuningRun) -> Iterator[str]:
    """Rows from the first to the last in equal steps: files are often sorted by label."""
    count = min(_SHOWN, len(run.splits.train_rows))
    places = np.linspace(0, len(run.splits.train_rows) - 1, count).round().astype(int)
    rows = [run.splits.train_rows[i] for i in places]
    encoded = run.task.encode(rows, run.builder, training=False)
    yield "examples, as the model sees them:"
    for row, example in zip(rows, encoded.examples, strict=True):
        target = shortened(run.task.preview(row), _CHARACTERS)
        lines = run.builder.shown(example)
        yield f"{target}: {lines[0]}" if len(lines) == 1 else f"{target}:"
        yield from (f"    {line}" for line in lines if len(lines) > 1)
