"""Several fine-tuning runs in one folder: an ensemble of averaged models, one for each fold of the
rows or each seed, or a grid search, which keeps the best model on the dev rows."""

import itertools
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ownbert.checkpoint.description import agrees
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.checks import list_of, object_, record
from ownbert.exceptions import InputError
from ownbert.files.folders import is_ours, refuse_foreign
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import atomic_path, write_text
from ownbert.finetuning.finetune_folder import SEARCH, FinetuneFolder
from ownbert.finetuning.finetuned_card import write_card
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.finetuning.labelled_splits import fold_of
from ownbert.finetuning.linear_baseline import LinearBaseline
from ownbert.inference.engines import Compute
from ownbert.inference.opened import Networks, average, decide_all, describe_members
from ownbert.language import translated
from ownbert.nn.model import Model
from ownbert.run.file_names import CARD, ENSEMBLE, RECIPE
from ownbert.run.packed_encoder import EACH_AGREES
from ownbert.settings import dump
from ownbert.tasks.finetune_recipe import FinetuneRecipe, Search
from ownbert.tasks.related_rows import clusters_of
from ownbert.tasks.rows import Row
from ownbert.tasks.task import load_finetuned
from ownbert.train.display import Display, duration
from ownbert.train.log import BOARD, CURVES, LOG, read_log
from ownbert.train.metric_names import decimals
from ownbert.train.state import require_same_identity

_FORMAT = 1
_RUNS = list_of(object_, most=10_000)
_FILES = {
    ENSEMBLE: record({"identity": object_}, required=("identity",)),
    SEARCH: record({"identity": object_, "runs": _RUNS}, required=("identity", "runs")),
}
# Factors of the default learning rate in the usual grid.
USUAL_FACTORS = (0.5, 1.0, 2.0)
USUAL = {"epochs": (2, 4, 8), "batch_size": (16, 32)}
# Files that a search keeps of runs that were not the best.
_KEPT = (LOG, CURVES, RECIPE, BOARD)


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


def _earlier(run: FinetuningRun, folder: FinetuneFolder, name: str) -> dict[str, Any]:
    """The content of the JSON file ``name`` of an earlier call that is resumed; empty if none."""
    if not folder.resume or not (folder.path / name).exists():
        return {}
    before = read_json(folder.path / name, check=_FILES[name])
    require_same_identity(folder.path, before["identity"], run.identity)
    return before


def _begin(run: FinetuningRun, folder: FinetuneFolder, subfolders: Sequence[str]) -> None:
    """Check everything, then write the recipe."""
    refuse_foreign(folder.path, subfolders)
    run.check_model()
    folder.reserve(run.identity)
    write_text(folder.path / RECIPE, dump(run.given))


def train_ensemble(run: FinetuningRun, folder: FinetuneFolder, *, quiet: bool) -> Ensemble:
    """Train the unfinished members in separate folders, and evaluate all members.

    Writes the recipe, a model card and ``ensemble.json``, which ``predict`` and ``evaluate`` need
    for averaging.

    Raises:
        InputError: the rows cannot be split into this many folds.
    """
    output, kind = folder.path, "folds" if run.given.run.folds else "seeds"
    if kind == "folds":
        members = _fold_members(run)
    else:  # the same rows for all seeds, even if they were sampled by labels_per_class
        seeds = range(run.given.seed, run.given.seed + (run.given.run.seeds or 0))
        rows = run.splits.rows
        members = [_Member(f"seed-{seed}", _recipe(run, seed=seed), rows) for seed in seeds]
    _earlier(run, folder, ENSEMBLE)
    _begin(run, folder, [member.name for member in members])
    header = {"format": _FORMAT, "kind": kind, "identity": run.identity}
    write_json(output / ENSEMBLE, {**header, "members": []})
    display = Display("finetune", quiet=quiet)
    run.adapt(folder, quiet=quiet)
    for number, member in enumerate(members, start=1):
        display.say("{name}, {number} of {count}", member.name, number, len(members))
        subfolder = folder.member(member.name)
        if not (subfolder.resume and subfolder.finished):
            FinetuningRun(member.recipe, member.rows, like=run).train(subfolder, quiet=quiet)
    ensemble, scores = _evaluated(run, members, output)
    summaries = [
        {"folder": m.name, "seed": m.recipe.seed, "rows": len(m.rows[0]), "measures": values}
        for m, values in zip(members, scores, strict=True)
    ]
    metrics = {"measures": ensemble.metrics, "mean": ensemble.mean}
    metrics |= {"spread": ensemble.spread, "dev": ensemble.dev}
    # Members are listed only now, so that an incomplete ensemble cannot be used.
    write_json(output / ENSEMBLE, {**header, "members": summaries, **metrics})
    # Folds have different rows, so there is no baseline for all of them.
    baseline = None if kind == "folds" else run.baseline()
    warning = write_card(
        output,
        run.recipe,
        run.splits.parts,
        metrics={name: [values[name] for values in scores] for name in ensemble.mean},
        several=f"{len(members)} {kind}",
        model=ensemble.members[0],
        baseline=baseline.sentence if isinstance(baseline, LinearBaseline) else "",
        precision=EACH_AGREES if all(map(agrees, describe_members(output))) else "",
    )
    if warning:
        display.say(warning)
    if not quiet:
        _show_members(display, members, scores, ensemble)
    display.say("saved {output}", output)
    return ensemble


