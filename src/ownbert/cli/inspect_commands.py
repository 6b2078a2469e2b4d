"""Commands that look inside models, data and runs: describe, trace, heads, runs, errors, compare,
drift, audit."""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from ownbert import limits
from ownbert.checks import between, known
from ownbert.cli import options as o
from ownbert.cli.command import argument
from ownbert.exceptions import InputError
from ownbert.settings import changed, setting
from ownbert.tables.columns import ColumnNames
from ownbert.terminal import console, echo, say


class DescribeCommand(o.Command):
    """Show the structure of a model: heads, positions, shared weights, parameters by part.

    Only config.json is required in the folder.

    Example: ownbert describe runs/bert "12 7 845 9"
    """

    folder: Path = o.MODEL_FOLDER
    text: str | None = argument(None, "Show the shape of every step for this text.")
    tokens: int | None = setting(
        None,
        "Show the shapes for this many tokens instead of a text.",
        check=between(1, limits.LENGTH, "[]"),
    )
    json: bool = o.JSON

    def run(self) -> None:
        from ownbert.hub import model_folder
        from ownbert.inference.blend import network_note
        from ownbert.inspect.describe import describe, show

        overview = describe(self.folder, self.text, tokens=self.tokens)
        if (note := network_note(model_folder(self.folder))) is not None:
            say("note: {line!t}", note, err=True)
        if self.json:
            echo(json.dumps(overview.as_json(), ensure_ascii=False, indent=2))
        else:
            show(overview, console())


class TraceCommand(o.Command):
    """Show self-attention step by step: queries, keys, values, scores, weights, outputs.

    Without a folder, shows a worked example with three tokens, or the numbers in --inputs.

    Example: ownbert trace runs/bert "12 7 845 9" --layer 1 --head 1 --html page.html
    """

    folder: Path | None = argument(None, "Model folder; without one, the worked example.")
    text: str | None = argument(None, "Text to trace.")
    layer: int = setting(
        0, "Layer of the model, counted from 0.", check=between(0, limits.LAYERS, "[]")
    )
    head: int = setting(
        0, "Head of the layer, counted from 0.", check=between(0, limits.WIDTH, "[]")
    )
    inputs: Path | None = setting(
        None, "JSON or npz with inputs (T x D), query, key and value (D x K)."
    )
    scale: bool = setting(False, "Divide the scores by sqrt(K), as models do.")
    digits: int | None = setting(
        None,
        "Round the weights to this many decimals, each row still summing to 1.",
        option="--round",
        check=between(0, limits.DECIMALS, "[]"),
    )
    html: Path | None = setting(
        None,
        "Write a page with every number and how it is computed; for a model, also the attention "
        "of all heads.",
    )
    json: bool = o.JSON

    def run(self) -> None:
        from ownbert.inspect.trace.trace import show, write_page

        inside = None
        if self.folder is None:
            result = self._trace_numbers()
        else:
            if self.inputs is not None or self.scale or self.digits is not None:
                raise InputError(
                    "{--inputs}, {--scale} and {--round} are for numbers without a model"
                )
            if self.text is None:
                raise InputError('a text is needed: ownbert trace FOLDER "the text"')
            from ownbert.inspect.trace.model_trace import trace_and_observe, trace_folder

            place = self.folder, self.text, self.layer, self.head
            if self.html is None:
                result = trace_folder(*place)
            else:
                result, inside = trace_and_observe(*place)
        if self.html is not None:
            write_page(result, self.html, inside=inside)
            say("saved {output}", self.html, err=True)
        if self.json:
            echo(json.dumps(result.as_json(), ensure_ascii=False))
        elif self.html is None:
            show(result, console())

    def _trace_numbers(self) -> Any:
        """Trace the worked example, or the numbers in a file."""
        from ownbert.inspect.trace.trace import EXAMPLE, read_inputs, trace_attention

        if self.layer or self.head:
            raise InputError("{--layer} and {--head} apply to a model; name its folder and a text")
        matrices = EXAMPLE if self.inputs is None else read_inputs(self.inputs)
        return trace_attention(**matrices, scale=self.scale, digits=self.digits)


