"""Which settings of pretraining and of fine-tuning are worth their place as defaults?

    python benchmarks/ablations.py [--sets NAME ...] [--seeds 0 1 2] [--steps 800]
        [--pretraining NAME ...] [--data FOLDER] [--out runs/ablations.jsonl] [--table]

For every set and seed a tiny model is pretrained with the defaults and with one setting changed,
and fine-tuned on a few rows per class (the seed draws them); with the default pretraining also with
one setting of fine-tuning changed. The score is macro-F1 on the dev rows, which the runs do not
see. Equal numbers of steps, so that a busy machine changes nothing. What is in --out already is
not run again; --table prints what is there.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import yaml
from quality_sets import DATA, Cell, TextSet, load_set, read_cells, write_documents, write_rows

import ownbert
from ownbert.train.device import keep_memory

# The labelled rows per class of every set: with two classes 20 would tell nothing.
SETS = {
    "dbpedia14-ids": 20,
    "banking77": 20,
    "sentence-polarity": 100,
    "movie-reviews": 100,
    "zhwiki": 20,
}
DEFAULT = "defaults"
_SHRINKING = [{"share": 0.5, "mask_rate": 0.3}, {"share": 0.5, "mask_rate": 0.15}]
PRETRAINING: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "mlm": {"task": {"objectives": ["mlm"]}},
    "mlm,nsp": {"task": {"objectives": ["mlm", "nsp"]}},
    "random positions": {"model": {"init_positions": "random"}},
    "15 % masked": {"task": {"mask_rate": 0.15}},
    "30, then 15 % masked": {"phases": _SHRINKING},
    "Muon": {"optim": {"name": "muon"}},
}
# The defaults for so few rows are the pooling of the folder, a rate of 1e-3 and 12 epochs.
FINETUNING = {
    "pooling first": "task.pooling=first",
    "pooling mean": "task.pooling=mean",
    "rate 5e-4": "optim.learning_rate=5e-4",
    "rate 2e-3": "optim.learning_rate=2e-3",
    "6 epochs": "run.epochs=6",
    "24 epochs": "run.epochs=24",
    "EMA .95": "optim.ema=0.95",
}


def prepare(rows: TextSet, work: Path) -> None:
    """Write the set's files and its token store, once for all seeds."""
    write_rows(work / "train.csv", rows.train)
    write_rows(work / "dev.csv", rows.dev)
    write_documents(work / "texts.txt", [*rows.unlabelled, *rows.train[1]])
    kind = "blank" if rows.tokens == "spaces" else "wordpiece"
    ownbert.learn_vocabulary([work / "texts.txt"], work / "bert", kind=kind, vocab_size=6000)
    ownbert.prepare([work / "texts.txt"], work / "tokens", tokenizer=work / "bert")


def pretrain(work: Path, name: str, seed: int, steps: int) -> dict[str, float]:
    """Pretrain in a copy of the vocabulary's folder; the last held-out losses."""
    recipe = {"seed": seed, "run": {"max_steps": steps}, **PRETRAINING[name]}
    (work / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    began = time.monotonic()
    ownbert.pretrain(
        work / "tokens", work / "bert", config=work / "recipe.yaml", overwrite=True, quiet=True
    )
    log = [json.loads(line) for line in (work / "bert" / "log.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(log) if row.get("evaluation"))
    return {"mlm_loss": last["mlm_loss"], "pretraining_seconds": time.monotonic() - began}


def fine_tune(work: Path, name: str, seed: int, count: int) -> float:
    """Macro-F1 on the dev rows."""
    ownbert.finetune(
        "classify",
        output=work / "classifier",
        model=work / "bert",
        train=work / "train.csv",
        labels_per_class=count,
        seed=seed,
        overrides=[FINETUNING[name]] if name in FINETUNING else [],
        overwrite=True,
        quiet=True,
    )
    return ownbert.evaluate(work / "classifier", work / "dev.csv").macro_f1


def run(given: argparse.Namespace, cells: list[Cell]) -> None:
    """Run what is not in ``cells`` and append it to ``--out``."""
    done = {(cell["set"], cell["seed"], cell["name"]) for cell in cells}
    for name in given.sets:
        rows = load_set(name, given.data)
        with tempfile.TemporaryDirectory() as folder, given.out.open("a") as file:
            work = Path(folder)
            prepare(rows, work)
            for seed in given.seeds:
                for start in given.pretraining:
                    names = [start, *(FINETUNING if start == DEFAULT else ())]
                    names = [one for one in names if (name, seed, one) not in done]
                    if not names:
                        continue
                    losses = pretrain(work, start, seed, given.steps)
                    for one in names:
                        score = fine_tune(work, one, seed, SETS[name])
                        cell = {"set": name, "seed": seed, "name": one, "macro_f1": score}
                        add_cell(cell | losses, cells, file)


def table(cells: list[Cell]) -> str:
    """Mean and spread of every set's defaults, and the mean difference of every setting from them
    on the same seeds, with the standard deviation of that difference; of one seed there is none."""
    scores = {(cell["set"], cell["seed"], cell["name"]): cell["macro_f1"] for cell in cells}
    sets = [name for name in SETS if any(cell["set"] == name for cell in cells)]
    lines = ["| | " + " | ".join(sets) + " |", "|---" * (len(sets) + 1) + "|"]
    for name in (*PRETRAINING, *FINETUNING):
        row = []
        for one in sets:
            seeds = [s for (found, s, other) in scores if found == one and other == name]
            base = [0.0 if name == DEFAULT else scores[one, s, DEFAULT] for s in seeds]
            values = [scores[one, s, name] - b for s, b in zip(seeds, base, strict=True)]
            sign = "" if name == DEFAULT else "+"
            cell = f"{statistics.mean(values):{sign}.3f}" if values else ""
            row.append(f"{cell} ± {statistics.stdev(values):.3f}" if len(values) > 1 else cell)
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def add_cell(cell: Cell, cells: list[Cell], file: TextIO) -> None:
    """Add it to the cells, append it to the file and show it."""
    cells.append(cell)
    file.write(json.dumps(cell) + "\n")
    file.flush()
    print(cell, file=sys.stderr, flush=True)


def main_of(
    parser: argparse.ArgumentParser,
    out: str,
    run: Callable[[argparse.Namespace, list[Cell]], None],
    table: Callable[[list[Cell]], str],
) -> None:
    """Run what is not in --out, by default a file of ``runs``, and print all as a table."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--out", type=Path, default=Path("runs") / out)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    cells = read_cells(given.out)
    if not given.table:
        keep_memory()
        run(given, cells)
    print(table(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument(
        "--pretraining", nargs="+", default=list(PRETRAINING), choices=list(PRETRAINING)
    )
    main_of(parser, "ablations.jsonl", run, table)


if __name__ == "__main__":
    main()
