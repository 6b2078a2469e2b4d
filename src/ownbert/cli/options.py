"""Options that several commands share, with one wording each."""

from pathlib import Path
from typing import Annotated

import typer

RUN, DATA, MODEL, LEARNING = "Run", "Data", "Model", "Learning"

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of everything random.", show_default="0", min=0)
]
TextColumn = Annotated[
    str | None,
    typer.Option(help="Column of the text in tables.", show_default="by its name"),
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto", rich_help_panel=RUN)
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="float32, or bfloat16 for matrix products; auto takes what is faster here.",
        show_default="auto",
        rich_help_panel=RUN,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(help="A recipe.yaml to start from; options and overrides come on top."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[SECTION.NAME=VALUE]...",
        help="Any setting of the recipe, as optim.weight_decay=0.1 (--dry-run shows them all).",
        show_default=False,
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Print the resolved recipe, counts and a first batch, then leave."
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on from the last saved state in the output folder; start if there is none.",
        rich_help_panel=RUN,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the model in the output folder.", rich_help_panel=RUN
    ),
]
ResumeStep = Annotated[
    int | None,
    typer.Option(help="Go on from the saved state of this step.", rich_help_panel=RUN),
]
TensorBoard = Annotated[
    bool | None,
    typer.Option("--tensorboard", help="Write curves for TensorBoard too.", rich_help_panel=RUN),
]
MaxSteps = Annotated[
    int | None, typer.Option(help="Stop after so many steps.", rich_help_panel=RUN)
]
LogEvery = Annotated[
    int | None,
    typer.Option(help="Steps between rows of log.jsonl.", show_default="20", rich_help_panel=RUN),
]
SaveEvery = Annotated[
    int | None,
    typer.Option(help="Steps between saved states.", show_default="5 minutes", rich_help_panel=RUN),
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Peak learning rate.", show_default="by size", rich_help_panel=LEARNING),
]
Accumulate = Annotated[
    int | None,
    typer.Option(help="Batches added up to one step.", show_default="1", rich_help_panel=LEARNING),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Tokens a sequence, special ones included.", rich_help_panel=DATA),
]

# Of pretrain and finetune alone.

# Needed but for a dry run.
ModelFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for the model.", show_default=False),
]
FinetunedFolder = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder for the fine-tuned model.", show_default=False),
]
Tokens = Annotated[
    Path | None,
    typer.Argument(help="Token store that ownbert prepare wrote.", show_default=False),
]
Size = Annotated[
    str | None,
    typer.Option(
        help="tiny, mini, small, medium, base or large.",
        show_default="tiny",
        rich_help_panel=MODEL,
    ),
]
InitEmbeddings = Annotated[
    str | None,
    typer.Option(
        help="Start words from the corpus's own co-occurrences, or random.",
        show_default="cooccurrence",
        rich_help_panel=MODEL,
    ),
]
InitFrom = Annotated[
    Path | None,
    typer.Option(
        help="Start from this model folder, with its words matched to this vocabulary.",
        rich_help_panel=MODEL,
    ),
]
InitCounts = Annotated[
    Path | None,
    typer.Option(
        help="How often its words were in its corpus (a word and a count a line), to match "
        "anonymised ids by rank.",
        rich_help_panel=MODEL,
    ),
]
PretrainDropout = Annotated[
    float | None,
    typer.Option(help="Dropout everywhere.", show_default="0", rich_help_panel=MODEL),
]
Objectives = Annotated[
    str | None,
    typer.Option(
        help="What to learn: mlm (masked words), clm (next words), rtd (replaced tokens, with "
        "mlm), and nsp (next sentence) or sop (sentence order).",
        show_default="mlm,nsp",
        rich_help_panel=DATA,
    ),
]
MaskingKind = Annotated[
    str | None,
    typer.Option(
        "--masking",
        help="What is masked together: token, word, ngram or span.",
        show_default="token",
        rich_help_panel=DATA,
    ),
]
MaskRate = Annotated[
    float | None,
    typer.Option(
        help="Share of tokens to predict (BERT: 0.15).",
        show_default="0.3",
        rich_help_panel=DATA,
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens a batch, of all processes together.",
        show_default="2048",
        rich_help_panel=DATA,
    ),
]
HeldOut = Annotated[
    float | None,
    typer.Option(
        help="Share of the documents to evaluate on.",
        show_default="0.02",
        rich_help_panel=DATA,
    ),
]
MaxMinutes = Annotated[
    float | None,
    typer.Option(help="Stop after so many minutes.", show_default="5", rich_help_panel=RUN),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(help="Steps between evaluations.", show_default="ten a run", rich_help_panel=RUN),
]
Model = Annotated[
    Path | None,
    typer.Option(help="Folder of the pretrained model.", rich_help_panel=MODEL),
]
Train = Annotated[Path | None, typer.Option(help="Labelled rows to learn.", rich_help_panel=DATA)]
Dev = Annotated[
    Path | None,
    typer.Option(
        help="Labelled rows that tell when to stop; without them all epochs are run.",
        rich_help_panel=DATA,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Rows a batch.", show_default="16, or 32 from 3,000 rows", rich_help_panel=DATA
    ),
]
FromScratch = Annotated[
    bool,
    typer.Option(
        "--from-scratch",
        help="Take size and vocabulary of the model, not its weights (to compare).",
        rich_help_panel=MODEL,
    ),
]
Dropout = Annotated[
    float | None,
    typer.Option(help="Dropout everywhere.", show_default="0.1", rich_help_panel=MODEL),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Times through the data.",
        show_default="12, or 4 from 3,000 rows",
        rich_help_panel=RUN,
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        help="Stop after so many epochs without a better --measure on dev rows.",
        show_default="4",
        rich_help_panel=RUN,
    ),
]
SearchFlag = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try learning rates, epochs and batch sizes, and keep the best (what to try: "
        "search.learning_rate=1e-5,5e-5 and so on).",
        rich_help_panel=RUN,
    ),
]
Freeze = Annotated[
    int | None,
    typer.Option(
        help="Keep the embeddings and so many of the lower layers as they are.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
PretrainSteps = Annotated[
    int | None,
    typer.Option(
        help="First learn masked words from the texts of the task, for so many steps.",
        show_default="none",
        rich_help_panel=LEARNING,
    ),
]
LayerDecay = Annotated[
    float | None,
    typer.Option(
        help="Each layer learns at this share of the rate of the one above it.",
        show_default="1",
        rich_help_panel=LEARNING,
    ),
]
Adversarial = Annotated[
    float | None,
    typer.Option(
        help="Also learn with word vectors moved against the model by this length (FGM); try 0.5.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
Ema = Annotated[
    float | None,
    typer.Option(
        help="Keep a running mean of the weights, of which so much stays at each step; try 0.99.",
        show_default="0",
        rich_help_panel=LEARNING,
    ),
]
