"""Grid search: train with every combination of settings and keep the best model on the dev rows."""

import itertools
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.checks import list_of, object_, record
from ownbert.exceptions import InputError
from ownbert.files.folders import is_ours, refuse_foreign
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import atomic_path, write_text
from ownbert.finetuning.finetune_folder import SEARCH, FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.language import translated
from ownbert.nn.model import Model
from ownbert.run.file_names import CARD, RECIPE
from ownbert.settings import dump
from ownbert.tasks.finetune_recipe import FinetuneRecipe, Search
from ownbert.tasks.task import load_finetuned
from ownbert.train.state_files import require_same_identity
from ownbert.train.watch.display import Display, duration
from ownbert.train.watch.log import BOARD, CURVES, LOG, read_log
from ownbert.train.watch.metric_names import decimals

_FORMAT = 1
_FILE = record(
    {"identity": object_, "runs": list_of(object_, most=10_000)}, required=("identity", "runs")
)
# Factors of the default learning rate in the usual grid.
USUAL_FACTORS = (0.5, 1.0, 2.0)
USUAL = {"epochs": (2, 4, 8), "batch_size": (16, 32)}
# Files that are kept of runs that were not the best.
_KEPT = (LOG, CURVES, RECIPE, BOARD)


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
    output, tries = folder.path, list(combinations(run))
    done = _finished_runs(run, output) if folder.resume else []
    refuse_foreign(output, ["search"])
    run.check_model()
    folder.reserve(run.identity)
    write_text(output / RECIPE, dump(run.given))
    display = Display("finetune", quiet=quiet)
    run.adapt(folder, quiet=quiet)
    for number, tried in enumerate(tries, start=1):
        if number > len(done):
            display.say(f"run {number} of {len(tries)}: {_shown(tried)}")
            one = folder.member(f"search/run-{number}")
            metrics, seconds = _train(run, tried, one, name=output.resolve().name, quiet=quiet)
            result = {"folder": f"search/run-{number}", **tried, "measures": metrics}
            done.append(result | {"seconds": seconds})
        best = _best(run, done)
        header = {"format": _FORMAT, "identity": run.identity, "measure": run.monitor.metric}
        write_json(output / SEARCH, {**header, "best": best + 1, "runs": done})
        for other in range(len(done)):
            if other != best:
                _remove_unneeded(output / done[other]["folder"])
    best = _best(run, done)
    if not quiet:
        _show(display, done, best, run.monitor.metric)
    _move_best(output / done[best]["folder"], output)
    display.say(f"saved {output}: run {best + 1} is the best")
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


def _recipe(run: FinetuningRun, tried: Mapping[str, Any]) -> FinetuneRecipe:
    given = run.given
    return replace(
        given,
        search=Search(),
        task=run.task.settings,
        optim=replace(given.optim, learning_rate=tried["learning_rate"]),
        run=replace(given.run, epochs=tried["epochs"]),
        data=replace(given.data, batch_size=tried["batch_size"]),
    )


def _train(
    run: FinetuningRun, tried: Mapping[str, Any], folder: FinetuneFolder, *, name: str, quiet: bool
) -> tuple[Mapping[str, float], float]:
    """Train one combination; return the metrics of its best evaluation, and the seconds."""
    sampled, best = False, {}
    if not (folder.resume and folder.finished):
        rows = (run.splits.train_rows, run.splits.dev_rows)
        one = FinetuningRun(_recipe(run, tried), rows, like=run)
        one.name = name
        one.train(folder, quiet=quiet)
        sampled, best = one.splits.sample is not None, one.metrics
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


def _best(run: FinetuningRun, done: list[dict[str, Any]]) -> int:
    """The index of the best run, the first one of ties."""
    values = [_value(run, one["measures"]) for one in done]
    return values.index(max(values))


def _finished_runs(run: FinetuningRun, output: Path) -> list[dict[str, Any]]:
    """The runs that were finished by an earlier call."""
    if not (output / SEARCH).exists():
        return []
    before = read_json(output / SEARCH, check=_FILE)
    require_same_identity(output, before["identity"], run.identity)
    return list(before["runs"])


def _remove_unneeded(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name not in _KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


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


def _shown(tried: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in tried.items())


def _show(display: Display, done: list[dict[str, Any]], best: int, metric: str) -> None:
    from rich.table import Table

    table = Table(translated("run"), box=None, pad_edge=False)
    for name in ("learning rate", "epochs", "batch size", metric.replace("_", " "), "time"):
        table.add_column(translated(name), justify="right")
    for number, one in enumerate(done):
        table.add_row(
            translated(f"{number + 1} (best)") if number == best else f"{number + 1}",
            f"{one['learning_rate']:g}",
            str(one["epochs"]),
            str(one["batch_size"]),
            decimals(one["measures"][metric], 4),
            duration(one["seconds"]),
        )
    display.console.print(table)
