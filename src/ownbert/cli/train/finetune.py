"""finetune TASK: one command per task, with shared and task-specific options."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ownbert.cli import options as o
from ownbert.cli.recipe_options import recipe_command
from ownbert.language import translated
from ownbert.tables.columns import COLUMNS
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.terminal import echo
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
    "encoding",
    *("max_length", "batch_size", "from_scratch", "dropout", "freeze", "pretrain_steps"),
    *(
        "layer_gate",
        "attention_blur",
        "learning_rate",
        "layer_decay",
        "adversarial",
        "ema",
        "accumulate",
    ),
    *(
        "epochs",
        "patience",
        "measure",
        "max_steps",
        "max_minutes",
        "folds",
        "seeds",
        "search.usual",
    ),
    *("precision", "device", "log_every", "save_every", "tensorboard", "seed"),
)
# Settings that --help shows; --help-all shows all.
_COMMON = frozenset(
    {
        *(*_FIRST, *_COLUMNS, "max_length", "batch_size", "learning_rate", "epochs"),
        *("max_minutes", "folds", "search.usual", "device", "seed"),
        *("labels_per_class", "separator", "threshold", "crf", "long", "class_weights"),
        *("image_size", "flip"),
    }
)
# Settings of tasks that read single sentences or pairs.
_SENTENCE = (
    *("feature_columns", "feature_size", "pooling", "ngrams", "long", "stride", "rdrop"),
    *("mask_rate", "head_init", "baseline"),
)
# Settings of a task that has two names.
_EMBED = (
    ("pooling", "temperature", "baseline"),
    """Text vectors for search and comparison, trained on pairs of texts (also: rank).

    csv, tsv, jsonl or parquet with two columns of matching texts (query and document, anchor
    and positive, ...) and optionally one of non-matching texts (negative, hard_negative or
    neg); or with two texts and a score. From single texts (txt, a folder, or a table with one
    text column), pairs are generated: two pieces of a text, two consecutive lines, or a short
    text with itself. Compute vectors with ownbert embed or with sentence-transformers.

    Example: ownbert finetune embed --model runs/bert --train pairs.csv --dev dev.csv
    -o runs/vectors""",
)

# The settings of each task, and its text in --help.
_TASKS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "classify": (
        ("labels_per_class", "label_names", "class_weights", "label_smoothing", *_SENTENCE),
        """One label per text or pair of texts: topics, sentiment, intents, inference.

        csv, tsv, jsonl or parquet with one or two text columns and a label column.

        Example: ownbert finetune classify --model runs/bert --train train.csv --dev dev.csv
        -o runs/classifier""",
    ),
    "multilabel": (
        ("separator", "label_names", "threshold", "class_weights", *_SENTENCE),
        """Any number of labels per text or pair of texts: keywords, subjects, types of abuse.

        csv, tsv, jsonl or parquet with one or two text columns and a label column: "war|trade",
        a list, or a vector of 0 and 1. An empty cell means no labels.

        Example: ownbert finetune multilabel --model runs/bert --train train.csv --dev dev.csv
        -o runs/labels""",
    ),
    "regress": (
        ("loss", *_SENTENCE),
        """A number per text or pair of texts: ratings, similarity, readability.

        csv, tsv, jsonl or parquet with one or two text columns and a column of numbers; for
        several numbers per row, name their columns: --label-column joy,anger.

        Example: ownbert finetune regress --model runs/bert --train train.csv --dev dev.csv
        -o runs/ratings""",
    ),
    "answer": (
        ("answer_length", "threshold", "stride", "rdrop", "mask_rate"),
        """Questions answered by a span of a text: SQuAD, CMRC and similar.

        SQuAD JSON (version 1.1 or 2.0), or csv, tsv, jsonl or parquet with the columns
        question, context and answers. Long texts are read in windows.

        Example: ownbert finetune answer --model runs/bert --train train.json.gz --dev dev.json.gz
        -o runs/reader""",
    ),
    "choose": (
        ("pooling", "rdrop", "mask_rate"),
        """One of several choices for a prompt: story endings, exam questions.

        jsonl or parquet with the columns prompt, choices (a list) and label; or csv or tsv with
        one column per choice (choice0, choice1, ...). Labels are numbers, letters or the text
        of the correct choice.

        Example: ownbert finetune choose --model runs/bert --train train.tsv --dev dev.tsv
        -o runs/chooser""",
    ),
    "embed": _EMBED,
    "rank": _EMBED,
    "tag": (
        (
            *("feature_columns", "feature_size", "crf", "tag_all", "label_smoothing"),
            *("stride", "rdrop", "mask_rate"),
        ),
        """A tag per word: names of people and places, parts of speech, chunks.

        CoNLL columns (a word and its tag per line, a blank line between sentences;
        --text-column 1 --label-column 4 selects other columns), or jsonl, parquet or csv with a
        column of words and one of tags: lists, or strings separated by spaces. Entity tags are
        O, B-x, I-x, or IOBES, BILOU, BMES.

        Example: ownbert finetune tag --model runs/bert --train train.conll --dev dev.conll --crf
        -o runs/names""",
    ),
    "image": (
        (
            *("labels_per_class", "image_size", "patch", "hidden_size", "layers", "heads"),
            *("flip", "shift", "crop", "class_weights", "label_smoothing"),
        ),
        """One label per image, with a ViT: a new one or one from a folder.

        A folder with one subfolder of images per class (requires the extra vision), IDX files
        as in MNIST, or an .npz file with the arrays images and labels. Each time a training
        image is used, it is randomly shifted and, with --flip, mirrored.

        Example: ownbert finetune image --train images/train --dev images/dev
        -o runs/images""",
    ),
}
# Settings that do not apply to a task.
_NOT: Mapping[str, tuple[str, ...]] = {
    "tag": ("second_column",),
    "image": (
        *(*_COLUMNS, "encoding", "max_length", "pretrain_steps", "adversarial"),
        *("layer_gate", "attention_blur"),
    ),
}


def _column_options(task: str) -> dict[str, Any]:
    """The options for column names, whose meaning depends on the task."""
    return {
        spec.setting: Annotated[
            str | None,
            typer.Option(
                spec.option, help=spec.help, show_default=spec.default, rich_help_panel=DATA
            ),
        ]
        for spec in COLUMNS.get(task, ())
        if spec.help
    }


def _command(task: str, names: tuple[str, ...], text: str) -> Callable[..., None]:
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

            echo(translated(preview_finetuning(task, **recipe)))
            return
        about = {"resume": resume, "overwrite": overwrite, "quiet": quiet}
        finetune(task, output=o.required_output(output), **about, **recipe)

    run.__name__, run.__doc__ = task, inspect.cleandoc(text)
    every = (*_FIRST, *_COLUMNS, *names, *_LAST)
    shown = [name for name in every if name not in _NOT.get(task, ())]
    command = "embed" if task == "rank" else task
    decorate = recipe_command(
        FinetuneRecipe, shown, command=command, instead=_column_options(command), common=_COMMON
    )
    return decorate(run)


for _task, (_names, _text) in _TASKS.items():
    app.command(_task)(_command(_task, _names, _text))
