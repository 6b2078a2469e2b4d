"""Several trainings whose answers are averaged: one per fold of the rows, or one per seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from ownbert.checkpoint.agreement import agrees
from ownbert.checks import object_, record
from ownbert.errors import InputError
from ownbert.files import read_json, write_json, write_text
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuned_card import write_card
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.linear_baseline import LinearBaseline
from ownbert.folders import refuse_foreign
from ownbert.inference.compute import Compute
from ownbert.inference.opened import Networks, average, decide_all, describe_members
from ownbert.language import translated
from ownbert.run.file_names import ENSEMBLE, RECIPE
from ownbert.run.precision_check import EACH_AGREES
from ownbert.settings import dump
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.train.state_files import require_same_identity
from ownbert.train.watch.display import Display

_FORMAT = 1
_FILE = record({"identity": object_}, required=("identity",))


@dataclass(frozen=True)
class Ensemble:
    """Models that were trained with the same settings, and predict by the mean of their scores.

    Args:
        folder: predicts by this mean.
        members: the folders of the models.
        metrics: of folds, those on all training rows, each predicted by the member that was not
            trained on it; of seeds, those of the averaged predictions for dev rows.
        mean, spread: mean and standard deviation of the members' own metrics.
        dev: of folds, the metrics of the averaged predictions for dev rows, if any.
    """

    folder: Path
    members: tuple[Path, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    mean: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    dev: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Member:
    """rows: to train on and to evaluate on. held_out: the indices of the latter among all training
    rows; None: they are the dev rows."""

    name: str
    recipe: FinetuneRecipe
    rows: tuple[Sequence[Row], Sequence[Row] | None]
    held_out: Sequence[int] | None = None


def train_ensemble(run: FinetuningRun, folder: FinetuneFolder, *, quiet: bool) -> Ensemble:
    """Train the members that are not finished, in folders of their own, and evaluate them all.

    Writes the recipe, a model card and ``ensemble.json``, which makes ``predict`` and ``evaluate``
    average.

    Args:
        run: with its rows.
        folder: of the ensemble.
        quiet: show nothing.

    Raises:
        InputError: the rows cannot be split into so many folds.
    """
    output = folder.path
    members = _fold_members(run) if run.given.run.folds else _seed_members(run)
    if folder.resume and (output / ENSEMBLE).exists():
        require_same_identity(
            output, read_json(output / ENSEMBLE, check=_FILE)["identity"], run.identity
        )
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
        _train(run, member, folder.member(member.name), quiet=quiet)
    results = _Results(run, members, output)
    summaries = [
        {"folder": m.name, "seed": m.recipe.seed, "rows": len(m.rows[0]), "measures": values}
        for m, values in zip(members, results.each, strict=True)
    ]
    ensemble = results.ensemble()
    metrics = {"measures": ensemble.metrics, "mean": ensemble.mean}
    metrics |= {"spread": ensemble.spread, "dev": ensemble.dev}
    # With members only now, so that an incomplete ensemble cannot be used.
    write_json(output / ENSEMBLE, {**header, "members": summaries, **metrics})
    warning = write_card(
        output,
        run.recipe,
        run.splits.parts,
        metrics={name: [each[name] for each in results.each] for name in ensemble.mean},
        several=f"{len(members)} {kind}",
        model=ensemble.members[0],
        baseline=_baseline(run),
        precision=EACH_AGREES if all(map(agrees, ensemble.members)) else "",
    )
    if warning:
        display.say(warning)
    if not quiet:
        _show(display, members, results.each, ensemble)
    display.say(f"saved {output}")
    return ensemble


def _baseline(run: FinetuningRun) -> str:
    """How well a linear model does on the dev rows; empty for folds, which have other rows each."""
    found = None if run.given.run.folds else run.baseline()
    return found.sentence if isinstance(found, LinearBaseline) else ""


def _train(run: FinetuningRun, member: _Member, folder: FinetuneFolder, *, quiet: bool) -> None:
    if folder.resume and folder.finished:
        return
    one = FinetuningRun(member.recipe, member.rows, like=run)
    one.train(folder, quiet=quiet)


def _recipe(run: FinetuningRun, **changes: Any) -> FinetuneRecipe:
    """The recipe of a member, with the settings that reading the files has completed."""
    alone = replace(run.given.run, folds=None, seeds=None)
    return replace(run.given, task=run.task.settings, run=alone, **changes)


def _seed_members(run: FinetuningRun) -> list[_Member]:
    # The same rows for all seeds, even if labels_per_class has drawn them.
    rows, first = (run.splits.train_rows, run.splits.dev_rows), run.given.seed
    return [
        _Member(f"seed-{seed}", _recipe(run, seed=seed), rows)
        for seed in range(first, first + (run.given.run.seeds or 0))
    ]


def _fold_members(run: FinetuningRun) -> list[_Member]:
    count, rows = run.given.run.folds or 0, run.splits.train_rows
    if not run.task.averageable:
        raise InputError(f"run.folds averages answers, which cannot be done for {run.task.name}")
    texts = [run.task.fold_keys(row) for row in rows]
    folds = fold_of(rows, count, seed=run.given.seed, texts=texts)
    if len(set(folds)) < count:
        raise InputError(
            f"run.folds is {count}, but rows that share a text stay together, and the "
            f"{len(rows):,} training rows are only {len(set(folds))} such groups"
        )
    # A member is evaluated on its held-out rows.
    recipe = _recipe(run, data=replace(run.given.data, dev=None))
    members = []
    for fold in range(count):
        held_out = [i for i, own in enumerate(folds) if own == fold]
        rest = [row for row, own in zip(rows, folds, strict=True) if own != fold]
        split = (rest, [rows[i] for i in held_out])
        members.append(_Member(f"fold-{fold + 1}", recipe, split, held_out))
    return members


def fold_of(
    rows: Sequence[Row], count: int, *, seed: int, texts: Sequence[Sequence[Any]] | None = None
) -> list[int]:
    """The fold of each row, from 0.

    Folds have about the same size and, for single labels, the same distribution of labels.

    Args:
        rows: to divide.
        count: the number of folds.
        seed: of the draw.
        texts: of each row; rows that share one of them are in one fold, or answers could be
            memorised. By default all that the model reads.
    """
    groups = _groups([row.texts for row in rows] if texts is None else texts)
    order = np.random.default_rng(seed).permutation(len(groups))
    shuffled = sorted((groups[i] for i in order), key=len, reverse=True)
    sizes, labels = [0] * count, [Counter() for _ in range(count)]
    found = [0] * len(rows)
    for group in shuffled:
        own = Counter(t for i in group if isinstance(t := rows[i].target, str))
        costs = [
            (sum(labels[f][label] * n for label, n in own.items()), sizes[f]) for f in range(count)
        ]
        fold = costs.index(min(costs))
        labels[fold] += own
        sizes[fold] += len(group)
        for i in group:
            found[i] = fold
    return found


def _groups(texts: Sequence[Sequence[Any]]) -> list[list[int]]:
    """Groups of rows that are connected by shared texts, in the order of their first rows."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph in which each row is connected to the first row with one of its texts.
    first: dict[Any, int] = {}
    pairs = [(i, first.setdefault(text, i)) for i, own in enumerate(texts) for text in own]
    rows, firsts = np.asarray(pairs, dtype=np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, firsts)), shape=(len(texts),) * 2)
    _, components = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for row, component in enumerate(components.tolist()):
        groups.setdefault(component, []).append(row)
    return list(groups.values())