class HeadsCommand(o.Command):
    """Measure the importance of each attention head of a model, and prune the least important
    ones.

    The importance of a head is the expected sensitivity of the loss to its output, normalised
    per layer, or the increase in loss when the head is masked. --prune removes the least
    important heads in rounds, --drop-layers removes whole layers; both show the score and speed
    of the remaining model. Transformers can load the resulting folder, and ownbert finetune
    --model can train it further.

    Example: ownbert heads runs/clf dev.csv

    Example: ownbert heads runs/clf dev.csv --prune 0.5 -o runs/clf-pruned --png pruned.png

    Example: ownbert heads runs/clf dev.csv --drop-layers 1 -o runs/clf-small
    """

    folder: Path = o.FINETUNED_FOLDER
    file: Path = argument(..., "Labelled rows, such as dev rows.")
    by: str = setting(
        "gradient",
        "gradient (one pass), or masking: the increase in loss without each single head (one pass "
        "per head).",
        without=("prune", "drop_layers"),
    )
    prune: float | None = setting(
        None,
        "Prune this share of the heads, the least important first, and save the remaining model.",
        shown="none",
        check=between(0, 1, "[]"),
    )
    rounds: int = setting(
        5,
        "With --prune: number of rounds.",
        check=between(1, limits.LAYERS, "[]"),
        needs=("prune",),
    )
    drop_layers: int | None = setting(
        None,
        "Drop this many layers instead, from the top, one by one.",
        shown="none",
        check=between(1, limits.LAYERS, "[]"),
    )
    train: Path | None = setting(
        None,
        "Labelled rows for fine-tuning the remaining model after each round.",
        needs=("prune", "drop_layers"),
    )
    epochs: int = setting(
        1,
        "With --train: number of passes over its rows.",
        check=between(1, limits.EPOCHS, "[]"),
        needs=("train",),
    )
    output: Path | None = setting(None, "Folder for the pruned model.")
    png: Path | None = setting(None, "Plot the table, or the rounds, into this file.")
    rows: int = setting(
        1000,
        "Number of rows to use, starting with the first.",
        check=between(1, limits.COUNT, "[]"),
    )
    json: bool = o.JSON
    text_column: str | None = o.TASK_TEXT
    second_column: str | None = o.TASK_SECOND
    label_column: str | None = o.TASK_LABEL
    encoding: str | None = o.ENCODING
    device: str = o.DEVICE

    def run(self) -> None:
        from ownbert.figures import figure_class
        from ownbert.hub import model_folder
        from ownbert.inference.blend import network_note
        from ownbert.inspect.pruning import gradient_importance, masking_importance

        measures = {"gradient": gradient_importance, "masking": masking_importance}
        known(*measures)("by", self.by)
        if self.prune is not None and self.drop_layers is not None:
            raise InputError("{--prune} and {--drop-layers} cannot be combined; use one of them")
        pruned = self.prune if self.drop_layers is None else self.drop_layers
        if (pruned is None) != (self.output is None):
            raise InputError("{--prune} and {--drop-layers} require {-o}, and vice versa")
        if self.png is not None:
            figure_class(self.png)
        if (note := network_note(model_folder(self.folder))) is not None:
            say("note: {line!t}", note, err=True)
        columns = ColumnNames(self.text_column, self.second_column, self.label_column)
        given = {"rows": self.rows, "columns": columns, "device": self.device}
        if self.output is None:
            self._measure(measures[self.by], given)
        else:
            self._prune(self.output, given)

    def _measure(self, measure: Any, given: Any) -> None:
        from ownbert.inspect.pruning import (
            LabelledModel,
            draw_importance,
            heads_table,
            remaining_heads,
        )

        labelled = LabelledModel(self.folder, self.file, **given)
        importance, remaining = measure(labelled), remaining_heads(labelled.model)
        if self.png is not None:
            title = f"importance of heads, by {self.by}"
            draw_importance(importance, remaining, title, self.png)
        if self.json:
            echo(json.dumps({"importance": importance.round(6).tolist()}))
            return
        for line in heads_table(importance, remaining):
            echo(line)

    def _prune(self, output: Path, given: Any) -> None:
        from ownbert.files.folders import writing
        from ownbert.inspect.pruning import Pruning, PruningRound, draw_rounds
        from ownbert.train.metric_names import shown_name

        def show(measured: PruningRound) -> None:
            if self.json:
                echo(json.dumps(vars(measured)))
                return
            say(
                "layers {layers}, heads {heads:,}: {metric} {score:.4f}, "
                "{tokens_per_second:,.0f} tokens/s",
                *(
                    measured.layers,
                    measured.heads,
                    shown_name(measured.metric),
                    measured.score,
                    measured.tokens_per_second,
                ),
            )

        how = {"train": self.train, "epochs": self.epochs, "on_round": show}
        pruning = Pruning(self.folder, self.file, output, **given, **how)
        with writing(output):
            if self.drop_layers is not None:
                rounds = pruning.layers(self.drop_layers)
            else:
                rounds = pruning.heads(self.prune or 0.0, self.rounds)
        if self.png is not None:
            draw_rounds(rounds, self.png)
        say("saved {output}", output, err=self.json)