def _recipe(run: FinetuningRun, **changes: Any) -> FinetuneRecipe:
    """The recipe of a member, with the settings completed by reading the files."""
    run_settings = replace(run.given.run, folds=None, seeds=None)
    return replace(run.given, task=run.task.settings, run=run_settings, **changes)


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
            "run.folds is {count}, but rows that share {shared} stay together, and the "
            "{count2:,} training rows form only {count3} such groups",
            *(count, shared, len(rows), len(set(folds))),
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


def _evaluated(
    run: FinetuningRun, members: Sequence[_Member], output: Path
) -> tuple[Ensemble, list[Mapping[str, float]]]:
    """The ensemble with its metrics, and the metrics of each member on its evaluation rows."""
    splits, compute = run.splits, Compute(run.recipe.run.device, run.recipe.run.precision)
    folders = tuple(output / member.name for member in members)
    scores: list[Mapping[str, float]] = [{}] * len(members)
    out_of_fold: list[Any] = [None] * len(splits.train_rows)
    predictors: list[Networks] = []
    for number, (member, folder) in enumerate(zip(members, folders, strict=True)):
        if (rows := member.rows[1]) is not None:
            predictors.append(Networks(folder, describe_members(folder), compute))
            decided = decide_all(predictors[-1], rows)
            for index, prediction in zip(member.held_out or (), decided, strict=False):
                out_of_fold[index] = prediction
            scores[number] = predictors[-1].task.score(rows, decided).values
    # A metric may be undefined in a fold (without unanswerable questions).
    names = [name for name in scores[0] if all(name in values for values in scores)]
    values = {name: [member[name] for member in scores] for name in names}
    means, spread = ({n: of(v) for n, v in values.items()} for of in (mean, stdev))
    ensemble = Ensemble(output, folders, mean=means, spread=spread)
    if not predictors or not run.task.averageable:
        return ensemble, scores
    averaged = average(predictors)
    dev: Mapping[str, float] = {}
    if splits.dev_rows is not None:
        decided = decide_all(averaged, splits.dev_rows)
        dev = averaged.task.score(splits.dev_rows, decided).values
    if not run.given.run.folds:
        return replace(ensemble, metrics=dev), scores
    metrics = averaged.task.score(splits.train_rows, out_of_fold).values
    return replace(ensemble, metrics=metrics, dev=dev), scores


def _table(title: str, columns: Sequence[str]) -> Any:
    from rich.table import Table

    table = Table(title, box=None, pad_edge=False)
    for name in columns:
        table.add_column(translated(name), justify="right")
    return table


def _show_members(
    display: Display,
    members: Sequence[_Member],
    scores: Sequence[Mapping[str, float]],
    ensemble: Ensemble,
) -> None:
    names = list(ensemble.mean)
    if not names:
        display.say("no --dev: no rows to evaluate the members on")
        return
    table = _table("", [name.replace("_", " ").replace("f1", "F1") for name in names])
    folds = members[0].held_out is not None
    lines = [(m.name, values) for m, values in zip(members, scores, strict=True)]
    lines += [("mean", ensemble.mean), ("standard deviation", ensemble.spread)]
    lines += [("out of fold" if folds else "averaged predictions", ensemble.metrics)]
    lines += [("dev, averaged predictions", ensemble.dev)]
    for title, values in lines:
        if values:
            table.add_row(translated(title), *(decimals(values[name], 4) for name in names))
    display.console.print(table)


