"""What a core does in ``ownbert embed`` and ``ownbert predict``, from a file to a file.

    OMP_NUM_THREADS=1 python benchmarks/scale.py [--models minilm base] [--texts 4096] [--rounds 3]

Texts are passages of Python's own documentation (benchmarks/passages.py), one per line of a jsonl
file. ``minilm`` is all-MiniLM-L6-v2 (6 layers of 384), ``base`` a random BERT-base (12 of 768),
which gets an eighth of the texts; predict has a classifier with three labels on them. Counted are
tokens, special ones included, per second of this process's processor time, with reading, tokenising
and writing, without loading the model: what one core does where each core has a process of its own.
The table has the median of the rounds, with the lowest and highest.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from encode import base, minilm
from passages import passages

MODELS = {"minilm": (minilm, 1), "base": (base, 8)}


def classifier(model: Path, folder: Path) -> Path:
    """``model`` with a head for three labels, after one step of training."""
    from ownbert import finetune

    rows = [{"text": f"text {i}", "label": "abc"[i % 3]} for i in range(12)]
    finetune(model=model, train=rows, output=folder, max_steps=1, batch_size=4, quiet=True)
    return folder


def count_tokens(model: Path, file: Path) -> int:
    from ownbert import Embedder

    texts = [json.loads(line)["text"] for line in file.open(encoding="utf-8")]
    return sum(len(ids) for ids in Embedder(model).ids(texts))


def measured(run: Callable[[Path], object], file: Path, empty: Path, rounds: int) -> list[float]:
    """Seconds of processor time for a file, without those for one row."""
    found = []
    for _ in range(rounds):
        times = []
        for each in (empty, file):
            start = time.process_time()
            run(each)
            times.append(time.process_time() - start)
        found.append(times[1] - times[0])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--texts", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    from ownbert import embed, predict

    print("| model | command | precision | tokens per second and core |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model_name in options.models:
            make, share = MODELS[model_name]
            file, empty = folder / f"{model_name}.jsonl", folder / "one.jsonl"
            texts = passages(options.texts // share)
            file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
            empty.write_text(json.dumps({"text": texts[0]}) + "\n")
            with make() as model:
                tokens = count_tokens(model, file)
                tuned = classifier(model, folder / f"{model_name}-classifier")
                for precision in options.precisions:
                    for command, run in (
                        ("embed", partial(embed, model, output=folder / "o.npy")),
                        ("predict", partial(predict, tuned, output=folder / "o.jsonl")),
                    ):
                        run = partial(run, precision=precision)
                        seconds = measured(run, file, empty, options.rounds)
                        rates = sorted(tokens / s for s in seconds)
                        print(
                            f"| {model_name} | {command} | {precision} | "
                            f"{statistics.median(rates):,.0f} ({rates[0]:,.0f} to "
                            f"{rates[-1]:,.0f}) |",
                            flush=True,
                        )
                print(f"{model_name}: {len(texts):,} texts, {tokens / len(texts):.1f} tokens each")


if __name__ == "__main__":
    main()