class RunsCommand(o.Command):
    """List the fits and runs in a folder: their states, differing settings and results.

    Example: ownbert runs runs --sort mlm_loss
    """

    folder: Path = argument(..., "Folder with runs in it, at any depth.")
    sort: str = setting(
        "name",
        "Sort by name, when, time, step, tokens, a metric such as mlm_loss or macro_f1 (best "
        "first), or a setting such as learning_rate.",
    )
    json: bool = setting(False, "Print everything as JSON.")
    csv: bool = setting(False, "Print one row per run as CSV.")
    curves: Path | None = setting(
        None, "Draw the held-out losses (macro-F1 of fine-tuning) of all runs into this PNG."
    )

    def run(self) -> None:
        from rich.console import Console

        from ownbert.inspect.run_list import draw, find_runs, runs_csv, show_runs

        if self.json and self.csv:
            raise InputError("{--json} and {--csv} cannot be combined; use one of them")
        found = find_runs(self.folder, sort=self.sort)
        for line in found.broken:
            say("left out: {line}", line, err=True)
        if self.json:
            rows = [run.as_json() for run in found.runs]
            echo(json.dumps(rows, ensure_ascii=False, indent=2))
        elif self.csv:
            echo(runs_csv(found.runs), end="")
        else:
            # No width limit in a pipe.
            echo(show_runs(found.runs, width=Console().width if sys.stdout.isatty() else None))
        if self.curves is not None:
            draw(found.runs, self.curves)
            say("saved {output}", self.curves, err=True)


class ErrorsCommand(o.LabelledTaskRows):
    """Show where a model is wrong, and why.

    Shows which labels, entities or parts of answers are confused; groups of rows (by label,
    length, unknown words, cluster of vectors) with a clearly higher error rate than all rows;
    the most confident mistakes, with the words behind each prediction; and rows whose label may
    be wrong (confident learning). For numbers, shows the largest errors.

    Works for every task of ownbert finetune except embed: classify, multilabel, regress, tag,
    answer, choose, image.

    Example: ownbert errors runs/clf test.csv --train train.csv
    """

    folder: Path = o.FINETUNED_FOLDER
    file: Path = argument(..., "Labelled rows that the model was not trained on.")
    train: Path | None = setting(
        None,
        "Training rows of the model; each mistake is shown with the nearest one.",
        shown="none",
    )
    top: int = setting(
        10, "Number of mistakes of each kind.", check=between(1, limits.VOCABULARY, "[]")
    )
    json: bool = o.JSON

    def run(self) -> None:
        from ownbert.inspect.error_analysis import analyse_errors, as_lines

        how = {**self.compute, "skip_unlabelled": self.skip_unlabelled}
        analysis = analyse_errors(self.folder, self.file, train=self.train, most=self.top, **how)
        if self.json:
            echo(json.dumps(analysis.to_dict(), ensure_ascii=False))
            return
        for line in as_lines(analysis):
            echo(line)


