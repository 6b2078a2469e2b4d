"""The main job, with the commands that a user would type: from ids to a classifier.

    python examples/demo.py [--minutes 3] [--size tiny] [--output runs/demo]

Learns a vocabulary, pretrains and fine-tunes on examples/anonymised, with 20 labels per class and
with all labels, and compares with linear models and with the same network without pretraining.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))
import baselines

DATA = Path("examples/anonymised")
TRAIN, DEV, TEST = (str(DATA / f"{name}.csv.gz") for name in ("train", "dev", "test"))
UNLABELLED = str(DATA / "unlabelled.txt.gz")
FEW = 20


def run(command: str) -> None:
    """Print a command and run it; exit with its exit code if it fails."""
    print(f"\n$ {command}", flush=True)
    name, *arguments = shlex.split(command)
    assert name == "ownbert"
    code = subprocess.run([sys.executable, "-m", "ownbert", *arguments], check=False).returncode
    if code:
        sys.exit(code)


def pretrain(output: Path, *, size: str, minutes: float) -> None:
    model, tokens = output / "own-bert", output / "tokens"
    run(f"ownbert vocab {UNLABELLED} {TRAIN} --kind blank -o {model}")
    run(f"ownbert prepare {UNLABELLED} {TRAIN} --tokenizer {model} -o {tokens}")
    run(f"ownbert pretrain {tokens} --size {size} --max-minutes {minutes:g} -o {model} --overwrite")


def classify(output: Path, name: str, *, options: str = "", labels: int | None) -> dict:
    """Fine-tune and evaluate; returns the metrics on the test documents."""
    folder = output / name
    few = f"--labels-per-class {labels} " if labels else ""
    run(
        f"ownbert finetune classify --model {output / 'own-bert'} --train {TRAIN} --dev {DEV} "
        f"{few}{options}-o {folder} --overwrite"
    )
    run(f"ownbert evaluate {folder} --data {TEST} -o {folder / 'test.json'}")
    return json.loads((folder / "test.json").read_text())


def linear_models() -> list[tuple[str, dict, dict]]:
    """Name and metrics, with few labels and with all, of each linear model."""
    print("\nlinear models on the same texts (examples/baselines.py) ...", flush=True)
    labelled = [baselines.read_csv(path) for path in (TRAIN, DEV, TEST)]
    found = baselines.run(*labelled, baselines.read_lines(UNLABELLED), counts=(FEW, None))
    names = dict.fromkeys(row["baseline"] for row in found)
    return [
        (f"{name} + logistic regression", *(row for row in found if row["baseline"] == name))
        for name in names
    ]


def show(rows: list[tuple[str, dict, dict]], *, labels: int) -> None:
    """Print one table: macro-F1 and accuracy with few labels and with all of them."""
    print(f"on {labels:,} test documents, {FEW} labels per class and all labels:\n")
    table = Table("", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in (f"{FEW}", "all"):
        table.add_column(f"macro-F1\n{head}", justify="right")
        table.add_column(f"accuracy\n{head}", justify="right")
    for name, few, every in rows:
        figures = (f"{m[key]:.3f}" for m in (few, every) for key in ("macro_f1", "accuracy"))
        table.add_row(name, *figures)
    Console(highlight=False, width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of pretraining")
    parser.add_argument("--size", default="tiny", help="tiny, mini, small, ...")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"))
    given = parser.parse_args()
    start = time.monotonic()
    output = given.output
    pretrain(output, size=given.size, minutes=given.minutes)
    ours = [
        classify(output, "classifier", labels=FEW),
        classify(output, "classifier-all", options="--epochs 3 ", labels=None),
    ]
    run(
        f"ownbert predict {output / 'classifier-all'} --input {TEST} "
        f"-o {output / 'predictions.jsonl'}"
    )
    # Random weights need more epochs on few texts and no early stopping: 12 reach .76.
    longer = "--from-scratch --epochs 30 --patience 30 "
    scratch = [
        classify(output, "scratch", options=longer, labels=FEW),
        classify(output, "scratch-all", options="--from-scratch --epochs 3 ", labels=None),
    ]
    rows = linear_models()
    rows += [
        (f"{given.size} network, no pretraining", *scratch),
        (f"{given.size} network, {given.minutes:g} minutes of pretraining", *ours),
    ]
    print()
    show(rows, labels=2000)
    print(
        f"{(time.monotonic() - start) / 60:.1f} minutes in total; see {output}/own-bert/curves.png"
    )


if __name__ == "__main__":
    main()
