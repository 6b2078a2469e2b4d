"""Ensembles of averaged models: one per fold of the rows, or one per seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from ownbert.checkpoint.agreement import agrees
from ownbert.checks import object_, record
from ownbert.exceptions import InputError
from ownbert.files.folders import refuse_foreign
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import write_text
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuned_card import write_card
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.linear_baseline import LinearBaseline
from ownbert.inference.engines import Compute
from ownbert.inference.opened import Networks, average, decide_all, describe_members
from ownbert.language import translated
from ownbert.run.file_names import ENSEMBLE, RECIPE
from ownbert.run.precision_check import EACH_AGREES
from ownbert.settings import dump
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.rows import Row
from ownbert.train.state_files import require_same_identity
from ownbert.train.watch.display import Display
from ownbert.train.watch.metric_names import decimals

_FORMAT = 1
_FILE = record({"identity": object_}, required=("identity",))


@dataclass(frozen=True)
class Ensemble:
    """Models trained with the same settings, whose outputs are averaged.

    Args:
        folder: folder of the ensemble.
        members: folders of the models.
        metrics: for folds, out-of-fold metrics on all training rows; for seeds, metrics of the
            averaged predictions for dev rows.
        mean: mean of the members' own metrics.
        spread: standard deviation of the members' own metrics.
        dev: for folds, metrics of the averaged predictions for dev rows, if any.
    """

    folder: Path
    members: tuple[Path, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    mean: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    dev: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Member:
    """A training run of one model, with its training and evaluation rows; ``held_out`` are the
    indices of the latter among all training rows, None if they are the dev rows."""

    name: str
    recipe: FinetuneRecipe
    rows: tuple[Sequence[Row], Sequence[Row] | None]
    held_out: Sequence[int] | None = None


def train_ensemble(run: FinetuningRun, folder: FinetuneFolder, *, quiet: bool) -> Ensemble:
    """Train the unfinished members in separate folders, and evaluate all members.

    Writes the recipe, a model card and ``ensemble.json``, which ``predict`` and ``evaluate`` need
    for averaging.

    Raises:
        InputError: the rows cannot be split into this many folds.
    """
    output = folder.path
    members = _fold_members(run) if run.given.run.folds else _seed_members(run)
    if folder.resume and (output / ENSEMBLE).exists():
        before = read_json(output / ENSEMBLE, check=_FILE)
        require_same_identity(output, before["identity"], run.identity)
    refuse_foreign(output, [member.name for member in members])
    run.check_model()
    folder.reserve(run.identity)
    write_text(output / RECIPE, dump(run.given))
    kind = "folds" if run.given.run.folds else "seeds"
    header = {"format": _FORMAT, "kind": kind, "identity": run.identity}
    write_json(output / ENSEMBLE, {**header, "members": []})
    display = Display("finetune", quiet=quiet)
    run.adapt(folder, quiet=quiet)
    for number, member in enumerate(members, start=1):
        display.say(f"{member.name}, {number} of {len(members)}")
        one = folder.member(member.name)
        if not (one.resume and one.finished):
            FinetuningRun(member.recipe, member.rows, like=run).train(one, quiet=quiet)
    ensemble, each = _evaluated(run, members, output)
    summaries = [
        {"folder": m.name, "seed": m.recipe.seed, "rows": len(m.rows[0]), "measures": values}
        for m, values in zip(members, each, strict=True)
    ]
    metrics = {"measures": ensemble.metrics, "mean": ensemble.mean}
    metrics |= {"spread": ensemble.spread, "dev": ensemble.dev}
    # Members are listed only now, so that an incomplete ensemble cannot be used.
    write_json(output / ENSEMBLE, {**header, "members": summaries, **metrics})
    warning = write_card(
        output,
        run.recipe,
        run.splits.parts,
        metrics={name: [own[name] for own in each] for name in ensemble.mean},
        several=f"{len(members)} {kind}",
        model=ensemble.members[0],
        baseline=_baseline(run),
        precision=EACH_AGREES if all(map(agrees, describe_members(output))) else "",
    )
    if warning:
        display.say(warning)
    if not quiet:
        _show(display, members, each, ensemble)
    display.say(f"saved {output}")
    return ensemble


def _baseline(run: FinetuningRun) -> str:
    """The linear baseline on the dev rows as text; empty for folds, whose rows differ."""
    baseline = None if run.given.run.folds else run.baseline()
    return baseline.sentence if isinstance(baseline, LinearBaseline) else ""


def _recipe(run: FinetuningRun, **changes: Any) -> FinetuneRecipe:
    """The recipe of a member, with the settings completed by reading the files."""
    run_settings = replace(run.given.run, folds=None, seeds=None)
    return replace(run.given, task=run.task.settings, run=run_settings, **changes)


def _seed_members(run: FinetuningRun) -> list[_Member]:
    # The same rows for all seeds, even if they were sampled by labels_per_class.
    rows, first = (run.splits.train_rows, run.splits.dev_rows), run.given.seed
    return [
        _Member(f"seed-{seed}", _recipe(run, seed=seed), rows)
        for seed in range(first, first + (run.given.run.seeds or 0))
    ]


def _fold_members(run: FinetuningRun) -> list[_Member]:
    count, rows, task = run.given.run.folds or 0, run.splits.train_rows, run.task
    if not task.averageable:
        raise InputError(
            "run.folds averages predictions, which is not possible for {name}", task.name
        )
    clusters = clusters_of([task.fold_keys(row) for row in rows])
    folds = fold_of(rows, count, seed=run.given.seed, clusters=clusters)
    if len(set(folds)) < count:
        shared = "a text" if run.splits.split.group is None else "a text or a group"
        raise InputError(
            f"run.folds is {count}, but rows that share {shared} stay together, and the "
            f"{len(rows):,} training rows form only {len(set(folds))} such groups"
        )
    # Members are evaluated on their held-out rows.
    recipe = _recipe(run, data=replace(run.given.data, dev=None))
    members = []
    for fold in range(count):
        held_out = [i for i, row_fold in enumerate(folds) if row_fold == fold]
        rest = [row for row, row_fold in zip(rows, folds, strict=True) if row_fold != fold]
        split = (rest, [rows[i] for i in held_out])
        members.append(_Member(f"fold-{fold + 1}", recipe, split, held_out))
    return members


def fold_of(rows: Sequence[Row], count: int, *, seed: int, clusters: np.ndarray) -> list[int]:
    """Assign each row to a fold, numbered from 0.

    Folds have about the same size and, for single labels, the same label distribution.

    Args:
        rows: rows to split.
        count: number of folds.
        seed: seed of the random split.
        clusters: cluster (N) of each row; rows of a cluster are assigned to the same fold, see
            ``clusters_of``.
    """
    members: dict[int, list[int]] = {}
    for row, cluster in enumerate(clusters.tolist()):
        members.setdefault(cluster, []).append(row)
    groups = list(members.values())
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = sorted((groups[i] for i in order), key=len, reverse=True)
    sizes, labels = [0] * count, [Counter() for _ in range(count)]
    fold_of_row = [0] * len(rows)
    for group in shuffled:
        votes = Counter(t for i in group if isinstance(t := rows[i].target, str))
        known = zip(labels, sizes, strict=True)
        costs = [(sum(own[label] * n for label, n in votes.items()), size) for own, size in known]
        fold = costs.index(min(costs))
        labels[fold] += votes
        sizes[fold] += len(group)
        for i in group:
            fold_of_row[i] = fold
    return fold_of_row


def _evaluated(
    run: FinetuningRun, members: Sequence[_Member], output: Path
) -> tuple[Ensemble, list[Mapping[str, float]]]:
    """The ensemble with its metrics, and the metrics of each member on its evaluation rows."""
    splits, compute = run.splits, Compute(run.recipe.run.device, run.recipe.run.precision)
    folders = tuple(output / member.name for member in members)
    each: list[Mapping[str, float]] = [{}] * len(members)
    out_of_fold: list[Any] = [None] * len(splits.train_rows)
    predictors: list[Networks] = []
    for number, (member, folder) in enumerate(zip(members, folders, strict=True)):
        if (rows := member.rows[1]) is not None:
            predictors.append(Networks(folder, describe_members(folder), compute))
            decided = decide_all(predictors[-1], rows)
            for index, prediction in zip(member.held_out or (), decided, strict=False):
                out_of_fold[index] = prediction
            each[number] = predictors[-1].task.score(rows, decided).values
    # A metric may be undefined in a fold (without unanswerable questions).
    names = [name for name in each[0] if all(name in own for own in each)]
    values = {name: [own[name] for own in each] for name in names}
    means, spread = ({n: of(v) for n, v in values.items()} for of in (mean, stdev))
    ensemble = Ensemble(output, folders, mean=means, spread=spread)
    if not predictors or not run.task.averageable:
        return ensemble, each
    averaged = average(predictors)
    dev: Mapping[str, float] = {}
    if splits.dev_rows is not None:
        decided = decide_all(averaged, splits.dev_rows)
        dev = averaged.task.score(splits.dev_rows, decided).values
    if not run.given.run.folds:
        return replace(ensemble, metrics=dev), each
    metrics = averaged.task.score(splits.train_rows, out_of_fold).values
    return replace(ensemble, metrics=metrics, dev=dev), each


def _show(
    display: Display,
    members: Sequence[_Member],
    each: Sequence[Mapping[str, float]],
    ensemble: Ensemble,
) -> None:
    from rich.table import Table

    names = list(ensemble.mean)
    if not names:
        display.say("no --dev: no rows to evaluate the members on")
        return
    table = Table("", box=None, pad_edge=False)
    for name in names:
        table.add_column(translated(name.replace("_", " ").replace("f1", "F1")), justify="right")
    folds = members[0].held_out is not None
    lines = [(m.name, values) for m, values in zip(members, each, strict=True)]
    lines += [("mean", ensemble.mean), ("standard deviation", ensemble.spread)]
    lines += [("out of fold" if folds else "averaged predictions", ensemble.metrics)]
    lines += [("dev, averaged predictions", ensemble.dev)]
    for title, values in lines:
        if values:
            table.add_row(translated(title), *(decimals(values[name], 4) for name in names))
    display.console.print(table)
