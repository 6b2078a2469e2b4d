"""finetune TASK: one command per task, with shared and task-specific options."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ownbert.cli import options as o
from ownbert.cli.recipe_options import recipe_command
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.kinds import TaskKind, task_kinds
from ownbert.terminal import say
from ownbert.train.training_settings import DATA

app = typer.Typer(
    name="finetune",
    help="Fine-tune a model for a task on labelled files.",
    no_args_is_help=True,
    add_completion=False,
)

# Settings of every task, which --help lists before those of the task.
_FIRST = ("model.folder", "train", "dev")
_COLUMNS = ("text_column", "second_column", "label_column")
_LAST = (
    *("group", "time_column", "encoding"),
    *("max_length", "batch_size", "from_scratch", "dropout", "freeze", "pretrain_steps"),
    *("layer_gate", "attention_blur", "learning_rate", "layer_decay", "adversarial", "ema"),
    *("accumulate", "epochs", "patience", "measure", "max_steps", "max_minutes", "folds"),
    *("seeds", "search.usual", "precision", "device", "log_every", "save_every", "tensorboard"),
    "seed",
)
# Settings that --help shows; --help-all shows all.
_COMMON = frozenset(
    {
        *(*_FIRST, *_COLUMNS, "group", "time_column", "max_length", "batch_size"),
        *("learning_rate", "epochs", "max_minutes", "folds", "search.usual", "device", "seed"),
        *("labels_per_class", "threshold", "crf", "long", "class_weights"),
        *("image_size", "flip"),
    }
)


def _column_options(kind: TaskKind) -> dict[str, Any]:
    """The options for column names, whose meaning depends on the task."""
    return {
        spec.setting: Annotated[
            str | None,
            typer.Option(
                spec.option, help=spec.help, show_default=spec.default, rich_help_panel=DATA
            ),
        ]
        for spec in kind.columns
        if spec.help
    }


def _command(task: str, name: str, kind: TaskKind) -> Callable[..., None]:
    def run(
        *,
        output: o.Output = None,
        overrides: o.Overrides = None,
        settings: dict[str, Any],
        resume: o.Resume = False,
        overwrite: o.Overwrite = False,
        config: o.Config = None,
        dry_run: o.DryRun = False,
        quiet: o.Quiet = False,
    ) -> None:
        from ownbert.finetuning.finetune import finetune
        from ownbert.train.device import keep_memory

        keep_memory()
        recipe = {"config": config, "overrides": overrides or (), **settings}
        if dry_run:
            from ownbert.finetuning.preview import preview_finetuning

            say(preview_finetuning(task, **recipe))
            return
        run_options = {"resume": resume, "overwrite": overwrite, "quiet": quiet}
        finetune(task, output=o.required_output(output), **run_options, **recipe)

    run.__name__, run.__doc__ = name, inspect.cleandoc(kind.help)
    all_settings = (*_FIRST, *_COLUMNS, *kind.settings, *_LAST)
    decorate = recipe_command(
        FinetuneRecipe,
        [setting for setting in all_settings if setting not in kind.without],
        command=task,
        instead=_column_options(kind),
        # Of two labels, the most probable one is usual.
        common=_COMMON - ({"threshold"} if task in ("classify", "image") else set()),
    )
    return decorate(run)


for _task, _kind in task_kinds().items():
    for _name in filter(None, (_task, _kind.alias)):
        app.command(_name, hidden=_name != _task)(_command(_task, _name, _kind))
