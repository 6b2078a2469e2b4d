"""finetune TASK: a command a task, with the options that all share and those of its own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from ownbert.cli import options as o
from ownbert.cli.learn import given_output

# Options of every task, by the name of the setting; in the order of --help.
_FIRST: Mapping[str, Any] = {
    "output": o.FinetunedFolder,
    "overrides": o.Overrides,
    "model": o.Model,
    "train": o.Train,
    "dev": o.Dev,
    "text_column": o.TextColumn,
    "second_column": o.SecondColumn,
    "label_column": o.LabelColumn,
}
_LAST: Mapping[str, Any] = {
    "max_length": o.MaxLength,
    "batch_size": o.BatchSize,
    "from_scratch": o.FromScratch,
    "dropout": o.Dropout,
    "freeze": o.Freeze,
    "pretrain_steps": o.PretrainSteps,
    "learning_rate": o.LearningRate,
    "layer_decay": o.LayerDecay,
    "adversarial": o.Adversarial,
    "ema": o.Ema,
    "accumulate": o.Accumulate,
    "epochs": o.Epochs,
    "patience": o.Patience,
    "measure": o.Measure,
    "max_steps": o.MaxSteps,
    "folds": o.Folds,
    "seeds": o.Seeds,
    "search": o.SearchFlag,
    "precision": o.Precision,
    "device": o.Device,
    "log_every": o.LogEvery,
    "save_every": o.SaveEvery,
    "tensorboard": o.TensorBoard,
    "resume": o.Resume,
    "overwrite": o.Overwrite,
    "seed": o.Seed,
    "config": o.Config,
    "dry_run": o.DryRun,
    "quiet": o.Quiet,
}
_FLAGS = ("from_scratch", "search", "resume", "overwrite", "dry_run", "quiet")
_SENTENCE: Mapping[str, Any] = {
    "pooling": o.Pooling,
    "long": o.Long,
    "stride": o.Stride,
    "rdrop": o.RDrop,
}

# Options of its own and what --help says, by task.
_TASKS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "classify": (
        {
            "labels_per_class": o.LabelsPerClass,
            "class_weights": o.ClassWeights,
            "label_smoothing": o.LabelSmoothing,
            **_SENTENCE,
        },
        """One label a text, or a pair of texts: topics, sentiment, intents, inference.

        csv, tsv, jsonl or parquet with a column of texts (or two) and one of labels.

        Example: ownbert finetune classify --model runs/bert --train train.csv --dev dev.csv
        -o runs/classifier""",
    ),
}


def commands() -> Mapping[str, Callable[..., None]]:
    """The command of each task by its name."""
    return {name: _command(name, own, text) for name, (own, text) in _TASKS.items()}


def _command(task: str, own: Mapping[str, Any], text: str) -> Callable[..., None]:
    """A function with a parameter an option, which is what typer makes a command of."""

    def run(**given: Any) -> None:
        _run(task, given)

    options = {**_FIRST, **own, **_LAST}
    run.__name__, run.__doc__ = task, inspect.cleandoc(text)
    run.__annotations__ = dict(options)
    keyword = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # pyright: ignore[reportFunctionMemberAccess]
        [
            inspect.Parameter(name, keyword, annotation=kind, default=_default(name))
            for name, kind in options.items()
        ]
    )
    return run


def _default(name: str) -> Any:
    return False if name in _FLAGS else None


def _run(task: str, given: dict[str, Any]) -> None:
    from ownbert.tasks.finetune import finetune
    from ownbert.train.machine import keep_memory

    keep_memory()
    given["from_scratch"] = given["from_scratch"] or None
    about = {name: given.pop(name) for name in ("output", "resume", "overwrite", "quiet")}
    recipe = {"config": given.pop("config"), "overrides": given.pop("overrides") or ()}
    if given.pop("dry_run"):
        from ownbert.tasks.preview import preview_finetuning

        print(preview_finetuning(task, **recipe, **given))
        return
    finetune(task, **{**about, "output": given_output(about["output"])}, **recipe, **given)


app = typer.Typer(help="Fine-tune a model on labelled files, by task.", no_args_is_help=True)
