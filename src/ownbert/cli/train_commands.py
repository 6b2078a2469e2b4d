"""Commands that train models: fit, pretrain, finetune, probe."""

import time
from pathlib import Path
from typing import Any

import typer

from ownbert import limits
from ownbert.checks import between
from ownbert.cli import options as o
from ownbert.cli.command import RecipeOptions, argument, command_function
from ownbert.exceptions import InputError
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.settings import changed, same_setting, setting
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.kinds import KINDS, TaskKind
from ownbert.terminal import echo, say
from ownbert.train.training_settings import DATA, RUN

_FIT_SETTINGS = (
    *("dev", "test", "labels_per_class", "text_column", "second_column", "label_column"),
    *("group", "time_column"),
    *("label_separator", "label_names", "positive", "threshold"),
    *("skip_unlabelled", "encoding", "task"),
    *("metric", "model", "size", "seeds", "minutes", "seed", "device"),
)
# Settings that only --help-all shows.
_FIT_RARE = {
    *("label_separator", "label_names", "skip_unlabelled", "second_column", "seeds"),
    *("encoding", "size", "positive", "threshold"),
}


class FitCommand(o.Quiet):
    """Find the best model for labelled texts, helped by unlabelled ones, within a time limit.

    Fits linear models and networks, compares them on held-out rows and blends them. A network
    distilled from the blend is saved as an ordinary Hugging Face folder. predict and evaluate
    use the blend, or only the network with --network. The task (one label per text, several
    labels, or numbers), the kind of text and the columns are detected from the file. Ctrl-C
    keeps the best model so far, and --resume continues; report.html in the folder shows how
    good it is.

    Example: ownbert fit train.csv --unlabelled corpus.txt --minutes 20 -o best
    """

    keeps_memory = True

    train: Path = argument(..., "Labelled rows: csv, tsv, jsonl or parquet, plain or .gz.")
    unlabelled: list[Path] | None = setting(
        None,
        "Unlabelled texts of the same kind: a file (.txt: one text per line), a folder or a glob; "
        "can be repeated.",
        DATA,
    )
    add: list[Path] | None = setting(
        None,
        "Additional labelled rows: a filled-in file from ownbert label, or a JSON export from "
        "Label Studio. Rows without a label are skipped; a label given here replaces the training "
        "label of the same text.",
        DATA,
    )
    output: Path | None = o.Training.output
    settings: Any = RecipeOptions(
        FitRecipe, _FIT_SETTINGS, "fit", common={*_FIT_SETTINGS} - _FIT_RARE
    )
    resume: bool = setting(False, "Resume a stopped run.", RUN)
    overwrite: bool = o.OVERWRITE
    replay: Path | None = setting(
        None,
        "Repeat the steps of the finished run in this folder, not by the clock: the same result, "
        "to the bit.",
        RUN,
    )
    dry_run: bool = setting(
        False, "Print what the files contain and which models would be fitted, then exit."
    )
    debug: bool = setting(
        False, "Show the traceback of a failed step; the run continues without that step."
    )

    def run(self) -> None:
        started = time.monotonic()  # importing torch counts towards the minutes

        from ownbert.fitting.fit import fit_folder, preview_fit

        files = {"unlabelled": self.unlabelled or (), "add": self.add or None}
        given = {**files, "replay": self.replay, **self.settings}
        if self.dry_run:
            say(preview_fit(self.train, **given))
            return
        how = self.given("settings", "dry_run", *given)
        fit_folder(**how, **given, started=started)


_PRETRAIN_SETTINGS = (
    *("size", "init_embeddings", "init_positions", "init_from", "init_counts", "dropout"),
    *("feature_size", "objectives", "masking", "mask_rate", "max_length", "batch_tokens"),
    *("held_out", "canaries", "learning_rate", "accumulate"),
    *("max_steps", "max_minutes", "precision", "device", "log_every", "eval_every", "save_every"),
    *("tensorboard", "seed"),
)
# Settings that --help shows; --help-all shows all.
_PRETRAIN_COMMON = {
    *("size", "init_from", "objectives", "max_length", "batch_tokens", "learning_rate"),
    *("max_steps", "max_minutes", "device", "seed"),
}


class PretrainCommand(o.Training):
    """Pretrain a model on a token store, with masked words or other --objectives.

    Writes the model (an ordinary Hugging Face folder), log.jsonl, curves.png, recipe.yaml and
    saved states to resume from.

    Example: ownbert pretrain runs/tokens --size mini --max-minutes 30 -o runs/bert
    """

    tokens: Path | None = argument(None, "Token store written by ownbert prepare.")
    settings: Any = RecipeOptions(
        PretrainRecipe, _PRETRAIN_SETTINGS, "pretrain", common=_PRETRAIN_COMMON
    )
    resume_step: int | None = setting(
        None, "Resume from the saved state of this step.", RUN, check=between(0, limits.STEPS, "[]")
    )

    def run(self) -> None:
        from ownbert.pretraining.pretraining_run import pretrain, preview_pretraining

        tokens = self.tokens
        # The first argument is the store unless it is an override for a recipe that names it.
        if tokens is not None and "=" in str(tokens) and not tokens.exists():
            self.overrides, tokens = [str(tokens), *(self.overrides or [])], None
        if self.dry_run:
            say(preview_pretraining(tokens, **self.recipe))
        elif self.output is not None:
            how = {**self.how, "resume_step": self.resume_step}
            pretrain(tokens, self.output, **how, **self.recipe)


