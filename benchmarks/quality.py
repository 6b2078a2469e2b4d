"""The quality table: datasets, labels per class and methods, with mean and spread over draws.

    python benchmarks/quality.py [--sets NAME ...] [--counts 20 100 all] [--draws 3]
        [--methods NAME ...] [--minutes 5] [--data FOLDER] [--out results.jsonl]
    python benchmarks/quality.py --table --out results.jsonl

Settings of every method are chosen by macro-F1 on the dev rows, which train nothing but that
choice; the test rows are scored once, with the chosen settings. A draw has the rows that ``ownbert
finetune --labels-per-class N --seed S`` trains on. Every method is given the same text: that of all
training rows, and the unlabelled text of the set. The best linear model of a row of the table is
the one that is best on the test rows, an upper bound.

Every result is appended to --out as one line of JSON, and a run that is repeated with the same
--out computes what is missing.

Methods:

- ``linear`` is short for the linear ones and their geometric mean; ``more`` in a name adds
  characters to words (benchmarks/quality_baselines.py has what it means for Chinese and for ids).
- ``frozen + LR``: the vectors of the pretrained model of --probe FOLDER. ``fastText``: needs its
  package, fasttext. Without them they are skipped.
- ``trainer``: Transformers' Trainer from random weights in --minutes; needs the package accelerate.
- ``ours``: ``ownbert fit`` in --minutes for each draw, its blend and its network alone; with
  --ours-from FOLDER it starts from a pretrained model.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
# Before NumPy is imported. The linear baselines gain nothing from a second thread, and on a busy
# machine two that wait for each other take many times as long as one. Networks use all of them.
ENVIRONMENT = dict(os.environ)
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# ruff: noqa: E402
from baselines import count_or_all
from quality_baselines import (
    BASELINES,
    BLEND,
    LINEAR,
    Features,
    Result,
    Splits,
    available,
    choose,
    mean_result,
    run_baseline,
)
from quality_sets import DATA, SETS, Cell, load_set, read_cells, write_documents, write_rows

from ownbert.finetuning.labelled_splits import labels_per_class

OURS, NETWORK, TRAINER = "ours", "ours, network alone", "trainer"
METHODS = (*BASELINES, TRAINER, OURS)
# Columns of the table.
BEST = "best linear model"
TITLES = {
    "majority": "majority",
    BLEND: "geometric mean of the linear models",
    "fastText": "fastText",
    "frozen + LR": "linear model on the pretrained network",
    TRAINER: "Trainer",
    NETWORK: "`fit`: network of the folder",
    OURS: "`fit`: blend",
}
KEY = ("set", "labels_per_class", "draw", "method", "folds", "minutes", "model")


def fit_ours(
    features: Features, rows: Sequence[int], splits: Splits, given: argparse.Namespace, seed: int
) -> dict[str, Cell]:
    """``ownbert fit`` on the rows of a draw, for each split, then ``ownbert evaluate`` on its test
    rows: the blend, and the network alone.

    The unlabelled file holds the set's unlabelled text and the text of the training rows that are
    not in the draw. The commands run as a user would type them, in processes of their own.
    """
    source, drawn = features.source, set(rows)
    rest = [text for i, text in enumerate(features.train) if i not in drawn]
    scores: dict[str, list[Cell]] = defaultdict(list)
    for dev, test in splits:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            train = ([source.train[0][i] for i in rows], [features.train[i] for i in rows])
            write_rows(folder / "train.csv", train)
            for part, chosen in (("dev", dev), ("test", test)):
                labels = [str(features.labels[i]) for i in chosen]
                write_rows(folder / f"{part}.csv", (labels, [features.texts[i] for i in chosen]))
            options = ["--dev", "dev.csv", "--minutes", f"{given.minutes:g}", "--seed", str(seed)]
            if source.unlabelled or rest:
                write_documents(folder / "unlabelled.txt", [*source.unlabelled, *rest])
                options += ["--unlabelled", "unlabelled.txt"]
            if given.ours_from:
                options += ["--model", str(given.ours_from.resolve())]
            start = time.perf_counter()
            _ownbert(folder, "fit", "train.csv", *options, "-o", "out")
            seconds = time.perf_counter() - start
            report = folder / "out" / "report.json"
            extra = {"seconds": seconds}
            if report.is_file():
                extra["leaderboard"] = json.loads(report.read_text("utf-8")).get("leaderboard")
            for method, flags in ((OURS, []), (NETWORK, ["--network"])):
                metrics = folder / "metrics.json"
                command = ("evaluate", "out", "--data", "test.csv", "-o", "metrics.json", *flags)
                _ownbert(folder, *command)
                found = json.loads(metrics.read_text("utf-8"))
                scores[method].append({k: found[k] for k in ("macro_f1", "accuracy")} | extra)
    cells = {}
    for method, each in scores.items():
        means = {
            key: statistics.mean(cell[key] for cell in each) for key in ("macro_f1", "accuracy")
        }
        cells[method] = {**means, "seconds": sum(cell["seconds"] for cell in each)}
        boards = [cell["leaderboard"] for cell in each if "leaderboard" in cell]
        if boards:
            cells[method]["leaderboards"] = boards
    return cells


def _ownbert(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "ownbert", *arguments]
    # The package of this checkout, although the command runs in another folder.
    paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRONMENT, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def run_trainer(
    features: Features, rows: Sequence[int], splits: Splits, given: argparse.Namespace, seed: int
) -> Result:
    """Transformers' Trainer from random weights, in the minutes that ours has, for each split."""
    import torch
    from quality_trainer import train_from_random

    torch.set_num_threads(int(ENVIRONMENT.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    results = []
    for split in splits:
        found = train_from_random(
            features,
            rows,
            split[0],
            size=given.size,
            minutes=given.minutes,
            max_length=given.max_length,
            seed=seed,
        )
        results.append(choose(features, list(found), [split]))
    return mean_result(results)


def key_of(cell: Cell) -> tuple[Any, ...]:
    return tuple(cell.get(name) for name in KEY)


def run_draw(
    features: Features,
    count: int | None,
    draw: int,
    methods: Iterable[str],
    given: argparse.Namespace,
    done: set[tuple[Any, ...]],
) -> Iterable[Cell]:
    """The missing results of one draw of labels, as they come."""
    source = features.source
    rows: Sequence[int] = range(len(features.train))
    if count is not None:
        rows = labels_per_class(source.train[0], count, draw)
    splits = features.splits(given.folds)
    base: Cell = {
        "set": source.name,
        "labels_per_class": count or "all",
        "draw": draw,
        "folds": given.folds,
        "training_rows": len(rows),
        "dev_rows": len(splits[0][0]),
        "test_rows": sum(len(test) for _, test in splits),
        "classes": len(features.classes),
    }
    known: dict[str, Result] = {}
    for method in methods:
        key: Cell = {**base, "method": method}
        if method in (OURS, TRAINER):
            key["minutes"] = given.minutes
        if method == OURS:
            key["model"] = given.ours_from.name if given.ours_from else None
        elif count is None and draw and method != TRAINER:
            continue  # all labels, and nothing random: the same result as draw 0
        if key_of(key) in done:
            continue
        start = time.perf_counter()
        if method == OURS:
            for name, cell in fit_ours(features, rows, splits, given, draw).items():
                yield {**key, "method": name, **cell}
            continue
        if method == TRAINER:
            result = run_trainer(features, rows, splits, given, draw)
        else:
            result = known[method] = run_baseline(method, features, rows, splits, known)
        yield {
            **key,
            "macro_f1": result.macro_f1,
            "accuracy": result.accuracy,
            "dev_macro_f1": result.dev_macro_f1,
            "settings": result.settings,
            "seconds": time.perf_counter() - start,
        }


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation over the draws."""
    text = f"{statistics.mean(values):.3f}"
    text += f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return text.replace("0.", ".")


def table(cells: Sequence[Cell], metric: str = "macro_f1") -> str:
    """A table in Markdown: one line per set and number of labels, and one column per method; one
    column for all linear models has the one with the best mean, and its name."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    names, rows = {}, {}
    for cell in cells:
        folds = f", {cell['folds']} folds" if cell["folds"] > 1 else ""
        line = f"{cell['set']}, {cell['labels_per_class']}{folds}"
        values[line][cell["method"]].append(cell[metric])
        rows[line] = f"{cell['test_rows']:,}"
        names[line] = f"{line}, {cell['model']}" if cell.get("model") else names.get(line, line)
    columns = {
        name: title for name, title in TITLES.items() if any(name in v for v in values.values())
    }
    lines = [["set, labels per class", "test rows", BEST, *columns.values()]]
    lines.append(["---", *["---:"] * (len(lines[0]) - 1)])
    for line, found in values.items():
        linear = {name: spread(found[name]) for name in LINEAR if name in found}
        best = max(linear, key=lambda name: statistics.mean(found[name]), default=None)
        others = (spread(found[name]) if name in found else "–" for name in columns)
        lines.append(
            [names[line], rows[line], f"{linear[best]} ({best})" if best else "–", *others]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the sources")
    parser.add_argument(
        "--sets", nargs="+", default=list(SETS), help="names, or folders with train, dev, test"
    )
    parser.add_argument("--counts", nargs="+", type=count_or_all, default=[20, 100, None])
    parser.add_argument("--draws", type=int, default=3, help="draws of labels, seeds 0, 1, ...")
    parser.add_argument("--methods", nargs="+", default=["majority", "linear", OURS])
    parser.add_argument("--minutes", type=float, default=5.0, help="of ours and of trainer")
    parser.add_argument("--folds", type=int, default=1, help="pool dev and test rows in K folds")
    parser.add_argument("--probe", type=Path, help="pretrained model for frozen + LR")
    parser.add_argument("--ours-from", type=Path, help="pretrained model that ours starts from")
    parser.add_argument("--size", default="tiny", help="of trainer's network")
    parser.add_argument("--max-length", type=int, default=256, help="of trainer's texts")
    parser.add_argument("--metric", default="macro_f1", choices=("macro_f1", "accuracy"))
    parser.add_argument("--out", type=Path, default=Path("runs/quality.jsonl"))
    parser.add_argument("--table", action="store_true", help="print the table of --out only")
    given = parser.parse_args(arguments)
    methods = [
        m for name in given.methods for m in ([*LINEAR, BLEND] if name == "linear" else [name])
    ]
    unknown = [name for name in methods if name not in METHODS]
    if unknown:
        parser.error(f"--methods {unknown[0]!r} is none of linear, {', '.join(METHODS)}")
    if given.draws < 1 or given.folds < 1 or given.minutes <= 0:
        parser.error("--draws and --folds must be at least 1, --minutes above 0")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    cells = read_cells(given.out)
    if not given.table:
        done = {key_of(cell) for cell in cells}
        with given.out.open("a", encoding="utf-8") as file:
            for name in given.sets:
                features = Features(load_set(name, given.data), given.probe)
                usable = [m for m in methods if available(m, features)]
                for method in sorted(set(methods) - set(usable)):
                    print(f"skipped: {method} (see --help)", file=sys.stderr)
                for count in given.counts:
                    for draw in range(given.draws):
                        for cell in run_draw(features, count, draw, usable, given, done):
                            cells.append(cell)
                            file.write(json.dumps(cell) + "\n")
                            file.flush()
                            print(
                                f"{cell['set']} {cell['labels_per_class']} draw {draw} "
                                f"{cell['method']}: macro-F1 {cell['macro_f1']:.4f} accuracy "
                                f"{cell['accuracy']:.4f} {cell['seconds']:.1f} s "
                                f"{' | '.join(cell.get('settings', ()))}",
                                file=sys.stderr,
                                flush=True,
                            )
    print(table(cells, given.metric))


if __name__ == "__main__":
    main()
