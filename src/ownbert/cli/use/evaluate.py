"""evaluate: metrics of a fine-tuned model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ownbert.cli import options as o
from ownbert.cli.progress import counting, saying
from ownbert.cli.recipe_options import settings_command
from ownbert.exceptions import InputError
from ownbert.files.writing import together
from ownbert.language import translated
from ownbert.terminal import console, echo, say

if TYPE_CHECKING:
    from ownbert.tasks.metrics import Scores

_LABELS = 100  # most labels in the table
_MARKS = "warning: ", "note: "


@settings_command
def evaluate(
    folder: o.FinetunedFolder,
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Labelled rows: csv, tsv, jsonl or parquet; CoNLL columns (tag), SQuAD JSON "
            "(answer), or a folder of class folders, IDX or .npz (image); also .gz.",
        ),
    ] = None,
    data: o.Data = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the metrics to this file as JSON, and next to it the confusion matrix and, "
            "for two labels, curves as PNG.",
        ),
    ] = None,
    *,
    columns: o.LabelledColumns,
    skip_unlabelled: o.SkipUnlabelled = False,
    encoding: o.Encoding = None,
    device: o.Device = "auto",
    precision: o.FolderPrecision = None,
    network: o.Network = False,
    abstain: o.AbstainSettings,
    out_of_scope: Annotated[
        Path | None,
        typer.Option(
            help="Texts with none of the labels, to measure how many of them --unknown refuses."
        ),
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(
            help="The label that F1, ROC AUC and average precision are about.",
            metavar="LABEL",
            show_default="as in training",
        ),
    ] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            help="From which probability to predict a label: yes=0.9, yes=recall:0.9.",
            show_default=False,
        ),
    ] = None,
    save_threshold: Annotated[
        bool,
        typer.Option("--save-threshold", help="Store the threshold in the folder."),
    ] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with the metrics and the error rate by share of texts answered."
        ),
    ] = None,
    quiet: o.Quiet = False,
) -> None:
    """Evaluate a fine-tuned model for any task on labelled rows.

    Labels, tags and images: accuracy or F1, and scores per label. Numbers and similarities:
    correlations. Answers in texts: exact match and F1. Choices: accuracy. Matching texts: the
    rank of the correct one.

    With --unknown and --coverage: the share of unknown rows and the accuracy on the others, the
    share of label sets with the correct label and their size.

    Example: ownbert evaluate runs/clf test.csv

    Example: ownbert evaluate runs/clf test.csv --unknown 0.05 --html risk.html

    Example: ownbert evaluate runs/clf test.csv --threshold yes=recall:0.9 --save-threshold
    """
    from ownbert.files.folders import refuse_foreign
    from ownbert.finetuning.confusion import CONFUSION, draw_confusion
    from ownbert.inference.predict import evaluate as run
    from ownbert.inspect.result_pages import RANKING_CURVES, draw_ranking, write_risk_page
    from ownbert.train.device import keep_memory

    keep_memory()
    if (file is None) == (data is None):
        raise InputError("a file of labelled rows is needed: evaluate FOLDER FILE")
    pictures: list[Path] = []
    if output is not None:
        names = [f"{output.stem}.{name}" for name in (CONFUSION, RANKING_CURVES)]
        pictures = [output.with_name(name) for name in names]
        refuse_foreign(output.parent, names, signs=[output.name])
    note = saying(quiet=quiet)
    message = None
    with together():
        with counting("rows evaluated", quiet=quiet) as progress:
            scores = run(
                folder,
                file or data,
                output=output,
                **columns.settings(),
                device=device,
                precision=precision,
                network=network,
                skip_unlabelled=skip_unlabelled,
                **vars(abstain),
                out_of_scope=out_of_scope,
                positive=positive,
                threshold=threshold,
                save_threshold=save_threshold,
                progress=progress,
                say=lambda text: note(text if text.startswith(_MARKS) else f"warning: {text}"),
            )
        if pictures:
            message = draw_confusion(pictures[0], scores)
            draw_ranking(pictures[1], scores)
        if html is not None:
            write_risk_page(html, scores, title=folder.name)
    if message is not None and not quiet:
        say(message, err=True)
    if not quiet:
        _show(scores)


def _show(scores: "Scores") -> None:
    """Print the scores of each label, the most frequent confusions, and the metrics."""
    from ownbert.finetuning.confusion import most_confused

    if scores.labels:
        _show_labels(scores)
    if confused := most_confused(scores):
        echo(translated(f"most often confused: {'; '.join(map(translated, confused))}") + "\n")
    for level in scores.levels:
        line = f"level {level.level} of the labels, {level.labels:,} different: "
        echo(translated(line + ", ".join(_named(level.values))))
    if (ranking := scores.ranking) is not None and ranking.complete:
        lift = f"lift {ranking.lift(0.1):.2f} in the first 10% of rows"
        echo(translated(f"positive label: {ranking.positive}; {lift}") + "\n")
    echo("   ".join(_named(scores.values)))


def _named(values: Mapping[str, float]) -> Iterator[str]:
    """Metrics with their names."""
    from ownbert.train.watch.metric_names import decimals, shown_name

    return (f"{translated(shown_name(n))} {decimals(v, 4)}" for n, v in values.items())


def _show_labels(scores: "Scores") -> None:
    from rich.table import Table
    from rich.text import Text

    from ownbert.train.watch.metric_names import shown_label_metric

    table = Table(translated("label"), title_justify="left", box=None, pad_edge=False)
    for name in ("precision", "recall", "F1", "support"):
        table.add_column(translated(name), justify="right")
    for row in scores.labels[:_LABELS]:
        values = (row.precision, row.recall, row.f1)
        figures = (shown_label_metric(value, row.support) for value in values)
        table.add_row(Text(row.label), *figures, f"{row.support:,}")
    console().print(table)
    if (more := len(scores.labels) - _LABELS) > 0:
        labels = "label" if more == 1 else "labels"
        say(f"and {more:,} more {labels}; -o metrics.json has them all")
    echo()
