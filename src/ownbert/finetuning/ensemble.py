"""Several trainings whose answers are averaged: one per fold of the rows, or one per seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.errors import InputError
from ownbert.files import read_json, write_json, write_text
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuned_card import write_card
from ownbert.finetuning.run import FinetuningRun
from ownbert.inference.predictor import Predictor, combine_tasks, decide_all
from ownbert.run.run_folder import ENSEMBLE, RECIPE
from ownbert.settings import dump
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.tasks.rows import Row
from ownbert.tasks.task import task_of
from ownbert.train.display import Display
from ownbert.train.state_files import require_same_identity

_FORMAT = 1


@dataclass(frozen=True)
class Ensemble:
    """Models that were trained alike, in ``members``; ``folder`` answers with their mean.

    measures: of folds, those of all training rows, each answered by the model that has not seen
    it; of seeds, those of the averaged answers to the dev rows. mean, spread: of the members'
    own measures, and their standard deviation. dev: of folds, the averaged answers to dev rows,
    where there were any.
    """

    folder: Path
    members: tuple[Path, ...]
    measures: Mapping[str, float] = field(default_factory=dict)
    mean: Mapping[str, float] = field(default_factory=dict)
    spread: Mapping[str, float] = field(default_factory=dict)
    dev: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Member:
    """held: which training rows it is measured by; None: the dev rows."""

    name: str
    recipe: FinetuneRecipe
    rows: tuple[Sequence[Row], Sequence[Row] | None]
    held: Sequence[int] | None = None


def train_ensemble(run: FinetuningRun, folder: FinetuneFolder, *, quiet: bool) -> Ensemble:
    """Train the members that are not finished, in folders of their own, and measure them all.

    Writes ``ensemble.json``, which makes ``predict`` and ``evaluate`` average, the recipe and a
    model card. Raises ``InputError`` for folds that the rows cannot give.
    """
    output = folder.path
    members = _fold_members(run) if run.given.run.folds else _seed_members(run)
    folder.reserve(run.identity)
    if folder.resume and (output / ENSEMBLE).exists():
        require_same_identity(output, read_json(output / ENSEMBLE)["identity"], run.identity)
    write_text(output / RECIPE, dump(run.given))
    kind = "folds" if run.given.run.folds else "seeds"
    about = {"format": _FORMAT, "kind": kind, "identity": run.identity}
    write_json(output / ENSEMBLE, {**about, "members": []})
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
    # Only now, so that a half-trained ensemble answers nothing.
    write_json(output / ENSEMBLE, {**about, "members": summaries})
    found = results.ensemble()
    figures = {name: getattr(found, name) for name in ("measures", "mean", "spread", "dev")}
    write_json(output / ENSEMBLE, {**about, "members": summaries, **figures})
    values = {name: [each[name] for each in results.each] for name in found.mean}
    several = f"{len(members)} {kind}"
    warning = write_card(
        output,
        run.recipe,
        run.splits.parts,
        measures=values,
        several=several,
        model=found.members[0],
    )
    if warning:
        display.say(warning)
    if not quiet:
        _show(display, members, results.each, found)
    display.say(f"saved {output}")
    return found


def _train(run: FinetuningRun, member: _Member, folder: FinetuneFolder, *, quiet: bool) -> None:
    if folder.resume and folder.finished:
        return
    one = FinetuningRun(member.recipe, member.rows, like=run)
    one.reserve(folder)
    one.train(folder, quiet=quiet)


def _recipe(run: FinetuningRun, **changes: Any) -> FinetuneRecipe:
    """That of a member: what the reader found out of the files is kept in its settings."""
    alone = replace(run.given.run, folds=None, seeds=None)
    return replace(run.given, task=run.task.settings, run=alone, **changes)


def _seed_members(run: FinetuningRun) -> list[_Member]:
    # The rows stay the same, also where labels_per_class draws them.
    rows, first = (run.splits.train_rows, run.splits.dev_rows), run.given.seed
    return [
        _Member(f"seed-{seed}", _recipe(run, seed=seed), rows)
        for seed in range(first, first + (run.given.run.seeds or 0))
    ]


def _fold_members(run: FinetuningRun) -> list[_Member]:
    count, rows = run.given.run.folds or 0, run.splits.train_rows
    if not run.task.averages:
        raise InputError(f"run.folds averages answers, which cannot be done for {run.task.name}")
    texts = [run.task.kept_together(row) for row in rows]
    folds = fold_of(rows, count, seed=run.given.seed, texts=texts)
    if len(set(folds)) < count:
        raise InputError(
            f"run.folds is {count}, but rows that share a text stay together, and the "
            f"{len(rows):,} training rows are only {len(set(folds))} such groups"
        )
    # The dev rows of a member are those that it does not learn from.
    recipe = _recipe(run, data=replace(run.given.data, dev=None))
    members = []
    for fold in range(count):
        held = [i for i, own in enumerate(folds) if own == fold]
        rest = [row for row, own in zip(rows, folds, strict=True) if own != fold]
        split = (rest, [rows[i] for i in held])
        members.append(_Member(f"fold-{fold + 1}", recipe, split, held))
    return members


def fold_of(
    rows: Sequence[Row], count: int, *, seed: int, texts: Sequence[Sequence[Any]] | None = None
) -> list[int]:
    """The fold of each row, from 0: folds of about the same size and, where answers are single
    labels, the same shares of them. Rows that share one of their ``texts`` (by default all that
    the model reads) are in one fold, or answers could be remembered."""
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
    """Rows that hang together by a text of theirs, in the order of their first."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of rows, each tied to the first one that has one of its texts.
    first: dict[Any, int] = {}
    pairs = [(i, first.setdefault(text, i)) for i, own in enumerate(texts) for text in own]
    rows, ties = zip(*pairs, strict=True) if pairs else ((), ())
    graph = coo_array((np.ones(len(rows)), (rows, ties)), shape=(len(texts),) * 2)
    _, components = connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for row, component in enumerate(components.tolist()):
        groups.setdefault(component, []).append(row)
    return list(groups.values())


