"""pretrain: from a token store to a model."""

from pathlib import Path

import typer

from ownbert.cli import options as o
from ownbert.errors import InputError

_OURS = (
    *("output", "config", "overrides", "resume", "resume_step", "overwrite", "quiet"),
    "dry_run",
)


def pretrain(
    context: typer.Context,
    output: o.ModelFolder = None,
    tokens: o.Tokens = None,
    overrides: o.Overrides = None,
    size: o.Size = None,
    init_embeddings: o.InitEmbeddings = None,
    init_from: o.InitFrom = None,
    init_counts: o.InitCounts = None,
    dropout: o.PretrainDropout = None,
    objectives: o.Objectives = None,
    masking: o.MaskingKind = None,
    mask_rate: o.MaskRate = None,
    max_length: o.MaxLength = None,
    batch_tokens: o.BatchTokens = None,
    held_out: o.HeldOut = None,
    learning_rate: o.LearningRate = None,
    accumulate: o.Accumulate = None,
    max_steps: o.MaxSteps = None,
    max_minutes: o.MaxMinutes = None,
    precision: o.Precision = None,
    device: o.Device = None,
    log_every: o.LogEvery = None,
    eval_every: o.EvalEvery = None,
    save_every: o.SaveEvery = None,
    tensorboard: o.TensorBoard = None,
    resume: o.Resume = False,
    resume_step: o.ResumeStep = None,
    overwrite: o.Overwrite = False,
    seed: o.Seed = None,
    config: o.Config = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Pretrain a model on a token store: masked words and, by default, next sentences.

    The folder gets the model (an ordinary Hugging Face folder), log.jsonl, curves.png,
    recipe.yaml and saved states to resume from.

    Example: ownbert pretrain runs/tokens --size mini --max-minutes 30 -o runs/bert
    """
    from ownbert.pretraining.run import pretrain as run
    from ownbert.train.device import keep_memory

    keep_memory()
    # The first positional is the store unless it is an override of a recipe that names one.
    if tokens is not None and "=" in str(tokens) and not tokens.exists():
        overrides, tokens = [str(tokens), *(overrides or [])], None
    options = {k: v for k, v in context.params.items() if k not in (*_OURS, "tokens")}
    if dry_run:
        from ownbert.pretraining.run import preview_pretraining

        print(preview_pretraining(tokens, config=config, overrides=overrides or (), **options))
        return
    run(
        tokens,
        given_output(output),
        config=config,
        overrides=overrides or (),
        resume=resume,
        resume_step=resume_step,
        overwrite=overwrite,
        quiet=quiet,
        **options,
    )


def given_output(output: Path | None) -> Path:
    """The folder of -o, which only a dry run can do without."""
    if output is None:
        raise InputError("-o is needed: the folder for the model")
    return output