def search(run: FinetuningRun, folder: FinetuneFolder, *, quiet: bool) -> Model:
    """Train with each combination of settings in the grid, and keep the best model.

    Each run is in ``search/run-N`` inside ``folder``, and the best model is moved to ``folder``;
    logs and recipes of the others are kept. ``search.json`` lists all combinations with the metrics
    of their best evaluations.

    Raises:
        InputError: there are no dev rows.
    """
    if run.splits.dev_rows is None:
        raise InputError("a search needs {--dev}: labelled rows for comparing the settings")
    if run.given.run.max_steps and (run.given.search.usual or run.given.search.epochs):
        raise InputError("run.max_steps would end all runs of a search over epochs; omit it")
    output, candidates = folder.path, list(combinations(run))
    results = list(_earlier(run, folder, SEARCH).get("runs", ()))
    _begin(run, folder, ["search"])
    display = Display("finetune", quiet=quiet)
    run.adapt(folder, quiet=quiet)
    for number, settings in enumerate(candidates, start=1):
        if number > len(results):
            shown = ", ".join(f"{n.replace('_', ' ')} {v:g}" for n, v in settings.items())
            display.say("run {number} of {count}: {tried}", number, len(candidates), shown)
            subfolder = folder.member(f"search/run-{number}")
            metrics, seconds = _train(run, settings, subfolder, output.resolve().name, quiet)
            result = {"folder": f"search/run-{number}", **settings, "measures": metrics}
            results.append(result | {"seconds": seconds})
        best = max(range(len(results)), key=lambda i: _value(run, results[i]["measures"]))
        header = {"format": _FORMAT, "identity": run.identity, "measure": run.monitor.metric}
        write_json(output / SEARCH, {**header, "best": best + 1, "runs": results})
        for other, result in enumerate(results):
            for path in (output / result["folder"]).iterdir() if other != best else ():
                if path.name not in _KEPT:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    best = max(range(len(results)), key=lambda i: _value(run, results[i]["measures"]))
    if not quiet:
        _show_runs(display, results, best, run.monitor.metric)
    _move_best(output / results[best]["folder"], output)
    display.say("saved {output}: run {best} is the best", output, best + 1)
    return load_finetuned(output)[1]


def combinations(run: FinetuningRun) -> Iterator[dict[str, Any]]:
    """Yield learning rate, epochs and batch size of each run.

    Settings that are not searched have their usual values.
    """
    recipe, grid = run.recipe, run.given.search
    rate = recipe.optim.learning_rate or run.defaults.learning_rate
    default: dict[str, tuple[Any, ...]] = {
        "learning_rate": (rate,),
        "epochs": (recipe.run.epochs,),
        "batch_size": (recipe.data.batch_size,),
    }
    if grid.usual:
        default = {"learning_rate": tuple(rate * factor for factor in USUAL_FACTORS), **USUAL}
    for values in itertools.product(*(getattr(grid, name) or default[name] for name in default)):
        yield dict(zip(default, values, strict=True))


def _train(
    run: FinetuningRun, settings: Mapping[str, Any], folder: FinetuneFolder, name: str, quiet: bool
) -> tuple[Mapping[str, float], float]:
    """Train one combination; return the metrics of its best evaluation, and the seconds."""
    sampled, best = False, {}
    if not (folder.resume and folder.finished):
        recipe = _recipe(
            run,
            search=Search(),
            optim=replace(run.given.optim, learning_rate=settings["learning_rate"]),
            data=replace(run.given.data, batch_size=settings["batch_size"]),
        )
        recipe = replace(recipe, run=replace(recipe.run, epochs=settings["epochs"]))
        candidate = FinetuningRun(recipe, run.splits.rows, like=run)
        candidate.name = name
        candidate.train(folder, quiet=quiet)
        sampled, best = candidate.splits.sample is not None, candidate.metrics
    evaluations = [row for row in read_log(folder.path) if row.get("evaluation")]
    # The log only has a sample of many dev rows, which is too small for comparing runs.
    if not sampled:
        best = max(evaluations, key=lambda row: _value(run, row))
    metrics = {name: best[name] for name in (*run.task.metrics, "loss") if name in best}
    return metrics, evaluations[-1]["seconds"]


def _value(run: FinetuningRun, metrics: Mapping[str, float]) -> float:
    """The value of the monitored metric, negated if lower is better."""
    value = metrics[run.monitor.metric]
    if not math.isfinite(value):
        return -math.inf
    return -value if run.monitor.lower else value


def _move_best(best: Path, output: Path) -> None:
    """Move the best model to the output folder; weights last, because they mark it as finished."""
    for name in (LOG, CURVES):
        if (best / name).exists():
            with atomic_path(output / name) as new:
                shutil.copyfile(best / name, new)
    if (output / CARD).exists() and not is_ours(output / CARD):
        (best / CARD).unlink(missing_ok=True)
    for path in sorted(best.iterdir(), key=lambda path: path.name == WEIGHTS):
        if path.name not in _KEPT:
            if path.is_dir():
                shutil.rmtree(output / path.name, ignore_errors=True)
            os.replace(path, output / path.name)


def _show_runs(display: Display, results: list[dict[str, Any]], best: int, metric: str) -> None:
    columns = ("learning rate", "epochs", "batch size", metric.replace("_", " "), "time")
    table = _table(translated("run"), columns)
    for number, result in enumerate(results):
        table.add_row(
            translated("{number} (best)", number + 1) if number == best else f"{number + 1}",
            f"{result['learning_rate']:g}",
            str(result["epochs"]),
            str(result["batch_size"]),
            decimals(result["measures"][metric], 4),
            duration(result["seconds"]),
        )
    display.console.print(table)
