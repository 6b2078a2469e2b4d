"""Entry point of fine-tuning: a single training, an ensemble, or a search."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.exceptions import InputError, explaining_memory, in_short
from ownbert.files.encodings import reading_as
from ownbert.files.folders import writing
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import Sources
from ownbert.nn.default_dtype import in_float32
from ownbert.nn.model import Model
from ownbert.settings import accepts_settings
from ownbert.tables.columns import with_label_columns
from ownbert.tables.texts_or_files import rows_by_other_names
from ownbert.tasks.finetune_recipe import FinetuneData, FinetuneRecipe
from ownbert.tasks.task import load_finetuned, task_class
from ownbert.train.distributed import under_torchrun
from ownbert.train.watch.callbacks import Callbacks
from ownbert.train.watch.display import Display

if TYPE_CHECKING:
    from ownbert.finetuning.ensemble import Ensemble


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
    refuse_other_task(task, overrides)
    train, labels = rows_by_other_names(options.get("train"), options.pop("labels", None), options)
    if train is not None:
        options["train"] = train if labels is None else (train, labels)
    with writing(output), contextlib.ExitStack() as stack:
        folder = FinetuneFolder(output, resume=resume, overwrite=overwrite)
        sources, options = sources_in_memory(recipe_options(task, options))
        recipe = folder.resolve_finetuning(config=config, overrides=overrides, options=options)
        recipe = without_files(recipe, sources)
        if resume and folder.finished:
            Display("finetune", quiet=quiet).say(
                f"{output} is finished: nothing is left to do; start over with --overwrite"
            )
            return load_finetuned(folder.path)[1]
        stack.enter_context(reading_as(recipe.data.encoding))
        run = FinetuningRun(recipe, sources=sources)
        stack.enter_context(explaining_memory(lambda: run.sizes))
        run.callbacks = callbacks or run.callbacks
        run.check_adapting()
        if recipe.search.requested:
            from ownbert.finetuning.grid_search import search

            return search(run, folder, quiet=quiet)
        if recipe.run.folds or recipe.run.seeds:
            from ownbert.finetuning.ensemble import train_ensemble

            return train_ensemble(run, folder, quiet=quiet)
        if recipe.model.pretrain_steps:
            run.check_model()
            run.reserve(folder)
            run.adapt(folder, quiet=quiet)
        return run.train(folder, quiet=quiet)


def refuse_other_task(task: str | None, overrides: Sequence[str]) -> None:
    """Check that no override names another task than ``task``.

    Raises:
        InputError: an override does.
    """
    for override in overrides:
        name, _, value = (part.strip() for part in override.partition("="))
        if task is not None and name == "task.name" and value != task_class(task).name:
            raise InputError(
                "task.name is {value}, but the task is {task}; omit one of them",
                in_short(value),
                task,
            )


def recipe_options(task: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options keyed by their names in a recipe."""
    options = with_label_columns(options)
    named = {("model.folder" if k == "model" else k): v for k, v in options.items()}
    if named.pop("search", False):  # a command-line flag
        named["search.usual"] = True
    if task is not None:
        named["task.name"] = task_class(task).name
    return {k: str(v) if isinstance(v, Path) else v for k, v in named.items()}


def sources_in_memory(options: Mapping[str, Any]) -> tuple[Sources, dict[str, Any]]:
    """The training and dev rows that are in memory (None for files), and the other options."""
    names = ("train", "dev")
    given = {name: options[name] for name in names if not isinstance(options.get(name), str | None)}
    others = {name: value for name, value in options.items() if name not in given}
    return (given.get("train"), given.get("dev")), others


def without_files(recipe: FinetuneRecipe, sources: Sources) -> FinetuneRecipe:
    """The recipe without the names of temporary files for rows in memory."""
    none, data = FinetuneData(), recipe.data
    if sources[0] is not None:
        data = replace(data, train=none.train)
    if sources[1] is not None:
        data = replace(data, dev=none.dev)
    return replace(recipe, data=data)
