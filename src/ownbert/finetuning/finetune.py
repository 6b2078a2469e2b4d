"""Entry point of fine-tuning: one training, an ensemble, a search, or a preview (--dry-run)."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from ownbert.exceptions import InputError, explaining_memory, in_short, percent
from ownbert.files.encodings import reading_as
from ownbert.files.folders import writing
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import Sources
from ownbert.finetuning.row_checks import check_rows, label_counts
from ownbert.language.messages import Message, join
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.settings import accepts_settings, recipe_values, resolve
from ownbert.tables.columns import with_label_columns
from ownbert.tables.texts_or_files import rows_by_other_names
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneRecipe
from ownbert.tasks.rows import Row, shortened
from ownbert.tasks.task import Task, load_finetuned, task_class
from ownbert.train.display import Display
from ownbert.train.distributed import under_torchrun
from ownbert.train.loop import Callbacks

if TYPE_CHECKING:
    from ownbert.finetuning.several_runs import Ensemble

_SHOWN = 5  # rows of a preview
# With more than _ALL labels, only the most frequent and the rarest are shown.
_ALL, _FREQUENT, _RARE = 20, 10, 5
_CHARACTERS = 200  # maximum characters of a target


@accepts_settings(FinetuneRecipe)
@in_float32
def finetune(
    task: str | None = None,
    *,
    output: str | Path | None = None,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    callbacks: Callbacks | None = None,
    **options: Any,
) -> "Model | Ensemble":
    """Fine-tune a model folder on labelled rows and save the best weights in ``output``.

    Args:
        task: name of a module in ``ownbert.tasks.kinds`` ("classify" by default).
        output: folder for the model.
        config: recipe file.
        overrides: settings as "section.name=value".
        resume: continue the run in ``output``.
        overwrite: replace the run in ``output``.
        quiet: print nothing.
        callbacks: functions to call with each row of the log, evaluation and saved model, of every
            member if several models are trained.
        options: settings of ``FinetuneRecipe`` by name: ``model`` (the folder), ``train``, ``dev``,
            ``epochs``, ... ``train`` and ``dev`` are files or rows in memory: a DataFrame, a
            datasets.Dataset, a list of mappings, a mapping of columns, (texts, labels), a list of
            (text, label); for "image" also (images, labels).

    Returns:
        The model, or an ``Ensemble`` if ``folds`` or ``seeds`` is set.

    Raises:
        InputError: files, labels or settings cannot be used; nothing has been written.
    """
    if under_torchrun():
        raise InputError("fine-tuning runs in one process; start it without torchrun")
    if output is None:
        raise InputError('output is needed: the folder for the model, as in output="runs/model"')
    train, labels = rows_by_other_names(options.get("train"), options.pop("labels", None), options)
    if train is not None:
        options["train"] = train if labels is None else (train, labels)
    with writing(output), contextlib.ExitStack() as stack:
        folder = FinetuneFolder(output, resume=resume, overwrite=overwrite)
        recipe, sources = _recipe(
            task, overrides, options, folder.resolve_finetuning, config=config
        )
        if resume and folder.finished:
            Display("finetune", quiet=quiet).say(
                "{output} is finished: nothing is left to do; start over with {--overwrite}", output
            )
            return load_finetuned(folder.path)[1]
        stack.enter_context(reading_as(recipe.data.encoding))
        run = FinetuningRun(recipe, sources=sources)
        stack.enter_context(explaining_memory(lambda: run.sizes))
        run.callbacks = callbacks or run.callbacks
        run.check_adapting()
        if recipe.search.requested:
            from ownbert.finetuning.several_runs import search

            return search(run, folder, quiet=quiet)
        if recipe.run.folds or recipe.run.seeds:
            from ownbert.finetuning.several_runs import train_ensemble

            return train_ensemble(run, folder, quiet=quiet)
        if recipe.model.pretrain_steps:
            run.check_model()
            run.reserve(folder)
            run.adapt(folder, quiet=quiet)
        return run.train(folder, quiet=quiet)


def recipe_options(task: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options keyed by their names in a recipe."""
    options = with_label_columns(options)
    named = {("model.folder" if k == "model" else k): v for k, v in options.items()}
    if named.pop("search", False):  # a command-line flag
        named["search.usual"] = True
    if task is not None:
        named["task.name"] = task_class(task).name
    return {k: str(v) if isinstance(v, Path) else v for k, v in named.items()}


def _recipe(
    task: str | None,
    overrides: Sequence[str],
    options: Mapping[str, Any],
    resolve: Callable[..., FinetuneRecipe],
    **more: Any,
) -> tuple[FinetuneRecipe, Sources]:
    """The recipe, without the names of temporary files for rows in memory, and these rows."""
    for override in overrides:
        name, _, value = (part.strip() for part in override.partition("="))
        if task is not None and name == "task.name" and value != task_class(task).name:
            raise InputError(
                "task.name is {value}, but the task is {task}; omit one of them",
                in_short(value),
                task,
            )
    options = recipe_options(task, options)
    in_memory = {
        name: options.pop(name)
        for name in ("train", "dev")
        if not isinstance(options.get(name), str | None)
    }
    recipe = resolve(overrides=overrides, options=options, **more)
    none = {name: getattr(FinetuneData(), name) for name in in_memory}
    recipe = replace(recipe, data=replace(recipe.data, **none))
    return recipe, (in_memory.get("train"), in_memory.get("dev"))


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
    recipe, sources = _recipe(
        task, overrides, options, partial(resolve, FinetuneRecipe), config=config
    )
    with reading_as(recipe.data.encoding):
        run = FinetuningRun(recipe, sources=sources)
        lines = [_settings(run), *run.summary()]
        for part in run.splits.parts[1:]:
            others = run.splits.split.named(part.source) if part.source else {}
            if columns := run.task.describe_columns(part.source, others.values()):
                lines.append(Message("columns, {name}: {columns}", part.name, columns))
        for part in run.splits.parts:
            if shares := label_shares(run.task, part.rows):
                lines.append(Message("labels, {name}: {shares}", part.name, shares))
        lines += run.builder.describe(run.splits.train_data, run.task.unit)
        for finding in check_rows(*run.splits.parts):
            lines.append(("warning: " if finding.severe else "note: ") + finding.line)
        return join([*lines, *_examples(run)], "\n")


def _settings(run: FinetuningRun) -> str:
    """The resolved recipe, without settings of other tasks."""
    values = recipe_values(run.recipe)
    known = run.task.uses() | {"name"}
    values["task"] = {name: value for name, value in values["task"].items() if name in known}
    if run.config.image is None:
        del values["model"]["vit"]
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def label_shares(task: Task, rows: Sequence[Row]) -> str:
    """The distribution of the targets; with many labels, only the most frequent and the rarest."""
    if len(task.labels) <= _ALL or not task.counts_labels:
        return task.label_distribution(rows)
    counts = label_counts(rows, task.labels).most_common()
    shown = [f"{label} {count:,} ({percent(count / len(rows))})" for label, count in counts]
    return Message(
        "{count} in all; the most frequent: {frequent}; the rarest: {rare}",
        *(len(shown), shown[:_FREQUENT], shown[-_RARE:]),
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