class _Results:
    """What the members answer. each: their measures."""

    def __init__(self, run: FinetuningRun, members: Sequence[_Member], output: Path) -> None:
        self.run, self.members, self.output = run, members, output
        self.decided: list[Any] = [None] * len(run.splits.train_rows)
        self.each = [self._measure(member) for member in members]

    def _predictor(self, folder: Path) -> Predictor:
        run = self.run.recipe.run
        return Predictor(folder, device=run.device, precision=run.precision)

    def _measure(self, member: _Member) -> Mapping[str, float]:
        rows = member.rows[1]
        if rows is None:
            return {}
        predictor = self._predictor(self.output / member.name)
        decided = decide_all(predictor, rows)
        for index, one in zip(member.held or (), decided, strict=False):
            self.decided[index] = one
        return predictor.task.score(rows, decided).values

    def ensemble(self) -> Ensemble:
        folders = tuple(self.output / member.name for member in self.members)
        # A fold without rows of some kind lacks the measures of these.
        names = [n for n in self.each[0] if all(n in each for each in self.each)]
        values = {name: [each[name] for each in self.each] for name in names}
        found = Ensemble(
            self.output,
            folders,
            mean={name: mean(v) for name, v in values.items()},
            spread={name: stdev(v) for name, v in values.items()},
        )
        dev = self._averaged()
        if not self.run.given.run.folds:
            return replace(found, measures=dev)
        task = combine_tasks([task_of(describe(folder), folder) for folder in folders])
        measures = task.score(self.run.splits.train_rows, self.decided).values
        return replace(found, measures=measures, dev=dev)

    def _averaged(self) -> Mapping[str, float]:
        """Measures of the averaged answers to the dev rows, where there are any."""
        rows = self.run.splits.dev_rows
        if rows is None or not self.run.task.averages:
            return {}
        predictor = self._predictor(self.output)
        return predictor.task.score(rows, decide_all(predictor, rows)).values


def _show(
    display: Display,
    members: Sequence[_Member],
    each: Sequence[Mapping[str, float]],
    found: Ensemble,
) -> None:
    from rich.table import Table

    names = list(found.mean)
    if not names:
        display.say("no --dev: nothing to measure the members by")
        return
    table = Table("", box=None, pad_edge=False)
    for name in names:
        table.add_column(name.replace("_", " ").replace("f1", "F1"), justify="right")
    folds = members[0].held is not None
    lines = [(m.name, values) for m, values in zip(members, each, strict=True)]
    lines += [("mean", found.mean), ("standard deviation", found.spread)]
    lines += [("out of fold" if folds else "averaged answers", found.measures)]
    lines += [("dev, averaged answers", found.dev)]
    for title, values in lines:
        if values:
            table.add_row(title, *(f"{values[name]:.4f}" for name in names))
    display.console.print(table)
