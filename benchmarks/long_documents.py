"""Which way of reading long documents is best in equal minutes?

    python benchmarks/long_documents.py [--sets NAME ...] [--ways NAME ...] [--seeds 0 1 2]
        [--steps 800] [--minutes 0.75] [--data FOLDER] [--out runs/long_documents.jsonl] [--table]

For every set a tiny model is pretrained once, with the defaults: it learns 512 positions, because
these documents are long. It is fine-tuned in every way for --minutes on the rows that a seed draws,
without dev rows, and scored by macro-F1 on the dev and the test rows. What is in --out already is
not run again; --table prints what is there.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from ablations import DEFAULT, add_cell, main_of, prepare, pretrain
from quality_sets import Cell, Labelled, load_set, write_rows

import ownbert

# The labelled rows per class of every set.
SETS = {"movie-reviews": 100, "movie-reviews-ids": 100, "zhwiki-long": 20}
ENDS = "first and last"
WAYS: dict[str, list[str]] = {
    "auto": [],
    "cut at 512": ["task.long=cut"],
    ENDS: ["task.long=cut"],
    "windows of 512": ["task.long=windows"],
    "windows of 512, one drawn": ["task.long=windows", "task.train_windows=1"],
    "segments of 512": ["task.long=segments"],
    "segments of 128, four drawn": [
        "task.long=segments",
        "task.window=128",
        "task.train_windows=4",
    ],
}
_EPOCHS = 10_000  # more than the minutes allow


def ends(rows: Labelled, tokens: str, length: int = 510, first: int = 128) -> Labelled:
    """The first 128 and the last 382 words, or characters, of every text."""
    labels, texts = rows
    between = "" if tokens == "characters" else " "
    made = []
    for text in texts:
        words = list(text) if tokens == "characters" else text.split()
        short = words if len(words) <= length else [*words[:first], *words[first - length :]]
        made.append(between.join(short))
    return labels, made


def fine_tune(work: Path, way: str, seed: int, count: int, minutes: float) -> dict[str, float]:
    """Macro-F1 on the dev and the test rows, and what it took."""
    files = "ends-" if way == ENDS else ""
    began = time.process_time()
    ownbert.finetune(
        "classify",
        output=work / "classifier",
        model=work / "bert",
        train=work / f"{files}train.csv",
        labels_per_class=count,
        seed=seed,
        max_minutes=minutes,
        epochs=_EPOCHS,
        overrides=WAYS[way],
        overwrite=True,
        quiet=True,
    )
    found = {"seconds": time.process_time() - began}
    for part in ("dev", "test"):
        metrics = ownbert.evaluate(work / "classifier", work / f"{files}{part}.csv")
        found[part] = metrics.macro_f1
    return found


def run(given: argparse.Namespace, cells: list[Cell]) -> None:
    """Run what is not in ``cells`` and append it to ``--out``."""
    done = {(cell["set"], cell["seed"], cell["way"]) for cell in cells}
    for name in given.sets:
        todo = [(s, w) for s in given.seeds for w in given.ways if (name, s, w) not in done]
        if not todo:
            continue
        rows = load_set(name, given.data)
        with tempfile.TemporaryDirectory() as folder, given.out.open("a") as file:
            work = Path(folder)
            prepare(rows, work)
            write_rows(work / "test.csv", rows.test)
            for part, labelled in (("train", rows.train), ("dev", rows.dev), ("test", rows.test)):
                write_rows(work / f"ends-{part}.csv", ends(labelled, rows.tokens))
            pretrain(work, DEFAULT, 0, given.steps)
            for seed, way in todo:
                found = fine_tune(work, way, seed, SETS[name], given.minutes)
                add_cell({"set": name, "seed": seed, "way": way, **found}, cells, file)


def table(cells: list[Cell]) -> str:
    """Means and standard deviations over the seeds, dev and test rows."""
    sets = [name for name in SETS if any(cell["set"] == name for cell in cells)]
    heads = [f"{name}, {part}" for name in sets for part in ("dev", "test")]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
    for way in WAYS:
        row = []
        for name in sets:
            for part in ("dev", "test"):
                values = [c[part] for c in cells if (c["set"], c["way"]) == (name, way)]
                spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
                row.append(f"{statistics.mean(values):.3f}{spread}" if values else "")
        lines.append(f"| {way} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--minutes", type=float, default=0.75)
    main_of(parser, "long_documents.jsonl", run, table)


if __name__ == "__main__":
    main()