finetune_app = typer.Typer(
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
_COMMON = {
    *(*_FIRST, *_COLUMNS, "group", "time_column", "max_length", "batch_size"),
    *("learning_rate", "epochs", "max_minutes", "folds", "search.usual", "device", "seed"),
    *("labels_per_class", "threshold", "crf", "long", "class_weights"),
    *("image_size", "flip"),
}


def _finetuning_options(task: str, kind: TaskKind) -> RecipeOptions:
    names = (*_FIRST, *_COLUMNS, *kind.settings, *_LAST)
    return RecipeOptions(
        FinetuneRecipe,
        [name for name in names if name not in kind.without],
        task,
        # The meaning of columns depends on the task.
        changes={
            spec.setting: {
                "help": spec.help,
                "option": spec.option,
                "shown": spec.default,
                "panel": DATA,
            }
            for spec in kind.columns
            if spec.help
        },
        # Of two labels, the most probable one is usual.
        common=_COMMON - ({"threshold"} if task in ("classify", "image") else set()),
    )


def finetuning_command(task: str, kind: TaskKind) -> type[o.Training]:
    class Finetune(o.Training):
        settings: Any = _finetuning_options(task, kind)

        def run(self) -> None:
            from ownbert.finetuning.finetune import finetune, preview_finetuning

            if self.dry_run:
                say(preview_finetuning(task, **self.recipe))
            else:
                finetune(task, output=self.output, **self.how, **self.recipe)

    Finetune.__doc__ = kind.help
    return Finetune


for _task, _kind in KINDS.items():
    for _name in filter(None, (_task, _kind.alias)):
        _function = command_function(finetuning_command(_task, _kind))
        finetune_app.command(_name, hidden=_name != _task)(_function)


class ProbeCommand(o.Quiet):
    """Measure how good a network's vectors are, with a linear model on the frozen network.

    This takes seconds and often comes close to fine-tuning; ownbert fit includes it among its
    candidates. The folder works with predict and evaluate. With --layers, a separate linear
    model per layer shows which layers encode the labels.

    Example: ownbert probe runs/bert --train train.csv -o runs/probe

    Example: ownbert probe runs/bert --train train.csv --dev dev.csv --layers --png layers.png
    """

    keeps_memory = True

    model: Path = argument(..., "Folder of the network; it is not modified.")
    train: Path = setting(..., "Labelled rows: csv, tsv, jsonl or parquet, plain or .gz.")
    output: Path | None = setting(None, "Folder for the result.")
    dev: Path | None = setting(
        None, "Labelled rows to evaluate on.", shown="part of the training rows, or folds of them"
    )
    task: str | None = setting(
        None, "classify, multilabel or regress.", shown="detected from the labels"
    )
    group: str | None = same_setting(FitRecipe, "group", panel=None)
    time_column: str | None = same_setting(FitRecipe, "time_column", panel=None)
    layers: bool = setting(False, "Compare the vectors of all layers instead; writes no folder.")
    png: Path | None = setting(
        None, "With --layers: plot the comparison into this file.", needs=("layers",)
    )
    seed: int = changed(o.SEED, help="Seed for the folds.")
    text_column: str | None = changed(o.TEXT_COLUMN, help="Column with the texts.")
    second_column: str | None = changed(
        o.TEXT_COLUMN, help="Column with the second texts of pairs."
    )
    label_column: str | None = changed(o.TEXT_COLUMN, help="Column with the labels or numbers.")
    encoding: str | None = o.ENCODING
    overwrite: bool = o.OVERWRITE

    def run(self) -> None:
        from ownbert.fitting.network_probe import probe

        if self.layers:
            if self.output is not None:
                raise InputError("{--layers} writes no folder: omit {-o}")
            self._compare_layers()
            return
        if self.output is None:
            raise InputError("{-o} is needed: the folder for the result; or use {--layers}")
        given = self.given("layers", "png", "encoding", "quiet")
        scores, source = probe(**given, say=None if self.quiet else self.note)
        if not self.quiet:
            saved = translated("saved {output}", self.output)
            metrics = "   ".join(o.named_metrics(scores.values))
            echo(f"{translated(source)}: {metrics}\n{saved}")

    def _compare_layers(self) -> None:
        from ownbert.figures import figure_class
        from ownbert.fitting.network_probe import draw_layers, probe_layers
        from ownbert.train.metric_names import shown_name

        if self.png is not None:
            figure_class(self.png)
        scores, source = probe_layers(
            self.model,
            self.train,
            columns=ColumnNames(self.text_column, self.second_column, self.label_column),
            **self.values("dev", "task", "group", "time_column", "seed"),
            say=None if self.quiet else self.note,
        )
        names = list(scores[0].values)
        if not self.quiet:
            echo(f"{translated(source)}:")
            for layer, found in enumerate(scores):
                metrics = o.named_metrics({name: found.values[name] for name in names})
                place = translated(Message("layer {count}", layer) if layer else "embeddings")
                echo("   ".join((f"  {place}", *metrics)))
        if self.png is not None:
            values = [found.values[names[0]] for found in scores]
            draw_layers(values, shown_name(names[0]), self.png)
            say("saved {output}", self.png)
