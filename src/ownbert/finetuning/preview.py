"""A preview of a fine-tuning run (--dry-run)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ownbert.exceptions import percent
from ownbert.files.encodings import reading_as
from ownbert.finetuning.finetune import (
    recipe_options,
    refuse_other_task,
    sources_in_memory,
    without_files,
)
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.row_checks import check_rows, label_counts
from ownbert.settings import recipe_values, resolve
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row, shortened
from ownbert.tasks.task import Task

_SHOWN = 5  # rows
# With more than _ALL labels, only the most frequent and the rarest are shown.
_ALL, _FREQUENT, _RARE = 20, 10, 5
_CHARACTERS = 200  # maximum characters of a target


def preview_finetuning(
    task: str | None = None,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """Describe what ``finetune`` would do with the same arguments.

    Returns:
        The resolved recipe, counts, columns, label distribution, lengths, suspicious rows, and
        examples as the model sees them.
    """
    refuse_other_task(task, overrides)
    sources, options = sources_in_memory(recipe_options(task, options))
    recipe = resolve(FinetuneRecipe, config=config, overrides=overrides, options=options)
    recipe = without_files(recipe, sources)
    with reading_as(recipe.data.encoding):
        return "\n".join(_preview(FinetuningRun(recipe, sources=sources)))


def _preview(run: FinetuningRun) -> list[str]:
    return [
        _settings(run),
        *run.summary(),
        *_columns(run),
        *_labels(run),
        *run.builder.describe(run.splits.train_data, run.task.unit),
        *(f"{'warning' if f.severe else 'note'}: {f.line}" for f in check_rows(*run.splits.parts)),
        *_examples(run),
    ]


def _settings(run: FinetuningRun) -> str:
    """The resolved recipe, without settings of other tasks."""
    values = recipe_values(run.recipe)
    known = run.task.uses() | {"name"}
    values["task"] = {name: value for name, value in values["task"].items() if name in known}
    if run.config.image is None:
        del values["model"]["vit"]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _columns(run: FinetuningRun) -> Iterator[str]:
    """The columns of dev rows of tasks with texts and labels in a table."""
    for part in run.splits.parts[1:]:
        others = run.splits.split.named(part.source) if part.source else {}
        if columns := run.task.describe_columns(part.source, others.values()):
            yield f"columns, {part.name}: {columns}"


def _labels(run: FinetuningRun) -> Iterator[str]:
    for part in run.splits.parts:
        if shares := label_shares(run.task, part.rows):
            yield f"labels, {part.name}: {shares}"


def label_shares(task: Task, rows: Sequence[Row]) -> str:
    """The distribution of the targets; with many labels, only the most frequent and the rarest."""
    if len(task.labels) <= _ALL or not task.counts_labels:
        return task.label_distribution(rows)
    counts = label_counts(rows, task.labels).most_common()
    shown = [f"{label} {count:,} ({percent(count / len(rows))})" for label, count in counts]
    return (
        f"{len(shown)} in all; the most frequent: {', '.join(shown[:_FREQUENT])}; "
        f"the rarest: {', '.join(shown[-_RARE:])}"
    )


def _examples(run: FinetuningRun) -> Iterator[str]:
    """Evenly spaced rows, because files are often sorted by label."""
    count = min(_SHOWN, len(run.splits.train_rows))
    indices = np.linspace(0, len(run.splits.train_rows) - 1, count).round().astype(int)
    rows = [run.splits.train_rows[i] for i in indices]
    encoded = run.task.encode(rows, run.builder, training=False)
    yield "examples, as the model sees them:"
    for row, example in zip(rows, encoded.examples, strict=True):
        target = shortened(run.task.readable_target(row), _CHARACTERS)
        lines = run.builder.preview(example)
        yield f"{target}: {lines[0]}" if len(lines) == 1 else f"{target}:"
        yield from (f"    {line}" for line in lines if len(lines) > 1)
