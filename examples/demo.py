"""The main job in one command: from texts of ids to the best model of so many minutes.

    python examples/demo.py [--minutes 5] [--labels-per-class 20] [--output runs/demo]

Runs ``ownbert fit`` on examples/anonymised and then uses what it has made.
"""

import argparse
import shlex
import subprocess
import sys
import time
from pathlib import Path

DATA = Path("examples/anonymised")
TRAIN, DEV, TEST = (str(DATA / f"{name}.csv.gz") for name in ("train", "dev", "test"))
UNLABELLED = str(DATA / "unlabelled.txt.gz")


def run(command: str) -> None:
    """Print a command and run it; exit with its exit code if it fails."""
    print(f"\n$ {command}", flush=True)
    name, *arguments = shlex.split(command)
    assert name == "ownbert"
    code = subprocess.run([sys.executable, "-m", "ownbert", *arguments], check=False).returncode
    if code:
        sys.exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="minutes for ownbert fit")
    parser.add_argument("--labels-per-class", type=int, default=20, help="texts of each label")
    parser.add_argument("--output", type=Path, default=Path("runs/demo"))
    given = parser.parse_args()
    start = time.monotonic()
    best = given.output / "best"
    # The training file's texts are worth reading without their labels, too.
    few = f"--labels-per-class {given.labels_per_class}"
    run(
        f"ownbert fit {TRAIN} {few} --dev {DEV} --test {TEST} --unlabelled {UNLABELLED} "
        f"--unlabelled {TRAIN} --minutes {given.minutes:g} -o {best} --overwrite"
    )
    run(f"ownbert predict {best} {TEST} -o {given.output / 'predictions.jsonl'}")
    print(f"\n{(time.monotonic() - start) / 60:.1f} minutes in total; open {best / 'report.html'}")


if __name__ == "__main__":
    main()
