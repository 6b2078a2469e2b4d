"""The tasks: what is known of each before its class is imported, one module per task."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.tables.columns import ColumnSpec

# The first tasks of --help; all others follow by name.
_FIRST = ("classify", "multilabel", "regress")
# Settings of tasks that read single sentences or pairs.
SENTENCE_SETTINGS = (
    *("feature_columns", "feature_size", "pooling", "ngrams", "long", "stride", "rdrop"),
    *("mask_rate", "head_init", "baseline", "skip_unlabelled"),
)


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What is known of a task without its class, which takes long to import.

    Args:
        task: its module and its class.
        help: text of its command.
        settings: its settings in ``FinetuneRecipe``, in the order of --help.
        without: settings of other tasks that do not apply.
        columns: columns of its files.
        pipeline: name of the task in Transformers' pipelines and on the hub.
        head: the kind of head by which a folder without a saved task is recognised, if any.
        example: inputs of a request to the server.
        files: files that it writes beside the model.
        alias: second name of its command.
    """

    task: str
    help: str
    settings: tuple[str, ...]
    without: tuple[str, ...] = ()
    columns: tuple[ColumnSpec, ...] = ()
    pipeline: str = "text-classification"
    head: str | None = None
    example: tuple[Any, ...] = ("a text",)
    files: tuple[str, ...] = ()
    alias: str = ""


@cache
def task_kinds() -> Mapping[str, TaskKind]:
    """All tasks by their names."""
    modules = {file.stem for file in Path(__file__).parent.glob("[a-z]*.py")}
    names = (*_FIRST, *sorted(modules - {*_FIRST}))
    return {name: import_module(f"{__name__}.{name}").KIND for name in names}


def task_files() -> tuple[str, ...]:
    """Files that tasks write beside the model."""
    return tuple(name for kind in task_kinds().values() for name in kind.files)


def task_kind(name: str) -> tuple[str, TaskKind]:
    """The name and the facts of a task, by its name or alias."""
    kinds = task_kinds()
    aliases = {kind.alias: task for task, kind in kinds.items() if kind.alias}
    if (known := aliases.get(name, name)) not in kinds:
        raise InputError(
            "task {name!r} is not known; use one of {kinds}", name, ", ".join([*kinds, *aliases])
        )
    return known, kinds[known]
