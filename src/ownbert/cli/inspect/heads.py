"""heads: the importance of attention heads, and pruning."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.checks import between, known
from ownbert.cli.options import Device, Encoding, FinetunedFolder, LabelledColumns
from ownbert.cli.recipe_options import settings_command
from ownbert.exceptions import InputError
from ownbert.settings import setting
from ownbert.terminal import echo, say


@dataclass(frozen=True, kw_only=True)
class HeadsSettings:
    """Options for measuring importance and for pruning."""

    by: str = setting(
        "gradient",
        "gradient (one pass), or masking: the increase in loss without each single head (one "
        "pass per head).",
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
    output: Path | None = setting(None, "Folder for the pruned model.", option="--output -o")
    png: Path | None = setting(None, "Plot the table, or the rounds, into this file.")
    rows: int = setting(
        1000,
        "Number of rows to use, starting with the first.",
        check=between(1, limits.COUNT, "[]"),
    )
    json: bool = setting(False, "Print JSON.")

    def require_output(self) -> None:
        """Raise ``InputError`` unless -o is given exactly when something is pruned."""
        if self.prune is not None and self.drop_layers is not None:
            raise InputError("{--prune} and {--drop-layers} cannot be combined; use one of them")
        pruned = self.prune if self.drop_layers is None else self.drop_layers
        if (pruned is None) != (self.output is None):
            raise InputError("{--prune} and {--drop-layers} require {-o}, and vice versa")


@settings_command
def heads(
    folder: FinetunedFolder,
    file: Annotated[Path, typer.Argument(help="Labelled rows, such as dev rows.")],
    *,
    settings: HeadsSettings,
    columns: LabelledColumns,
    encoding: Encoding = None,
    device: Device = "auto",
) -> None:
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
    from ownbert.figures import figure_class
    from ownbert.hub import model_folder
    from ownbert.inference.blend import network_note
    from ownbert.inspect.pruning import gradient_importance, masking_importance

    measures = {"gradient": gradient_importance, "masking": masking_importance}
    known(*measures)("by", settings.by)
    settings.require_output()
    if settings.png is not None:
        figure_class(settings.png)
    if (note := network_note(model_folder(folder))) is not None:
        say(f"note: {note}", err=True)
    given = {"rows": settings.rows, "columns": columns, "device": device}
    if settings.output is None:
        _measure(folder, file, measures[settings.by], settings, given)
    else:
        _prune(folder, file, settings.output, settings, given)


def _measure(folder: Path, file: Path, measure: Any, settings: HeadsSettings, given: Any) -> None:
    from ownbert.inspect.pruning import (
        draw_importance,
        heads_table,
        labelled_model,
        remaining_heads,
    )

    labelled = labelled_model(folder, file, **given)
    importance, remaining = measure(labelled), remaining_heads(labelled.model)
    if settings.png is not None:
        draw_importance(
            importance, remaining, f"importance of heads, by {settings.by}", settings.png
        )
    if settings.json:
        echo(json.dumps({"importance": importance.round(6).tolist()}))
        return
    for line in heads_table(importance, remaining):
        echo(line)


def _prune(folder: Path, file: Path, output: Path, settings: HeadsSettings, given: Any) -> None:
    from ownbert.files.folders import writing
    from ownbert.inspect.pruning import Pruning, PruningRound, draw_rounds
    from ownbert.train.watch.metric_names import shown_name

    def show(measured: PruningRound) -> None:
        if settings.json:
            echo(json.dumps(vars(measured)))
            return
        say(
            f"layers {measured.layers}, heads {measured.heads:,}: {shown_name(measured.metric)} "
            f"{measured.score:.4f}, {measured.tokens_per_second:,.0f} tokens/s"
        )

    options = {"train": settings.train, "epochs": settings.epochs, "on_round": show}
    pruning = Pruning(folder, file, output, **given, **options)
    with writing(output):
        if settings.drop_layers is not None:
            rounds = pruning.layers(settings.drop_layers)
        else:
            rounds = pruning.heads(settings.prune or 0.0, settings.rounds)
    if settings.png is not None:
        draw_rounds(rounds, settings.png)
    say(f"saved {output}", err=settings.json)
