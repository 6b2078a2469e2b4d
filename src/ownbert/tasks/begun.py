"""Folders of fine-tuning runs: by which recipe a run goes on, whether it is finished, and what
may be written over."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ownbert.checkpoint.weights import WEIGHTS
from ownbert.errors import InputError
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.train.output import RECIPE, claim_output
from ownbert.train.recipe import FREE
from ownbert.train.saved import newest
from ownbert.train.settings import resolve

# Which folders an ensemble is made of.
ENSEMBLE = "ensemble.json"
# What a search has tried, beside the folder ``search`` of its runs.
SEARCH = "search.json"
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
    """The recipe of a run; a resumed one starts from the recipe in ``output``.

    Raises ``InputError`` when it is then asked for what only a new run can have.
    """
    given: dict[str, Any] = {"config": config, "overrides": overrides, "options": options}
    if not (resume and (output / RECIPE).exists()):
        return resolve(FinetuneRecipe, **given)
    before = resolve(FinetuneRecipe, config=output / RECIPE)
    now = resolve(FinetuneRecipe, **given, base=before)
    new = dict(_flat(asdict(now)))
    # More seeds may follow, but one run does not become several.
    free = {*FREE} - ({"run.seeds"} if before.run.seeds is None else set())
    for name, old in _flat(asdict(before)):
        if name not in free and new[name] != old and new[name] not in (None, "auto"):
            raise InputError(
                f"cannot resume {output}: {name} was {old!r} and is now {new[name]!r}; leave it as "
                "it was, or start anew with --overwrite"
            )
    if now.run.epochs != before.run.epochs and now.run.max_steps == before.run.max_steps:
        # The steps were those of the epochs.
        now = replace(now, run=replace(now.run, max_steps=None))
    return now


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


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
        for name in several:
            (output / name).unlink()
