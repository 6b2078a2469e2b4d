"""finetune TASK: a command a task, with the options that all share and those of its own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import typer

from ownbert.cli import options as o
from ownbert.cli import picture_options as pictures
from ownbert.cli import task_options as own
from ownbert.cli.column_options import COLUMNS
from ownbert.cli.learn import given_output

# Options of every task, by the name of the setting; in the order of --help.
_FIRST: Mapping[str, Any] = {
    "output": o.FinetunedFolder,
    "overrides": o.Overrides,
    "model": o.Model,
    "train": o.Train,
    "dev": o.Dev,
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
    "measure": own.Measure,
    "max_steps": o.MaxSteps,
    "folds": own.Folds,
    "seeds": own.Seeds,
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
    "pooling": own.Pooling,
    "long": own.Long,
    "stride": own.Stride,
    "rdrop": own.RDrop,
}
# Two names of one task.
_EMBED: tuple[Mapping[str, Any], str] = (
    {"pooling": own.EmbedPooling, "temperature": own.Temperature},
    """Vectors of texts for search and comparison, learnt from pairs of texts (also: rank).

    csv, tsv, jsonl or parquet with two columns of texts that belong together (query and document,
    anchor and positive, ...), and maybe one of texts that do not (negative, hard_negative or neg);
    or with two texts and a score. Vectors are then made by ownbert embed, and by
    sentence-transformers.

    Example: ownbert finetune embed --model runs/bert --train pairs.csv --dev dev.csv
    -o runs/vectors""",
)

# Options of its own and what --help says, by task.
_TASKS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "classify": (
        {
            "labels_per_class": own.LabelsPerClass,
            "class_weights": own.ClassWeights,
            "label_smoothing": own.LabelSmoothing,
            **_SENTENCE,
        },
        """One label a text, or a pair of texts: topics, sentiment, intents, inference.

        csv, tsv, jsonl or parquet with a column of texts (or two) and one of labels.

        Example: ownbert finetune classify --model runs/bert --train train.csv --dev dev.csv
        -o runs/classifier""",
    ),
    "multilabel": (
        {
            "separator": own.Separator,
            "threshold": own.LabelThreshold,
            "class_weights": own.ClassWeights,
            **_SENTENCE,
        },
        """Any number of labels a text, or a pair of texts: keywords, subjects, kinds of abuse.

        csv, tsv, jsonl or parquet with a column of texts (or two) and one of labels: a cell such
        as "war|trade", or a JSON list. An empty cell says that none holds.

        Example: ownbert finetune multilabel --model runs/bert --train train.csv --dev dev.csv
        -o runs/labels""",
    ),
    "regress": (
        {"loss": own.RegressionLoss, **_SENTENCE},
        """A number a text, or a pair of texts: ratings, similarity, readability.

        csv, tsv, jsonl or parquet with a column of texts (or two) and one of numbers; for several
        numbers name their columns: --label-column joy,anger.

        Example: ownbert finetune regress --model runs/bert --train train.csv --dev dev.csv
        -o runs/ratings""",
    ),
    "answer": (
        {
            "answer_length": own.AnswerLength,
            "threshold": own.AnswerThreshold,
            "stride": own.Stride,
            "rdrop": own.RDrop,
        },
        """Questions whose answer stands in a text: SQuAD, CMRC and the like.

        SQuAD's JSON (version 1.1 or 2.0), or csv, tsv, jsonl or parquet with the columns question,
        context and answers. Long texts are read in windows.

        Example: ownbert finetune answer --model runs/bert --train train.json.gz --dev dev.json.gz
        -o runs/reader""",
    ),
    "choose": (
        {"pooling": own.Pooling, "rdrop": own.RDrop},
        """One of several choices that go with a prompt: endings of stories, exam questions.

        jsonl or parquet with the columns prompt, choices (a list) and label; or csv or tsv with a
        column a choice (choice0, choice1, ...). Labels are numbers, letters or the right text.

        Example: ownbert finetune choose --model runs/bert --train train.tsv --dev dev.tsv
        -o runs/chooser""",
    ),
    "embed": _EMBED,
    "rank": _EMBED,
    "tag": (
        {
            "crf": own.Crf,
            "tag_all": own.TagAll,
            "label_smoothing": own.LabelSmoothing,
            "stride": own.TagStride,
            "rdrop": own.RDrop,
        },
        """A tag a word: names of people and places, parts of speech, chunks.

        CoNLL columns (a word and its tag a line, a blank line between sentences; --text-column 1
        --label-column 4 chooses others), or jsonl, parquet or csv with a column of words and one
        of tags: lists, or texts with blanks between them. The tags of entities are O, B-x, I-x,
        or IOBES, BILOU, BMES.

        Example: ownbert finetune tag --model runs/bert --train train.conll --dev dev.conll --crf
        -o runs/names""",
    ),
    "image": (pictures.OPTIONS, pictures.HELP),
}


def commands() -> Mapping[str, Callable[..., None]]:
    """The command of each task by its name."""
    return {name: _command(name, options, text) for name, (options, text) in _TASKS.items()}


def _command(task: str, further: Mapping[str, Any], text: str) -> Callable[..., None]:
    """A function with a parameter an option, which is what typer makes a command of."""

    def run(**given: Any) -> None:
        _run(task, given)

    # What is further may also take the place of what all tasks have.
    every = {**_FIRST, **COLUMNS.get(task, {}), **further, **_LAST, **further}
    options = {name: option for name, option in every.items() if option is not None}
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
    from ownbert.finetuning.finetune import finetune
    from ownbert.train.device import keep_memory

    keep_memory()
    given["from_scratch"] = given["from_scratch"] or None
    about = {name: given.pop(name) for name in ("output", "resume", "overwrite", "quiet")}
    recipe = {"config": given.pop("config"), "overrides": given.pop("overrides") or ()}
    if given.pop("dry_run"):
        from ownbert.finetuning.preview import preview_finetuning

        print(preview_finetuning(task, **recipe, **given))
        return
    finetune(task, **{**about, "output": given_output(about["output"])}, **recipe, **given)


app = typer.Typer(help="Fine-tune a model on labelled files, by task.", no_args_is_help=True)
