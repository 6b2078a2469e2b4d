"""pretrain and finetune: from a token store to a model, from a model to a classifier."""

from pathlib import Path
from typing import Annotated

import typer

from ownbert.cli.options import (
    Accumulate,
    Config,
    Device,
    DryRun,
    LabelColumn,
    LearningRate,
    LogEvery,
    MaxLength,
    MaxSteps,
    Overrides,
    Overwrite,
    Precision,
    Quiet,
    Resume,
    SaveEvery,
    Seed,
    TextColumn,
)

_DATA, _MODEL, _RUN = "Data", "Model", "Run"
_OURS = ("output", "config", "overrides", "resume", "overwrite", "quiet", "dry_run")


def pretrain(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model.")],
    tokens: Annotated[
        Path | None,
        typer.Argument(help="Token store that ownbert prepare wrote.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    size: Annotated[
        str | None,
        typer.Option(
            help="tiny, mini, small, medium, base or large.",
            show_default="tiny",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    init_embeddings: Annotated[
        str | None,
        typer.Option(
            help="Start words from the corpus's own co-occurrences, or random.",
            show_default="cooccurrence",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(help="Dropout everywhere.", show_default="0", rich_help_panel=_MODEL),
    ] = None,
    objectives: Annotated[
        str | None,
        typer.Option(help="mlm, or mlm,nsp.", show_default="mlm,nsp", rich_help_panel=_DATA),
    ] = None,
    mask_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of tokens to predict (BERT: 0.15).",
            show_default="0.3",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_length: MaxLength = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens a batch.", show_default="2048", rich_help_panel=_DATA),
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the documents to evaluate on.",
            show_default="0.02",
            rich_help_panel=_DATA,
        ),
    ] = None,
    learning_rate: LearningRate = None,
    accumulate: Accumulate = None,
    max_steps: MaxSteps = None,
    max_minutes: Annotated[
        float | None,
        typer.Option(help="Stop after so many minutes.", show_default="5", rich_help_panel=_RUN),
    ] = None,
    precision: Precision = None,
    device: Device = None,
    log_every: LogEvery = None,
    eval_every: Annotated[
        int | None,
        typer.Option(
            help="Steps between evaluations.", show_default="ten a run", rich_help_panel=_RUN
        ),
    ] = None,
    save_every: SaveEvery = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    seed: Seed = None,
    config: Config = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Pretrain a model on a token store: masked words and, by default, next sentences.

    The folder gets the model (an ordinary Hugging Face folder), log.jsonl, curves.png,
    recipe.yaml and saved states to resume from.
    """
    from ownbert.train.machine import keep_memory
    from ownbert.train.pretrain import pretrain as run

    keep_memory()
    # The first positional is the store unless it is an override of a recipe that names one.
    if tokens is not None and "=" in str(tokens) and not tokens.exists():
        overrides, tokens = [str(tokens), *(overrides or [])], None
    options = {k: v for k, v in context.params.items() if k not in (*_OURS, "tokens")}
    if dry_run:
        from ownbert.train.preview import preview_pretraining

        print(preview_pretraining(tokens, config=config, overrides=overrides or (), **options))
        return
    run(
        tokens,
        output,
        config=config,
        overrides=overrides or (),
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        **options,
    )


def classify(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the classifier.")],
    overrides: Overrides = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of the pretrained model.", rich_help_panel=_MODEL),
    ] = None,
    train: Annotated[
        Path | None, typer.Option(help="Labelled texts to learn.", rich_help_panel=_DATA)
    ] = None,
    dev: Annotated[
        Path | None,
        typer.Option(help="Labelled texts that tell when to stop.", rich_help_panel=_DATA),
    ] = None,
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    labels_per_class: Annotated[
        int | None,
        typer.Option(
            help="Learn from so many texts of each label, drawn by --seed.",
            show_default="all",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_length: MaxLength = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Texts a batch.", show_default="16, or 32 from 3,000 texts", rich_help_panel=_DATA
        ),
    ] = None,
    from_scratch: Annotated[
        bool,
        typer.Option(
            "--from-scratch",
            help="Take size and vocabulary of the model, not its weights (to compare).",
            rich_help_panel=_MODEL,
        ),
    ] = False,
    dropout: Annotated[
        float | None,
        typer.Option(help="Dropout everywhere.", show_default="0.1", rich_help_panel=_MODEL),
    ] = None,
    learning_rate: LearningRate = None,
    accumulate: Accumulate = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Times through the data.",
            show_default="12, or 4 from 3,000 texts",
            rich_help_panel=_RUN,
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Stop after so many epochs without a better dev macro-F1.",
            show_default="4",
            rich_help_panel=_RUN,
        ),
    ] = None,
    max_steps: MaxSteps = None,
    precision: Precision = None,
    device: Device = None,
    log_every: LogEvery = None,
    save_every: SaveEvery = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    seed: Seed = None,
    config: Config = None,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """One label a text: csv, tsv, jsonl or parquet with a column of texts and one of labels."""
    from ownbert.tasks.finetune import finetune as run
    from ownbert.train.machine import keep_memory

    keep_memory()
    options = {k: v for k, v in context.params.items() if k not in _OURS}
    options["from_scratch"] = from_scratch or None
    if dry_run:
        from ownbert.tasks.preview import preview_finetuning

        print(preview_finetuning(config=config, overrides=overrides or (), **options))
        return
    run(
        "classify",
        output=output,
        config=config,
        overrides=overrides or (),
        resume=resume,
        overwrite=overwrite,
        quiet=quiet,
        **options,
    )