class CompareCommand(o.LabelledTaskRows, o.Quiet):
    """Compare two models for the same task on labelled rows.

    Shows all metrics of both, and the interval of their difference from a paired bootstrap; how
    many rows only one of them predicts right, and which; and the most frequent differences.

    Works for every task of ownbert finetune except embed.

    Example: ownbert compare runs/old runs/new test.csv --html comparison.html
    """

    keeps_memory = True

    first: Path = o.FINETUNED_FOLDER
    second: Path = argument(..., "Another folder for the same task.")
    file: Path = argument(..., "Labelled rows that the models were not trained on.")
    group: str | None = setting(
        None, "Column whose rows with the same value, such as a customer, are drawn together."
    )
    metric: str | None = setting(
        None, "Metric that decides which is better.", shown="as in training"
    )
    top: int = setting(
        10,
        "Number of rows shown that only one model predicts right.",
        check=between(0, limits.VOCABULARY, "[]"),
    )
    output: Path | None = o.RESULTS_JSON
    html: Path | None = o.RESULTS_PAGE
    precision: str | None = o.FOLDER_PRECISION

    def run(self) -> None:
        from ownbert.files.writing import together
        from ownbert.inspect.model_comparison import compare, shown_comparison

        given = {**self.given("file", "top", "quiet"), "data": self.file, "rows": self.top}
        with together(), self.counting("rows predicted") as progress:
            result = compare(**given, progress=progress, say=self.note)
        if not self.quiet:
            echo(shown_comparison(result))


# Exit code of a change above --fail-above; 2 is that of errors.
_CHANGED = 1


class DriftCommand(o.TaskRows, o.Quiet):
    """Compare new rows with those that a model was trained on.

    Shows how far words (unknown, more or less frequent ones), lengths, predicted labels or numbers
    and, with --reference, the confidence of the predictions have changed, and how much of it is
    chance.

    Example: ownbert drift runs/clf june.csv --html drift.html --fail-above 0.1
    """

    keeps_memory = True

    folder: Path = o.FINETUNED_FOLDER
    file: Path = argument(..., "New rows, such as those of the last month.")
    reference: Path | None = setting(
        None,
        "Earlier rows to compare with, which are predicted too.",
        shown="counts of the training rows, in the folder",
    )
    fail_above: float | None = setting(
        None,
        "Exit with code 1 if a distance exceeds that of chance by more than this.",
        check=between(0, 1, "[]"),
    )
    output: Path | None = o.RESULTS_JSON
    html: Path | None = o.RESULTS_PAGE
    precision: str | None = o.FOLDER_PRECISION

    def run(self) -> None:
        from ownbert.files.writing import together
        from ownbert.inspect.drift import drift, shown_drift

        given = {**self.given("file", "fail_above", "quiet"), "data": self.file}
        with together(), self.counting("rows predicted") as progress:
            found = drift(**given, progress=progress, say=self.note)
        if not self.quiet:
            echo(shown_drift(found))
        if self.fail_above is not None and found.largest.beyond_chance > self.fail_above:
            raise typer.Exit(_CHANGED)


class AuditCommand(o.TextFiles, o.Quiet):
    """Measure what a model remembers of its training texts.

    Measures how well the model's loss separates training texts from others; the exposure of
    sequences planted by pretrain --canaries; rare tokens that the model fills in; and parts of
    training texts in pages and cards of the folder. docs/audit.md explains what this does not
    prove.

    Example: ownbert audit runs/bert --train corpus.txt --held-out other.txt --card
    """

    keeps_memory = True

    folder: Path = argument(
        ..., "Folder of a pretrained model, or of a classifier with one label per text."
    )
    train: Path = setting(..., "Texts that the model was trained on; with labels for a classifier.")
    held_out: Path = setting(..., "Similar texts that the model was not trained on.")
    output: Path | None = changed(o.RESULTS_JSON, help="Write the findings to this file, as JSON.")
    most: int = setting(
        2000, "Number of texts to sample from each side.", check=between(20, limits.COUNT, "[]")
    )
    card: bool = setting(False, "Add a section to the folder's model card.")

    def run(self) -> None:
        from ownbert.files.json_files import require_json_name, write_json
        from ownbert.files.writing import together
        from ownbert.inspect.audit import add_to_card, audit, lines

        if self.output is not None:
            require_json_name(self.output)
        result = audit(**self.given("output", "card", "quiet"), say=self.note)
        with together():
            if self.output is not None:
                write_json(self.output, result.as_json())
            warning = add_to_card(self.folder, result) if self.card else None
        if warning is not None:
            self.note(warning)
        if self.quiet:
            return
        for name, value in lines(result):
            echo(f"{name}: {value}")
        for sentence in result.advice():
            say(sentence)
