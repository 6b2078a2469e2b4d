"""How time, speed and memory grow with the model, the text and the machine.

    python benchmarks/scaling.py [--axes layers width length batch cores corpus] [--rounds 3]
        [--works training encoding] [--longest 8192] [--largest-corpus 16] [--precision float32]
        [--threads 1] [--clock cpu] [--device cpu] [--json FILE] [--picture FILE]

One size is varied at a time: layers (4), width (256 in heads of 64), length of the sequences (128),
sequences per batch (8), threads (1), megabytes of text. The values in brackets are those of the
other axes, but for length, which is measured with one sequence. A training step is that of
benchmarks/pretrain_step.py, with all sequences of one length, without padding, and a vocabulary of
4,096, so that the encoder is most of it; encoding is the forward pass of the encoder alone. The
axis "corpus" is ``ownbert prepare`` beside the fast tokenizer of Transformers (with the same rules
and a list of lists of ids), and ``ownbert pretrain``'s batches from that store.

Every measurement has a process of its own, forked from one that has loaded the libraries; rounds go
through all of them in turn, and the table has medians over the rounds. Memory is the peak while
steps run, minus that of the model with its gradients and its optimiser. Exponents are slopes of a
straight line through the upper half of an axis, in logarithms: 1 is linear, 2 quadratic. On a busy
machine use ``--clock cpu``, which counts a process's processor time (not on the axis of threads).
"""

import argparse
import importlib
import json
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the commands do; read when torch is loaded

import numpy as np
import torch
from memory import forget_peak, resident
from pretrain_ways import OwnBERT, Transformers, make_text, step

VOCABULARY, HEAD = 4096, 64
OURS, THEIRS = "OwnBERT", "Transformers"
TRAINING, ENCODING = "training", "encoding"
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
SHAPES = ("layers", "width", "length", "batch", "cores")
CORPUS = "corpus"
# What is drawn: the key of a result, its name and its unit.
METRICS = {
    "seconds": "seconds per step",
    "tokens_per_second": "tokens per second",
    "memory_mb": "memory in MB",
}


@dataclass(frozen=True)
class Shape:
    """Of the model and of a batch."""

    layers: int = 4
    width: int = 256
    length: int = 128
    batch: int = 8
    cores: int = 1

    @property
    def tokens(self) -> int:
        return self.length * self.batch


@dataclass(frozen=True)
class Task:
    """One measurement: which library does what, and where on which axis it is."""

    axis: str
    value: float
    library: str
    work: str

    @property
    def series(self) -> tuple[str, str, str]:
        return self.axis, self.library, self.work


def main() -> None:
    given = arguments()
    load_libraries()
    results: dict[Task, list[dict[str, float]]] = {task: [] for task in tasks(given)}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        if CORPUS in given.axes:
            make_corpora(Path(folder), given)
        for number in range(1, given.rounds + 1):
            for task, found in results.items():
                row = in_a_process(measure, task, given, folder)
                if row is not None:
                    found.append(row)
            minutes = (time.perf_counter() - start) / 60
            done = f"  round {number} of {given.rounds}, {minutes:.1f} minutes"
            print(done, file=sys.stderr, flush=True)
            rows = medians(results)
            write(rows, given)
    print_tables(medians(results))