class _Results:
    """The members' predictions for the rows that they are evaluated on. each: their metrics."""

    def __init__(self, run: FinetuningRun, members: Sequence[_Member], output: Path) -> None:
        self.run, self.members, self.output = run, members, output
        self.predictors: list[Networks] = []
        self.decided: list[Any] = [None] * len(run.splits.train_rows)
        self.each = [self._evaluate(member) for member in members]

    def _evaluate(self, member: _Member) -> Mapping[str, float]:
        rows, run = member.rows[1], self.run.recipe.run
        if rows is None:
            return {}
        folder = self.output / member.name
        compute = Compute(run.device, run.precision)
        predictor = Networks(folder, describe_members(folder), compute)
        self.predictors.append(predictor)
        decided = decide_all(predictor, rows)
        for index, prediction in zip(member.held_out or (), decided, strict=False):
            self.decided[index] = prediction
        return predictor.task.score(rows, decided).values

    def ensemble(self) -> Ensemble:
        folders = tuple(self.output / member.name for member in self.members)
        # A fold may lack the rows that a metric is defined on (unanswerable questions).
        names = [n for n in self.each[0] if all(n in each for each in self.each)]
        values = {name: [each[name] for each in self.each] for name in names}
        ensemble = Ensemble(
            self.output,
            folders,
            mean={name: mean(v) for name, v in values.items()},
            spread={name: stdev(v) for name, v in values.items()},
        )
        if not self.predictors or not self.run.task.averageable:
            return ensemble
        averaged, splits = average(self.predictors), self.run.splits
        dev: Mapping[str, float] = {}
        if splits.dev_rows is not None:
            decided = decide_all(averaged, splits.dev_rows)
            dev = averaged.task.score(splits.dev_rows, decided).values
        if not self.run.given.run.folds:
            return replace(ensemble, metrics=dev)
        metrics = averaged.task.score(splits.train_rows, self.decided).values
        return replace(ensemble, metrics=metrics, dev=dev)


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
    lines += [("out of fold" if folds else "averaged answers", ensemble.metrics)]
    lines += [("dev, averaged answers", ensemble.dev)]
    for title, values in lines:
        if values:
            table.add_row(translated(title), *(f"{values[name]:.4f}" for name in names))
    display.console.print(table)
