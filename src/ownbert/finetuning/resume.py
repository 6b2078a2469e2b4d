"""Folders of fine-tuning runs: by which recipe a run goes on, whether it is finished, and what
may be written over."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.checkpoint.weights import WEIGHTS
from ownbert.errors import InputError
from ownbert.run.run_folder import ENSEMBLE, RECIPE, claim_output, resolve_run
from ownbert.settings import resolve
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.train.state_files import newest

# What a search has tried, beside the folder ``search`` of its runs.
SEARCH = "search.json"
# What tells sentence-transformers that a folder gives vectors.
_LEFT = ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json")
# Where the texts of the task were learnt first.
PRETRAINED = "pretrained"


def finished(folder: Path) -> bool:
    """Whether a run came to its end there: it has a model, and no states to go on from."""
    there = (folder / WEIGHTS).exists() and (folder / RECIPE).exists()
    return there and newest(folder) is None


def resolve_begun(
    output: Path,
    *,
    config: str | Path | None,
    overrides: Sequence[str],
    resume: bool,
    options: Mapping[str, Any],
) -> FinetuneRecipe:
    """As ``resolve_run``, for what can be resumed before it has a state of its own: one of the
    runs that it consists of may be finished. With other epochs it has other steps."""
    begun = resume and (output / RECIPE).exists()
    now = resolve_run(
        FinetuneRecipe, output, config=config, overrides=overrides, begun=begun, options=options
    )
    if not begun:
        return now
    before = resolve(FinetuneRecipe, config=output / RECIPE)
    if now.run.seeds and not before.run.seeds:
        raise InputError(
            f"cannot resume {output}: run.seeds was None and is now {now.run.seeds}; one run does "
            "not become several: choose another folder, or start anew with --overwrite"
        )
    several = any((output / name).exists() for name in (ENSEMBLE, SEARCH))
    if several and (now.run.epochs, now.optim.learning_rate) != (
        before.run.epochs,
        before.optim.learning_rate,
    ):
        raise InputError(
            f"cannot resume {output} with other epochs or another learning rate: its runs would no "
            "longer be alike; leave these as they were, or start anew with --overwrite"
        )
    if now.run.epochs != before.run.epochs and now.run.max_steps == before.run.max_steps:
        # The steps were those of the epochs.
        now = replace(now, run=replace(now.run, max_steps=None))
    return now


def claim(output: Path, *, resume: bool, overwrite: bool, identity: Mapping[str, str]) -> None:
    """As ``claim_output``, for folders that may hold several runs too; with ``overwrite`` all
    that earlier ones left goes."""
    several = [name for name in (ENSEMBLE, SEARCH) if (output / name).exists()]
    if several and not (resume or overwrite):
        raise InputError(
            f"{output} already holds several runs ({several[0]}); go on with --resume, start anew "
            "with --overwrite, or choose another folder"
        )
    claim_output(output, resume=resume, overwrite=overwrite, identity=identity)
    if overwrite and not resume:
        folders = [output / "search"] if SEARCH in several else []
        if ENSEMBLE in several:
            folders += [*output.glob("fold-[0-9]*"), *output.glob("seed-[0-9]*")]
        for folder in (*folders, output / PRETRAINED):
            shutil.rmtree(folder, ignore_errors=True)
        for name in (*several, *_LEFT):
            (output / name).unlink(missing_ok=True)
