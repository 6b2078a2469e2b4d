"""Options of the commands below ``ownbert translate``."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import DATA, LEARNING, RUN

NET, WORDS = "Network", "Vocabulary"

Source = Annotated[
    Path | None,
    typer.Option(help="Texts to translate from, one a line.", rich_help_panel=DATA),
]
Target = Annotated[
    Path | None, typer.Option(help="Their translations, line by line.", rich_help_panel=DATA)
]
Pairs = Annotated[
    Path | None,
    typer.Option(help="Or both in one table (csv, tsv, jsonl, parquet).", rich_help_panel=DATA),
]
DevSource = Annotated[
    Path | None, typer.Option(help="The same to be examined by.", rich_help_panel=DATA)
]
DevTarget = Annotated[Path | None, typer.Option(help="Its translations.", rich_help_panel=DATA)]
DevPairs = Annotated[Path | None, typer.Option(help="Or one table.", rich_help_panel=DATA)]
SourceColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the sources in tables.",
        show_default="the first of two",
        rich_help_panel=DATA,
    ),
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the targets in tables.",
        show_default="the second of two",
        rich_help_panel=DATA,
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        help="bpe, wordpiece, or blank for text that is already tokens.",
        show_default="bpe",
        rich_help_panel=WORDS,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--vocab-size",
        help="Entries of a vocabulary.",
        show_default="8000",
        rich_help_panel=WORDS,
    ),
]
Shared = Annotated[
    bool | None,
    typer.Option(
        "--shared/--separate",
        help="One vocabulary and one matrix for both sides, or one each.",
        show_default="shared",
        rich_help_panel=WORDS,
    ),
]
Lowercase = Annotated[
    bool | None,
    typer.Option("--lowercase", help="Forget capitals.", rich_help_panel=WORDS),
]
Layers = Annotated[
    int | None,
    typer.Option(
        "--layers", help="Of encoder and of decoder.", show_default="3", rich_help_panel=NET
    ),
]
Width = Annotated[
    int | None,
    typer.Option("--d-model", help="Width of a layer.", show_default="256", rich_help_panel=NET),
]
Inner = Annotated[
    int | None,
    typer.Option(
        "--d-ff", help="Width of its feed-forward.", show_default="1024", rich_help_panel=NET
    ),
]
Heads = Annotated[
    int | None,
    typer.Option("--heads", help="Heads of a layer.", show_default="4", rich_help_panel=NET),
]
NormFirst = Annotated[
    bool | None,
    typer.Option(
        "--norm-first",
        help="Normalise before each sublayer (pre-norm); Transformers cannot load that.",
        rich_help_panel=NET,
    ),
]
Average = Annotated[
    int | None,
    typer.Option(
        help="Mean of the weights of so many last saved states.",
        show_default="5",
        rich_help_panel=LEARNING,
    ),
]
Smoothing = Annotated[
    float | None,
    typer.Option(
        "--label-smoothing",
        help="Share of a target that is spread over the vocabulary.",
        show_default="0.1",
        rich_help_panel=LEARNING,
    ),
]
Dropout = Annotated[
    float | None,
    typer.Option(help="Dropout of sublayers.", show_default="0.1", rich_help_panel=NET),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(help="Tokens a batch, of both sides.", show_default="4096", rich_help_panel=DATA),
]
Epochs = Annotated[
    int | None,
    typer.Option(help="Times through the pairs.", show_default="20", rich_help_panel=RUN),
]
Minutes = Annotated[
    float | None, typer.Option(help="Stop after so many minutes.", rich_help_panel=RUN)
]

# Of those that use a trained folder.

Folder = Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)]
Beams = Annotated[int, typer.Option(help="Candidates of the search; 1 is greedy.")]
Penalty = Annotated[
    float, typer.Option(help="How far longer translations are preferred (0: not at all).")
]
MostTokens = Annotated[
    int | None,
    typer.Option(help="Tokens of a translation.", show_default="twice the source and 20"),
]
UseDevice = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
UsePrecision = Annotated[str, typer.Option(help="float32, bfloat16, or auto: what is faster.")]
