"""Options that several commands share, with one wording each."""

from pathlib import Path
from typing import Annotated

import typer

_RUN, _DATA, _MODEL, _OPTIM = "Run", "Data", "Model", "Learning"

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Seed = Annotated[
    int | None, typer.Option(help="Seed of everything random.", show_default="0", min=0)
]
TextColumn = Annotated[
    str | None,
    typer.Option(help="Column of the text in tables.", show_default="by its name"),
]
SecondColumn = Annotated[
    str | None,
    typer.Option(
        help="Column of the second text, where there are two.", show_default="by its name"
    ),
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of the label.", show_default="by its name")
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda.", show_default="auto", rich_help_panel=_RUN)
]
Precision = Annotated[
    str | None,
    typer.Option(
        help="float32, or bfloat16 for matrix products; auto takes what is faster here.",
        show_default="auto",
        rich_help_panel=_RUN,
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
        rich_help_panel=_RUN,
    ),
]
Overwrite = Annotated[
    bool,
    typer.Option(
        "--overwrite", help="Replace the model in the output folder.", rich_help_panel=_RUN
    ),
]
ResumeStep = Annotated[
    int | None,
    typer.Option(help="Go on from the saved state of this step.", rich_help_panel=_RUN),
]
TensorBoard = Annotated[
    bool | None,
    typer.Option("--tensorboard", help="Write curves for TensorBoard too.", rich_help_panel=_RUN),
]
MaxSteps = Annotated[
    int | None, typer.Option(help="Stop after so many steps.", rich_help_panel=_RUN)
]
LogEvery = Annotated[
    int | None,
    typer.Option(help="Steps between rows of log.jsonl.", show_default="20", rich_help_panel=_RUN),
]
SaveEvery = Annotated[
    int | None,
    typer.Option(
        help="Steps between saved states.", show_default="5 minutes", rich_help_panel=_RUN
    ),
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="Peak learning rate.", show_default="by size", rich_help_panel=_OPTIM),
]
Accumulate = Annotated[
    int | None,
    typer.Option(help="Batches added up to one step.", show_default="1", rich_help_panel=_OPTIM),
]
MaxLength = Annotated[
    int | None,
    typer.Option(help="Tokens a sequence, special ones included.", rich_help_panel=_DATA),
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
        rich_help_panel=_MODEL,
    ),
]
InitEmbeddings = Annotated[
    str | None,
    typer.Option(
        help="Start words from the corpus's own co-occurrences, or random.",
        show_default="cooccurrence",
        rich_help_panel=_MODEL,
    ),
]
InitFrom = Annotated[
    Path | None,
    typer.Option(
        help="Start from this model folder, with its words matched to this vocabulary.",
        rich_help_panel=_MODEL,
    ),
]
InitCounts = Annotated[
    Path | None,
    typer.Option(
        help="How often its words were in its corpus (a word and a count a line), to match "
        "anonymised ids by rank.",
        rich_help_panel=_MODEL,
    ),
]
PretrainDropout = Annotated[
    float | None,
    typer.Option(help="Dropout everywhere.", show_default="0", rich_help_panel=_MODEL),
]
Objectives = Annotated[
    str | None,
    typer.Option(
        help="What to learn: mlm (masked words), clm (next words), rtd (replaced tokens, with "
        "mlm), and nsp (next sentence) or sop (sentence order).",
        show_default="mlm,nsp",
        rich_help_panel=_DATA,
    ),
]
MaskingKind = Annotated[
    str | None,
    typer.Option(
        "--masking",
        help="What is masked together: token, word, ngram or span.",
        show_default="token",
        rich_help_panel=_DATA,
    ),
]
MaskRate = Annotated[
    float | None,
    typer.Option(
        help="Share of tokens to predict (BERT: 0.15).",
        show_default="0.3",
        rich_help_panel=_DATA,
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        help="Tokens a batch, of all processes together.",
        show_default="2048",
        rich_help_panel=_DATA,
    ),
]
HeldOut = Annotated[
    float | None,
    typer.Option(
        help="Share of the documents to evaluate on.",
        show_default="0.02",
        rich_help_panel=_DATA,
    ),
]
MaxMinutes = Annotated[
    float | None,
    typer.Option(help="Stop after so many minutes.", show_default="5", rich_help_panel=_RUN),
]
EvalEvery = Annotated[
    int | None,
    typer.Option(help="Steps between evaluations.", show_default="ten a run", rich_help_panel=_RUN),
]
Model = Annotated[
    Path | None,
    typer.Option(help="Folder of the pretrained model.", rich_help_panel=_MODEL),
]
Train = Annotated[Path | None, typer.Option(help="Labelled rows to learn.", rich_help_panel=_DATA)]
Dev = Annotated[
    Path | None,
    typer.Option(
        help="Labelled rows that tell when to stop; without them all epochs are run.",
        rich_help_panel=_DATA,
    ),
]
LabelsPerClass = Annotated[
    int | None,
    typer.Option(
        help="Learn from so many texts of each label, drawn by --seed.",
        show_default="all",
        rich_help_panel=_DATA,
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Rows a batch.", show_default="16, or 32 from 3,000 rows", rich_help_panel=_DATA
    ),
]
FromScratch = Annotated[
    bool,
    typer.Option(
        "--from-scratch",
        help="Take size and vocabulary of the model, not its weights (to compare).",
        rich_help_panel=_MODEL,
    ),
]
Dropout = Annotated[
    float | None,
    typer.Option(help="Dropout everywhere.", show_default="0.1", rich_help_panel=_MODEL),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Times through the data.",
        show_default="12, or 4 from 3,000 rows",
        rich_help_panel=_RUN,
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(
        help="Stop after so many epochs without a better --measure on dev rows.",
        show_default="4",
        rich_help_panel=_RUN,
    ),
]
Measure = Annotated[
    str | None,
    typer.Option(
        help="What is watched on dev rows: one of the task's measures, or loss.",
        show_default="the task's first",
        rich_help_panel=_RUN,
    ),
]
Folds = Annotated[
    int | None,
    typer.Option(
        help="Train so many models, each without another part of the rows; their answers are "
        "averaged.",
        rich_help_panel=_RUN,
    ),
]
Seeds = Annotated[
    int | None,
    typer.Option(
        help="Train with so many seeds: mean and spread; their answers are averaged.",
        rich_help_panel=_RUN,
    ),
]
SearchFlag = Annotated[
    bool,
    typer.Option(
        "--search",
        help="Try learning rates, epochs and batch sizes, and keep the best (what to try: "
        "search.learning_rate=1e-5,5e-5 and so on).",
        rich_help_panel=_RUN,
    ),
]
Freeze = Annotated[
    int | None,
    typer.Option(
        help="Keep the embeddings and so many of the lower layers as they are.",
        show_default="0",
        rich_help_panel=_MODEL,
    ),
]
PretrainSteps = Annotated[
    int | None,
    typer.Option(
        help="First learn masked words from the texts of the task, for so many steps.",
        show_default="0",
        rich_help_panel=_MODEL,
    ),
]
LayerDecay = Annotated[
    float | None,
    typer.Option(
        help="Each layer learns at this share of the rate of the one above it.",
        show_default="1",
        rich_help_panel=_OPTIM,
    ),
]
Adversarial = Annotated[
    float | None,
    typer.Option(
        help="Also learn with word vectors moved against the model by this length (FGM); try 0.5.",
        show_default="0",
        rich_help_panel=_OPTIM,
    ),
]
Ema = Annotated[
    float | None,
    typer.Option(
        help="Keep a running mean of the weights, of which so much stays at each step; try 0.99.",
        show_default="0",
        rich_help_panel=_OPTIM,
    ),
]
RDrop = Annotated[
    float | None,
    typer.Option(
        help="Weight of the difference between two passes with other dropouts (R-Drop); try 1.",
        show_default="0",
        rich_help_panel=_OPTIM,
    ),
]
Pooling = Annotated[
    str | None,
    typer.Option(
        help="What the answer stands on: pooler (BERT's), first, mean, max, attention, gru, lstm.",
        show_default="the family's",
        rich_help_panel=_MODEL,
    ),
]
Long = Annotated[
    str | None,
    typer.Option(
        help="Documents beyond --max-length: cut; windows (answers averaged); segments "
        "(attention over their vectors).",
        show_default="cut",
        rich_help_panel=_DATA,
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        help="Tokens that neighbouring windows share.", show_default="32", rich_help_panel=_DATA
    ),
]
ClassWeights = Annotated[
    str | None,
    typer.Option(
        help='"balanced" (rare labels count more), or label=weight,label=weight.',
        show_default="all alike",
        rich_help_panel=_OPTIM,
    ),
]
LabelSmoothing = Annotated[
    float | None,
    typer.Option(
        help="Share of the truth that is spread over all labels.",
        show_default="0",
        rich_help_panel=_OPTIM,
    ),
]
Separator = Annotated[
    str | None,
    typer.Option(
        help="What stands between the labels of a row (lists need none).",
        show_default="the first of | ; , that the training rows have",
        rich_help_panel=_DATA,
    ),
]
LabelThreshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help="From which probability on a label holds.",
        show_default="what is best on dev rows, or 0.5",
        rich_help_panel=_MODEL,
    ),
]
RegressionLoss = Annotated[
    str | None,
    typer.Option(
        help="mse, or huber (rows that are far off count less).",
        show_default="mse",
        rich_help_panel=_OPTIM,
    ),
]
AnswerLength = Annotated[
    int | None,
    typer.Option(help="Longest answer, in tokens.", show_default="30", rich_help_panel=_MODEL),
]
AnswerThreshold = Annotated[
    float | None,
    typer.Option(
        "--threshold",
        help='By how much "no answer" must be ahead of an answer (logits) to be said.',
        show_default="what is best on dev rows, or 0",
        rich_help_panel=_MODEL,
    ),
]
EmbedPooling = Annotated[
    str | None,
    typer.Option(
        "--pooling",
        help="What the vector of a text is: mean or max over its tokens, or the first one.",
        show_default="mean",
        rich_help_panel=_MODEL,
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Of texts that belong together: a lower one looks harder at the nearest others.",
        show_default="0.05",
        rich_help_panel=_OPTIM,
    ),
]
TagStride = Annotated[
    int | None,
    typer.Option(
        "--stride",
        help="Words that neighbouring windows of a long sentence share.",
        show_default="32",
        rich_help_panel=_DATA,
    ),
]
Crf = Annotated[
    bool | None,
    typer.Option(
        "--crf",
        help="Learn which tags follow each other, and choose those of a sentence together.",
        rich_help_panel=_MODEL,
    ),
]
TagAll = Annotated[
    bool | None,
    typer.Option(
        "--tag-all",
        help="Learn from all pieces of a word, not from the first alone.",
        rich_help_panel=_DATA,
    ),
]
ChoicesColumn = Annotated[
    str | None,
    typer.Option(
        "--second-column",
        help="Column of the lists of choices, or what stands before the numbers of theirs.",
        show_default="by its name",
    ),
]