def write(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """After each round, so that one that ends early has left what there was."""
    if given.json:
        about = {"machine": machine(given), "settings": settings(given), "rows": rows}
        about["exponents"] = exponents(rows)
        given.json.write_text(json.dumps(about, indent=1) + "\n")
    if given.picture:
        draw(rows, given.picture)


def load_libraries() -> None:
    """What measurements need, before the first fork.

    With one thread: others would not live on in the forks, where OpenMP waits for them.
    """
    torch.set_num_threads(1)
    for name in ("torch._dynamo", "transformers.models.bert.modeling_bert", "ownbert.nn.model"):
        importlib.import_module(name)
    OwnBERT(make_ours_model(Shape(layers=1, width=HEAD)), torch.device("cpu"))


def tasks(given: argparse.Namespace) -> Iterator[Task]:
    """Every measurement of a round: libraries take turns."""
    values = {
        "layers": (1, 2, 4, 8, 16),
        "width": (64, 128, 256, 512, 1024),
        "length": sorted({*growing(16, given.longest, 4), given.longest}),
        "batch": growing(1, 64, 4),
        "cores": growing(1, given.cores, 2),
    }
    if given.small:
        values |= {"layers": (1, 2), "width": (64, 128), "length": (16, 32), "batch": (1, 2)}
    for axis in given.axes:
        if axis == CORPUS:
            for size in growing(given.smallest_corpus, given.largest_corpus, 4):
                yield Task(CORPUS, size, OURS, "preparing")
                yield Task(CORPUS, size, THEIRS, "preparing")
                yield Task(CORPUS, size, OURS, "batches")
            continue
        for value in values[axis]:
            for work in given.works:
                for library in (OURS, THEIRS):
                    yield Task(axis, value, library, work)


def growing(low: float, high: float, factor: int) -> list[Any]:
    """From ``low`` on, each ``factor`` times the one before, up to ``high``."""
    values = [low]
    while factor * values[-1] <= high:
        values.append(factor * values[-1])
    return values


def in_a_process(work: Callable[..., dict[str, float]], task: Task, *rest: Any) -> dict | None:
    """What ``work`` returns, computed in a process of its own; None if that ends without."""
    methods = multiprocessing.get_all_start_methods()
    # A GPU cannot be used in a fork of a process that has looked for one.
    forked = "fork" in methods and not torch.cuda.is_initialized()
    context: Any = multiprocessing.get_context("fork" if forked else "spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, work, task, *rest))
    process.start()
    there.close()
    try:
        found = here.recv()
    except EOFError:  # killed, as a system without memory left does
        found = None
    process.join()
    if found is None:
        print(f"  {task}: no result, exit code {process.exitcode}", file=sys.stderr, flush=True)
    return found


def _send(connection: Any, work: Callable[..., dict[str, float]], *arguments: Any) -> None:
    connection.send(work(*arguments))
    connection.close()


def measure(task: Task, given: argparse.Namespace, folder: str) -> dict[str, float]:
    if task.axis == CORPUS:
        return measure_corpus(task, Path(folder), CLOCKS[given.clock])
    shape = replace(Shape(cores=given.threads), **{task.axis: task.value})
    if task.axis == "length":
        shape = replace(shape, batch=1)
    torch.set_num_threads(shape.cores)
    torch.manual_seed(0)
    device, dtype = torch.device(given.device), getattr(torch, given.precision)
    make = make_ours if task.library == OURS else make_theirs
    way = make(shape, device)
    work = training(way, dtype) if task.work == TRAINING else encoding(way, given.precision)
    warm = replace(shape, length=16, batch=1)
    work(way.batch(random_text(warm), dtype))  # gradients, the optimiser, libraries
    batch = way.batch(random_text(shape), dtype)
    before = start_of_memory(device)
    clock = time.perf_counter if task.axis == "cores" else CLOCKS[given.clock]
    took: list[float] = []
    while not took or sum(took) < given.seconds:
        wait(device)
        start = clock()
        work(batch)
        wait(device)
        took.append(clock() - start)
    # The first one allocates.
    seconds = statistics.median(took[1:] or took)
    peak = peak_of_memory(device) - before
    return {
        "seconds": seconds,
        "tokens_per_second": shape.tokens / seconds,
        "memory_mb": peak,
    }


def random_text(shape: Shape) -> Any:
    rng = np.random.default_rng(0)
    return make_text(rng, np.full(shape.batch, shape.length), VOCABULARY)


def sizes(shape: Shape) -> dict[str, Any]:
    """The config.json of both."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.width // HEAD,
        "intermediate_size": 4 * shape.width,
        "max_position_embeddings": max(512, shape.length),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def make_ours(shape: Shape, device: torch.device) -> OwnBERT:
    return OwnBERT(make_ours_model(shape), device)


def make_ours_model(shape: Shape) -> Any:
    from ownbert.config.encoder import EncoderConfig
    from ownbert.nn.model import Model

    return Model(EncoderConfig(**sizes(shape)), ["mlm"])


def make_theirs(shape: Shape, device: torch.device) -> Transformers:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(**sizes(shape), attn_implementation="sdpa")
    return Transformers(BertForMaskedLM(config), device)


def training(way: OwnBERT | Transformers, dtype: torch.dtype) -> Callable[[Any], object]:
    return lambda batch: step(way, [batch], dtype)


def encoding(way: OwnBERT | Transformers, precision: str) -> Callable[[Any], object]:
    """The forward pass of the encoder as it is used: its weights are in ``precision``."""
    if isinstance(way, OwnBERT):
        from ownbert.nn.prepack import prepack

        return torch.inference_mode()(prepack(way.model.encoder, precision))
    encoder = way.model.bert.to(getattr(torch, precision)).eval()

    @torch.inference_mode()
    def encode(batch: Any) -> object:
        return encoder(**{name: x for name, x in batch.items() if name != "labels"})

    return encode


def start_of_memory(device: torch.device) -> float:
    """Megabytes in use; the peak is counted from here on."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device) / 1e6
    forget_peak()
    return resident("VmRSS") * 2**30 / 1e6


def peak_of_memory(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    return resident("VmHWM") * 2**30 / 1e6


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_corpora(folder: Path, given: argparse.Namespace) -> None:
    """Texts of all sizes, and a vocabulary learnt from the smallest."""
    from store import generate

    from ownbert import learn_vocabulary

    sizes = growing(given.smallest_corpus, given.largest_corpus, 4)
    for size in sizes:
        corpus = folder / f"{size:g}.txt"
        generate(corpus, round(size * 1e6))  # in whole blocks
        os.truncate(corpus, round(size * 1e6))
    first = folder / f"{sizes[0]:g}.txt"
    learn_vocabulary(first, folder / "vocabulary", kind="wordpiece", vocab_size=VOCABULARY)


def measure_corpus(task: Task, folder: Path, clock: Clock) -> dict[str, float]:
    corpus, store = folder / f"{task.value:g}.txt", folder / f"store-{task.value:g}"
    torch.set_num_threads(1)
    if task.work == "batches":
        return measure_batches(store, clock)
    if task.library == OURS:
        shutil.rmtree(store, ignore_errors=True)  # of the round before
    forget_peak()
    before, start = resident("VmRSS"), clock()
    prepare = prepare_ours if task.library == OURS else prepare_theirs
    tokens = prepare(corpus, folder / "vocabulary", store)
    seconds = clock() - start
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "memory_mb": (resident("VmHWM") - before) * 2**30 / 1e6,
    }


def prepare_ours(corpus: Path, vocabulary: Path, store: Path) -> int:
    from ownbert import prepare
    from ownbert.corpus.store import Store

    prepare(corpus, store, tokenizer=vocabulary, processes=1)
    return len(Store.open(store).tokens)


def prepare_theirs(corpus: Path, vocabulary: Path, store: Path) -> int:
    """All ids in memory, as a tokenizer called on a list of texts returns them."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(vocabulary / "tokenizer.json"))
    lines = corpus.read_text(encoding="utf-8").splitlines()
    found: Any = tokenizer(lines, add_special_tokens=False, return_attention_mask=False)[
        "input_ids"
    ]
    return sum(map(len, found))


def measure_batches(store: Path, clock: Clock) -> dict[str, float]:
    """The loader's time per batch of 2,048 tokens, and its memory."""
    from store import BATCH_TOKENS, BATCHES, READY, batches

    from ownbert.corpus.store import Store

    forget_peak()
    before = resident("VmRSS")
    source: Any = batches(Store.open(store))
    for _ in range(READY):
        next(source)
    start = clock()
    for _ in range(BATCHES):
        next(source)
    seconds = (clock() - start) / BATCHES
    memory = (resident("VmHWM") - before) * 2**30 / 1e6
    source.close()
    tokens = BATCH_TOKENS / seconds
    return {"seconds": seconds, "tokens_per_second": tokens, "memory_mb": memory}


def medians(results: dict[Task, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """A row for each measurement: medians over the rounds, and the range of the seconds."""
    rows = []
    for task, found in results.items():
        if not found:
            continue
        row: dict[str, Any] = asdict(task) | {"rounds": len(found)}
        for metric in METRICS:
            row[metric] = statistics.median(each[metric] for each in found)
        seconds = [each["seconds"] for each in found]
        rows.append(row | {"fastest": min(seconds), "slowest": max(seconds)})
    return rows


def series(rows: list[dict[str, Any]]) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
    """The rows of each axis, library and work."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["axis"], row["library"], row["work"]), []).append(row)
    return grouped


def exponent(values: list[float], measured: list[float]) -> float | None:
    """The slope of the upper half of the points, in logarithms; None with fewer than two."""
    first = min(len(values) // 2, len(values) - 2)
    if first < 0 or min(measured[first:]) <= 0:
        return None
    return float(np.polyfit(np.log(values[first:]), np.log(measured[first:]), 1)[0])


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for (axis, library, work), own in series(rows).items():
        values = [row["value"] for row in own]
        slopes = {metric: exponent(values, [row[metric] for row in own]) for metric in METRICS}
        found.append({"axis": axis, "library": library, "work": work} | slopes)
    return found


def print_tables(rows: list[dict[str, Any]]) -> None:
    print("| axis | value | | seconds (lowest, highest) | tokens per second | memory in MB |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['axis']} | {row['value']:g} | {row['library']}, {row['work']} | "
            f"{row['seconds']:.4f} ({row['fastest']:.4f}, {row['slowest']:.4f}) | "
            f"{row['tokens_per_second']:,.0f} | {row['memory_mb']:,.1f} |"
        )
    print("\n| exponents | | seconds | tokens per second | memory |\n|---|---|---|---|---|")
    for row in exponents(rows):
        slopes = " | ".join("" if row[m] is None else f"{row[m]:.2f}" for m in METRICS)
        print(f"| {row['axis']} | {row['library']}, {row['work']} | {slopes} |", flush=True)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A column of panels per axis, a row per metric, both scales logarithmic."""
    from matplotlib.figure import Figure

    grouped = series(rows)
    axes = list(dict.fromkeys(axis for axis, _, _ in grouped))
    figure = Figure(figsize=(3.1 * len(axes), 7.6), layout="constrained")
    panels = figure.subplots(len(METRICS), len(axes), squeeze=False)
    colours = {OURS: "tab:blue", THEIRS: "tab:orange"}
    dashes = {TRAINING: "-", ENCODING: "--", "preparing": "-", "batches": ":"}
    for column, axis in enumerate(axes):
        for line, (metric, name) in enumerate(METRICS.items()):
            panel = panels[line][column]
            for (of, library, work), own in grouped.items():
                if of != axis:
                    continue
                there = [row for row in own if row[metric] > 0]
                values, measured = ([row[key] for row in there] for key in ("value", metric))
                slope = exponent(values, measured)
                label = f"{library}, {work}" + ("" if slope is None else f": {slope:.2f}")
                style = {"color": colours[library], "linestyle": dashes[work]}
                panel.plot(values, measured, marker="o", markersize=3, label=label, **style)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            panel.set_xlabel("MB of text" if axis == CORPUS else axis)
            if not column:
                panel.set_ylabel(name)
            panel.legend(fontsize=6, frameon=False)
            panel.tick_params(labelsize=7)
            panel.grid(alpha=0.3)
    figure.savefig(path, dpi=80, metadata={"Software": None}, pil_kwargs={"optimize": True})


def machine(given: argparse.Namespace) -> dict[str, Any]:
    name = torch.cuda.get_device_name(given.device) if given.device == "cuda" else "cpu"
    return {"device": name, "torch": torch.__version__, "cpus": os.cpu_count()}


def settings(given: argparse.Namespace) -> dict[str, Any]:
    return {name: str(v) if isinstance(v, Path) else v for name, v in vars(given).items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    axes = (*SHAPES, CORPUS)
    parser.add_argument("--axes", nargs="+", choices=axes, default=list(axes))
    works = (TRAINING, ENCODING)
    parser.add_argument("--works", nargs="+", choices=works, default=list(works))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement at least")
    parser.add_argument("--longest", type=int, default=8192, help="tokens of a sequence")
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="most threads")
    parser.add_argument("--threads", type=int, default=1, help="on all axes but cores")
    parser.add_argument("--smallest-corpus", type=float, default=1.0, help="in MB")
    parser.add_argument("--largest-corpus", type=float, default=16.0, help="in MB; up to 2,000")
    parser.add_argument("--folder", type=Path, help="for the temporary texts and stores")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--small", action="store_true", help="two small values per axis")
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--picture", type=Path, help="draw them there (PNG)")
    given = parser.parse_args()
    if min(given.rounds, given.cores, given.threads) < 1 or given.seconds < 0:
        parser.error("--rounds, --cores and --threads must be at least 1, --seconds at least 0")
    if not 16 <= given.longest <= 65_536:
        parser.error("--longest must be from 16 to 65,536")
    if not 0 < given.smallest_corpus <= given.largest_corpus <= 2000:
        parser.error("--smallest-corpus and --largest-corpus must be from 0 to 2,000 MB")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no GPU that PyTorch can use")
    return given


if __name__ == "__main__":
    main()
