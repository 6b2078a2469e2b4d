"""pretrain: train a model on a token store."""

from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert import limits
from ownbert.cli import options as o
from ownbert.cli.recipe_options import recipe_command
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.terminal import say
from ownbert.train.training_settings import RUN

SETTINGS = (
    *("size", "init_embeddings", "init_positions", "init_from", "init_counts", "dropout"),
    *("feature_size", "objectives", "masking", "mask_rate", "max_length", "batch_tokens"),
    *("held_out", "canaries", "learning_rate", "accumulate"),
    *("max_steps", "max_minutes", "precision", "device", "log_every", "eval_every", "save_every"),
    *("tensorboard", "seed"),
)
# Settings that --help shows; --help-all shows all.
_COMMON = frozenset(
    {
        *("size", "init_from", "objectives", "max_length", "batch_tokens", "learning_rate"),
        *("max_steps", "max_minutes", "device", "seed"),
    }
)


@recipe_command(PretrainRecipe, SETTINGS, command="pretrain", common=_COMMON)
def pretrain(
    *,
    output: o.Output = None,
    tokens: Annotated[
        Path | None, typer.Argument(help="Token store written by ownbert prepare.")
    ] = None,
    overrides: o.Overrides = None,
    settings: dict[str, Any],
    resume: o.Resume = False,
    resume_step: Annotated[
        int | None,
        typer.Option(
            help="Resume from the saved state of this step.",
            rich_help_panel=RUN,
            min=0,
            max=limits.STEPS,
        ),
    ] = None,
    overwrite: o.Overwrite = False,
    config: o.Config = None,
    dry_run: o.DryRun = False,
    quiet: o.Quiet = False,
) -> None:
    """Pretrain a model on a token store, with masked words or other --objectives.

    Writes the model (an ordinary Hugging Face folder), log.jsonl, curves.png, recipe.yaml and
    saved states to resume from.

    Example: ownbert pretrain runs/tokens --size mini --max-minutes 30 -o runs/bert
    """
    from ownbert.pretraining.pretraining_run import pretrain as run
    from ownbert.train.device import keep_memory

    keep_memory()
    # The first argument is the store unless it is an override for a recipe that names the store.
    if tokens is not None and "=" in str(tokens) and not tokens.exists():
        overrides, tokens = [str(tokens), *(overrides or [])], None
    recipe = {"config": config, "overrides": overrides or (), **settings}
    if dry_run:
        from ownbert.pretraining.pretraining_run import preview_pretraining

        say(preview_pretraining(tokens, **recipe))
        return
    run(
        tokens,
        o.required_output(output),
        resume=resume,
        resume_step=resume_step,
        overwrite=overwrite,
        quiet=quiet,
        **recipe,
    )
