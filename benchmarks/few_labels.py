"""Pretrain once, then fine-tune on several draws of a few labels: what is a setting worth?

    python benchmarks/few_labels.py [--size mini] [--minutes 5 | --steps 2400] [--seeds 0 1 2]
        [--labels-per-class 20] [--kind wordpiece --data FOLDER] [SECTION.NAME=VALUE ...]

FOLDER contains train, dev, test (csv or csv.gz: label,text) and unlabelled (txt or txt.gz); the
default is the sample in the repository. Without a train file only the pretraining losses are
printed. SECTION.NAME=VALUE after the options are pretraining settings, for example
task.objectives=mlm,nsp.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import ownbert
from ownbert.train.device import keep_memory


def find(folder: Path, name: str) -> Path | None:
    return next((p for p in sorted(folder.glob(f"{name}.*")) if p.is_file()), None)


def pretrain(given: argparse.Namespace, work: Path) -> Path:
    """A model pretrained on unlabelled and training text; prints its last evaluation."""
    corpus = [p for name in ("unlabelled", "train") if (p := find(given.data, name))]
    bert = work / "bert"
    ownbert.learn_vocabulary(corpus, bert, kind=given.kind)
    ownbert.prepare(corpus, work / "tokens", tokenizer=bert)
    began = time.monotonic()
    ownbert.pretrain(
        work / "tokens",
        bert,
        size=given.size,
        max_steps=given.steps,
        max_minutes=None if given.steps else given.minutes,
        overrides=given.settings,
        quiet=True,
    )
    rows = [json.loads(line) for line in (bert / "log.jsonl").read_text().splitlines()]
    last = next(row for row in reversed(rows) if row.get("evaluation"))
    shown = {k: round(v, 3) for k, v in last.items() if k.endswith(("loss", "accuracy"))}
    rates = [row["tokens_per_second"] for row in rows if "tokens_per_second" in row]
    print(f"{given.size}, {last['step']} steps, {time.monotonic() - began:.0f} s: {shown}")
    print(f"median {statistics.median(rates):,.0f} tokens/s")
    return bert


def fine_tune(given: argparse.Namespace, work: Path, bert: Path) -> None:
    """Print the test macro-F1 for every draw of labels, with mean and standard deviation."""
    scores = []
    for seed in given.seeds:
        ownbert.finetune(
            model=bert,
            train=find(given.data, "train"),
            dev=find(given.data, "dev"),
            output=work / "classifier",
            labels_per_class=given.labels_per_class or None,
            seed=seed,
            overwrite=True,
            quiet=True,
        )
        test = find(given.data, "test")
        assert test is not None
        scores.append(ownbert.evaluate(work / "classifier", test).macro_f1)
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    each = " ".join(f"{score:.4f}" for score in scores)
    print(f"test macro-F1 {statistics.mean(scores):.4f} +- {spread:.4f}  ({each})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("examples/anonymised"))
    parser.add_argument("--kind", default="blank", choices=("blank", "wordpiece"))
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--labels-per-class", type=int, default=20, help="0 for all")
    parser.add_argument("settings", nargs="*")
    given = parser.parse_args()
    keep_memory()
    with tempfile.TemporaryDirectory() as folder:
        bert = pretrain(given, Path(folder))
        if find(given.data, "train"):
            fine_tune(given, Path(folder), bert)


if __name__ == "__main__":
    main()
