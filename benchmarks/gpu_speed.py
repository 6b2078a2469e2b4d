"""The speeds of benchmarks/gpu.py: steps, base's MFU, encoding, CUDA graphs, the whole loop.

T tokens of a batch.
"""

import argparse
import contextlib
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_report import Report

from ownbert.batches.batch import Batch, Example, pack
from ownbert.checkpoint import save
from ownbert.config.encoder import SIZES, EncoderConfig
from ownbert.nn.model import Model
from ownbert.tasks.row_network import batches_by_tokens
from ownbert.train.device import keep_memory
from ownbert.train.meter import matmul_rate, training_flops

F32, BF16 = torch.float32, torch.bfloat16
VOCABULARY, MASKED = 30_522, 0.15
# Peaks in bfloat16 without sparsity, in TFLOP/s, by a part of the device's name: NVIDIA's data
# sheets of each (those of Hopper and Ada name twice that, with sparsity). The first that fits.
PEAKS = (
    ("GH200", 989.4),
    ("H200 NVL", 835.5),
    ("H200", 989.4),
    ("H100 NVL", 835.5),
    ("H100 PCIe", 756.5),
    ("H100", 989.4),
    ("A100", 311.9),
    ("A40", 149.7),
    ("A10", 125.0),
    ("L40S", 362.1),
    ("L40", 181.1),
    ("L4", 121.0),
)
# From there on a device is of the H200's class, on which the MFU is judged.
CLASS = 900e12
MFU, TIMES = 0.5, 2.0
OURS, THEIRS = "OwnBERT", "Transformers, SDPA"


@dataclass(frozen=True)
class Machine:
    """What is measured on.

    Args:
        peak: FLOP/s in bfloat16 by the data sheet; None if it is not known here.
    """

    device: torch.device
    name: str
    peak: float | None

    @classmethod
    def here(cls, device: str) -> "Machine":
        keep_memory()
        if device == "cpu":
            return cls(torch.device("cpu"), "a CPU", None)
        # With its number, as tensors name it.
        here = torch.device("cuda", torch.cuda.current_device())
        name = torch.cuda.get_device_name(here)
        # A slice of a GPU (MIG) has a part of the peak only.
        fitting = (peak * 1e12 for part, peak in PEAKS if part in name and "MIG" not in name)
        return cls(here, name, next(fitting, None))

    @property
    def judged(self) -> bool:
        return self.device.type == "cuda"

    def __str__(self) -> str:
        peak = "no data sheet here" if self.peak is None else f"{self.peak / 1e12:,.0f} TFLOP/s"
        tf32 = "with" if torch.backends.cuda.matmul.allow_tf32 else "without"
        versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, float32 {tf32} TF32"
        return f"{self.name}, peak in bfloat16: {peak}; {versions}"


def own_model(size: str, device: torch.device, **changes: Any) -> Model:
    """A model with random weights, an MLM head and no dropout."""
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = EncoderConfig.of_size(size, vocab_size=vocabulary(size), **(rates | changes))
    return Model(config, ["mlm"], pooler=False).to(device).train()


def vocabulary(size: str) -> int:
    """That of BERT; of tiny, which is here to test the command, a small one."""
    return 2048 if size == "tiny" else VOCABULARY


def random_batch(size: str, lengths: Sequence[int], device: torch.device, seed: int = 0) -> Batch:
    """Tokens by chance for a model of ``size``, 15 % of them masked."""
    rng = np.random.default_rng(seed)
    examples = []
    for length in lengths:
        ids = rng.integers(1000, vocabulary(size), length)
        masked = np.sort(rng.choice(length, max(1, round(MASKED * length)), replace=False))
        examples.append(Example(ids, np.zeros(length, int), masked, ids[masked]))
    batch = pack(examples)
    return batch.to(device)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(
    ways: dict[str, Callable[[], object]], report: Report, device: torch.device, rounds: int
) -> dict[str, list[float]]:
    """Seconds per call of each way, one value per round; ways take turns.

    Each is warmed up, and called so often in a turn that this takes a quarter of a second, without
    waiting for the device in between. A way of others that fails is left out.
    """
    calls: dict[str, int] = {}
    for name, way in ways.items():
        try:
            for _ in range(3 if device.type == "cuda" else 1):
                way()
            wait(device)
            start = time.perf_counter()
            way()
            wait(device)
            each = time.perf_counter() - start
        except Exception as error:
            if name.startswith(OURS) and not isinstance(error, torch.OutOfMemoryError):
                raise
            report.note(f"left out: {name}: {type(error).__name__}: {str(error)[:200]}")
            release(device)
            continue
        most = 50 if device.type == "cuda" else 1
        calls[name] = max(1, min(most, round(0.25 / max(each, 1e-6))))
    took: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds):
        if number and report.left < 20:
            report.note(f"{number} rounds instead of {rounds}: the section's time ends")
            break
        for name, count in calls.items():
            wait(device)
            start = time.perf_counter()
            for _ in range(count):
                ways[name]()
            wait(device)
            took[name].append((time.perf_counter() - start) / count)
    return took


def release(device: torch.device) -> None:
    """Give memory that is cached back, before something else takes it."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def trainer(model: Model, device: torch.device) -> Any:
    from pretrain_ways import OwnBERT

    return OwnBERT(model, device)


def stepper(way: Any, batch: Any, dtype: torch.dtype) -> Callable[[], object]:
    from pretrain_ways import step

    return lambda: step(way, [batch], dtype)


def steps(report: Report, about: Machine, given: argparse.Namespace) -> None:
    """Training steps beside Transformers."""
    # Size, shortest and longest sequence, and how many: about as many tokens as a user would take,
    # and as many as a GPU likes.
    cases = [("mini", 16, 128, 28), ("mini", 16, 128, 512), ("base", 16, 128, 112)]
    cases += [("base", 16, 128, 512), ("base", 128, 128, 256), ("base", 16, 512, 128)]
    cases += [("base", 512, 512, 64)]
    if given.small:
        cases = [("tiny", 16, 128, 4), ("tiny", 64, 64, 2)]
    made: dict[str, dict[str, Any]] = {}
    for size, low, high, count in cases:
        if report.left < 30:
            report.falls_short(f"no time for {size}, {low} to {high} tokens")
            continue
        if size not in made:
            made.clear()
            release(about.device)
            made[size] = libraries(size, report, about)
        lengths = np.random.default_rng(0).integers(low, high + 1, count).tolist()
        text = random_text(size, lengths)
        ways: dict[str, Callable[[], object]] = {}
        for name, way in made[size].items():
            batch = way.batch(text, BF16)
            ways[f"{name}, bfloat16"] = stepper(way, batch, BF16)
            if name == OURS:
                ways[f"{name}, float32"] = stepper(way, batch, F32)
        took = in_turns(ways, report, about.device, given.rounds)
        case = f"{size}, {count} x {low} to {high}"
        other = took.get(f"{THEIRS}, bfloat16")
        for name, seconds in took.items():
            times = [] if other is None else ratios(other, seconds)
            report.row(
                case=case,
                library=name,
                ms_per_step=1000 * statistics.median(seconds),
                tokens_per_second=sum(lengths) / statistics.median(seconds),
                times_of_transformers=spread(times) if times else "",
            )
        if low == high or high > 128:
            continue
        what, ours = f"{case}: times as fast as Transformers, training", f"{OURS}, bfloat16"
        if other and took.get(ours):
            judge(report, about, statistics.median(ratios(other, took[ours])), TIMES, what)
        elif about.judged:
            report.falls_short(f"{what}: not measured")


def ratios(theirs: Sequence[float], ours: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(theirs, ours, strict=False)]


def judge(report: Report, about: Machine, found: float, aim: float, what: str) -> None:
    """An aim, on a GPU."""
    if not about.judged:
        report.note(f"{what}: {found:.2f}; the aim of {aim:g} is not judged on a CPU")
    elif found < aim:
        report.falls_short(f"{what}: {found:.2f}, the aim is {aim:g}")
    else:
        report.note(f"{what}: {found:.2f}, at least {aim:g} as it should be")


def random_text(size: str, lengths: Sequence[int]) -> Any:
    from pretrain_ways import make_text

    return make_text(np.random.default_rng(0), np.asarray(lengths), vocabulary(size))


def libraries(size: str, report: Report, about: Machine) -> dict[str, Any]:
    """Trainers by name; those of Transformers where it is installed."""
    torch.manual_seed(0)
    found = {OURS: trainer(own_model(size, about.device), about.device)}
    try:
        from transformers import BertConfig, BertForMaskedLM
    except ImportError as error:
        report.note(f"left out: Transformers: {error}")
        return found
    from pretrain_ways import Transformers

    layers, hidden, heads = SIZES[size]
    for name, attention in attentions(report, about).items():
        config = BertConfig(
            vocab_size=vocabulary(size),
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * hidden,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            attn_implementation=attention,
        )
        found[name] = Transformers(BertForMaskedLM(config), about.device)
    return found


def attentions(report: Report, about: Machine) -> dict[str, str]:
    """Names of Transformers' attention that can run here, by how we call them."""
    found = {THEIRS: "sdpa"}
    try:
        if about.device.type != "cuda":
            raise ImportError("it is for a GPU")
        import flash_attn  # pyright: ignore[reportMissingImports]  # noqa: F401
    except ImportError as error:
        report.note(f"left out: Transformers with FlashAttention: {error}")
    else:
        found["Transformers, FlashAttention"] = "flash_attention_2"
    return found


def base(report: Report, about: Machine, given: argparse.Namespace) -> None:
    """Base at 128 and 512 tokens: how fast, and how much of the peak."""
    size, sizes = "base", (16_384, 32_768, 65_536)
    if given.small:
        size, sizes = "tiny", (1024,)
    model = own_model(size, about.device)
    way = trainer(model, about.device)
    measured = matmul_rate(about.device, BF16, 1.0 if about.judged else 0.1)
    report.note(f"the largest measured product in bfloat16: {measured / 1e12:,.1f} TFLOP/s")
    best: dict[int, float] = {}
    for length in (128, 512):
        for tokens in sizes:
            if report.left < 20:
                report.falls_short(f"no time for {length} tokens, {tokens:,} per step")
                continue
            batch = random_batch(size, [length] * (tokens // length), about.device)
            if about.judged:
                torch.cuda.reset_peak_memory_stats(about.device)
            ways = {OURS: stepper(way, batch, BF16)}
            took = in_turns(ways, report, about.device, given.rounds).get(OURS)
            if not took:
                continue
            seconds = statistics.median(took)
            assert batch.masked_ids is not None
            rows = {model.heads["mlm"]: batch.masked_ids.numel()}
            work = training_flops(model, batch.layout.lengths, rows)
            share = work / seconds / (about.peak or measured)
            best[length] = max(best.get(length, 0.0), share)
            memory = torch.cuda.max_memory_allocated(about.device) / 1e9 if about.judged else 0.0
            report.row(
                model=size,
                length=length,
                tokens_per_step=tokens,
                ms_per_step=1000 * seconds,
                tokens_per_second=tokens / seconds,
                tflops=work / seconds / 1e12,
                mfu=share,
                share_of_measured=work / seconds / measured,
                memory_gb=memory,
            )
            release(about.device)
    if about.judged and (about.peak or 0.0) < CLASS:
        report.note(f"the aim for the MFU is for devices of the H200's class, not {about.name}")
    elif 512 in best:
        judge(report, about, best[512], MFU, "MFU of base at 512 tokens in bfloat16")
    else:
        report.falls_short("MFU of base at 512 tokens: nothing was measured")


def encode(report: Report, about: Machine, given: argparse.Namespace) -> None:
    """Vectors of texts of mixed lengths; tokenising is not part of it."""
    # As all-MiniLM-L6-v2, and base.
    shapes = {"6 layers of 384": (6, 384, 12), "base": SIZES["base"]}
    count, cases = 4096, [(16, 128), (16, 512)]
    if given.small:
        shapes, count, cases = {"tiny": SIZES["tiny"]}, 48, [(16, 128)]
    for shape, (layers, hidden, heads) in shapes.items():
        with tempfile.TemporaryDirectory() as folder:
            config = EncoderConfig(
                vocab_size=vocabulary(shape),
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=4 * hidden,
            )
            torch.manual_seed(0)
            save(Model(config, pooler=True), folder)
            for low, high in cases:
                if report.left < 30:
                    report.falls_short(f"no time to encode with {shape}, {low} to {high} tokens")
                    continue
                race(report, about, given, shape, Path(folder), count, low, high)
        release(about.device)


def race(
    report: Report,
    about: Machine,
    given: argparse.Namespace,
    shape: str,
    folder: Path,
    count: int,
    low: int,
    high: int,
) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(low, high + 1, count)
    ids = [rng.integers(1000, vocabulary(shape), length) for length in lengths]
    batches = (4096, 32_768, 131_072) if about.judged else (4096,)
    calls = own_encoders(folder, about, batches)
    try:
        calls |= their_encoders(folder, report, about, max(batches) // 4)
    except ImportError as error:
        report.note(f"left out: Transformers: {error}")
    vectors: dict[str, np.ndarray] = {}

    def keep(name: str) -> Callable[[], object]:
        def run() -> None:
            vectors[name] = calls[name](ids)

        return run

    took = in_turns({name: keep(name) for name in calls}, report, about.device, given.rounds)
    tokens, case = sum(map(len, ids)), f"{shape}, {count:,} texts of {low} to {high}"
    first = next(name for name in took if name.startswith(OURS))
    for name, seconds in took.items():
        least = least_cosine(vectors[first], vectors[name])
        report.row(
            case=case,
            library=name,
            tokens_per_second=tokens / statistics.median(seconds),
            seconds=spread(seconds),
            least_cosine=least,
        )
        report.require(least > 0.99, f"{case}: {name} gives other vectors, cosine {least:.4f}")
    middle = {name: statistics.median(seconds) for name, seconds in took.items()}
    ours = min(seconds for name, seconds in middle.items() if name.startswith(OURS))
    corpus_order = [s for n, s in middle.items() if THEIRS in n and "corpus order" in n]
    if high > 128:
        return
    what = f"{case}: times as fast as Transformers in corpus order, encoding"
    if corpus_order:
        judge(report, about, min(corpus_order) / ours, TIMES, what)
    elif about.judged:
        report.falls_short(f"{what}: not measured")


Vectors = Callable[[Sequence[np.ndarray]], np.ndarray]


def own_encoders(folder: Path, about: Machine, batches: Sequence[int]) -> dict[str, Vectors]:
    from ownbert.run.packed_encoder import PackedEncoder

    encoder = PackedEncoder(folder, about.device.type, "bfloat16")

    def with_tokens(most: int) -> Vectors:
        def run(ids: Sequence[np.ndarray]) -> np.ndarray:
            lengths = np.asarray([len(one) for one in ids])
            out = np.empty((len(ids), encoder.model.config.hidden_size), np.float32)
            order = np.argsort(-lengths, kind="stable")
            for chosen in batches_by_tokens(order, lengths.tolist(), most):
                out[chosen] = encoder.vectors([ids[i] for i in chosen], "mean")
            return out

        return run

    return {f"{OURS}, {most:,} tokens per batch": with_tokens(most) for most in batches}


def their_encoders(folder: Path, report: Report, about: Machine, most: int) -> dict[str, Vectors]:
    """With batches of 32 texts, and of as many as fill ``most`` tokens with padding."""
    from transformers import AutoModel

    found: dict[str, Vectors] = {}
    for name, attention in attentions(report, about).items():
        model = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=BF16)
        model = model.to(about.device).eval()

        def with_order(model: Any, order: bool, most: int | None) -> Vectors:
            return lambda ids: padded_vectors(model, ids, about.device, order, most)

        found[f"{name}, corpus order, 32 texts"] = with_order(model, False, None)
        found[f"{name}, corpus order, {most:,} tokens"] = with_order(model, False, most)
        found[f"{name}, sorted, {most:,} tokens"] = with_order(model, True, most)
    return found


@torch.inference_mode()
def padded_vectors(
    model: Any, ids: Sequence[np.ndarray], device: torch.device, order: bool, most: int | None
) -> np.ndarray:
    """Means over the tokens of each text, from batches padded to the longest text in each."""
    lengths = np.asarray([len(one) for one in ids])
    rows = np.argsort(-lengths, kind="stable") if order else np.arange(len(ids))
    out, start = np.empty((len(ids), model.config.hidden_size), np.float32), 0
    while start < len(rows):
        size = 32
        if most is not None:
            longest = enumerate(accumulate(lengths[rows[start:]].tolist(), max), 1)
            size = max(
                1, sum(1 for _ in takewhile(lambda each: each[0] * each[1] <= most, longest))
            )
        chosen = rows[start : start + size]
        mask = np.arange(lengths[chosen].max()) < lengths[chosen, None]
        grid = np.zeros(mask.shape, np.int64)
        grid[mask] = np.concatenate([ids[i] for i in chosen])
        inputs = torch.from_numpy(grid).to(device), torch.from_numpy(mask.astype(int)).to(device)
        hidden = model(*inputs).last_hidden_state.float()
        weights = inputs[1][..., None].float()
        out[chosen] = ((hidden * weights).sum(1) / weights.sum(1)).cpu().numpy()
        start += size
    return out


def least_cosine(one: np.ndarray, other: np.ndarray) -> float:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    return float(((one * other).sum(1) / norms).min())


def graphs(report: Report, about: Machine, given: argparse.Namespace) -> None:
    """The same step as it is, with its passes in a CUDA graph, and with compiled blocks."""
    cases = [("mini", [128] * 16), ("base", [128] * 64), ("base", [512] * 64)]
    if given.small:
        cases = [("tiny", [32] * 4)]
    for size, lengths in cases:
        if report.left < 60 and not given.small:
            report.falls_short(f"no time for {size}, {len(lengths)} x {lengths[0]} tokens")
            continue
        case = f"{size}, {len(lengths)} x {lengths[0]}"
        torch.manual_seed(0)
        way = trainer(own_model(size, about.device), about.device)
        batch = random_batch(size, lengths, about.device)
        ways: dict[str, Callable[[], object]] = {OURS: stepper(way, batch, BF16)}
        graphed = trainer(own_model(size, about.device), about.device)
        try:
            ways["in a CUDA graph"] = graphed_step(graphed, batch, about)
        except Exception as error:
            report.note(f"left out: {case} in a CUDA graph: {str(error)[:300]}")
        try:
            compiled = compiled_model(size, about, given)
            ways["with compiled blocks"] = stepper(trainer(compiled, about.device), batch, BF16)
        except Exception as error:
            report.note(f"left out: {case} compiled: {str(error)[:300]}")
        took = in_turns(ways, report, about.device, given.rounds)
        for name, seconds in took.items():
            report.row(
                case=case,
                step=name,
                ms_per_step=1000 * statistics.median(seconds),
                tokens_per_second=sum(lengths) / statistics.median(seconds),
                times_of_plain=spread(ratios(took[OURS], seconds)),
            )
        del ways, way, graphed
        release(about.device)


def graphed_step(way: Any, batch: Batch, about: Machine) -> Callable[[], object]:
    """A step whose forward and backward pass are one CUDA graph, for batches of one shape.

    Raises:
        RuntimeError: it is no GPU, or the passes cannot be captured.
    """
    if about.device.type != "cuda":
        raise RuntimeError("it is for a GPU")

    def passes() -> None:
        # A cache of converted weights would belong to the graph, and be used after it.
        with torch.autocast("cuda", BF16, cache_enabled=False):
            found = way.learner(batch)["mlm"]
        (found.total / found.count).backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            way.optimizer.zero_grad(set_to_none=True)
            passes()
    torch.cuda.current_stream().wait_stream(side)
    way.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # gradients are made within: each replay writes them anew
        passes()
    graph.replay()
    norms = [norm_of(way)]
    way.optimizer.zero_grad(set_to_none=False)
    plain = trainer(copy.deepcopy(way.model), about.device)
    plain.loss(batch, BF16).backward()
    norms.append(norm_of(plain))
    if abs(norms[0] - norms[1]) > 0.02 * norms[1]:
        raise RuntimeError(f"its gradient has the norm {norms[0]:.4g} instead of {norms[1]:.4g}")

    def run() -> None:
        graph.replay()
        torch.nn.utils.clip_grad_norm_(way.model.parameters(), 1.0)
        way.optimizer.step()

    return run


def norm_of(way: Any) -> float:
    gradients = [p.grad for p in way.model.parameters() if p.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def compiled_model(size: str, about: Machine, given: argparse.Namespace) -> Model:
    """A model whose blocks are compiled but for attention itself."""
    from ownbert.nn.multihead import MultiHeadAttention

    model = own_model(size, about.device)
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            plain = MultiHeadAttention.attend.__get__(module)
            module.attend = torch.compiler.disable(plain)  # pyright: ignore[reportAttributeAccessIssue]
    # Without a GPU: as the compiler reads it, without making code of it.
    backend = "inductor" if about.judged else "eager"
    for block in model.encoder.blocks:
        block.compile(backend=backend)
    return model


def loop(report: Report, about: Machine, given: argparse.Namespace) -> None:
    """``ownbert pretrain``, and its loader alone."""
    from store import batches, generate

    from ownbert import learn_vocabulary, prepare
    from ownbert.corpus.store import Store

    megabytes, cases = 20, [("tiny", 32_768, 200), ("base", 32_768, 60)]
    if given.small:
        megabytes, cases = 1, [("tiny", 1024, 4)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder / "corpus.txt", megabytes * 1_000_000)
        generate(folder / "part.txt", 1_000_000)
        vocabulary, tokens = folder / "vocabulary", folder / "tokens"
        learn_vocabulary(folder / "part.txt", vocabulary, kind="wordpiece", vocab_size=20_000)
        prepare(folder / "corpus.txt", tokens, tokenizer=vocabulary)
        source: Any = batches(Store.open(tokens))
        with contextlib.closing(source):
            for _ in range(8):
                next(source)
            start = time.perf_counter()
            loaded = sum(next(source)[0].tokens for _ in range(20 if given.small else 400))
            rate = loaded / (time.perf_counter() - start)
        report.row(what="the loader alone", tokens_per_second=rate, mfu="")
        if given.one_process:
            report.note("left out: ownbert pretrain, which is another process")
            return
        for size, per_step, count in cases:
            if report.left < 20:
                report.falls_short(f"no time for ownbert pretrain --size {size}")
                continue
            rows = pretrain_log(folder / size, tokens, size, per_step, count, report, about)
            later = rows[len(rows) // 2 :]
            report.row(
                what=f"ownbert pretrain --size {size} --batch-tokens {per_step}",
                tokens_per_second=statistics.median(row["tokens_per_second"] for row in later),
                mfu=statistics.median(row.get("mfu", 0.0) for row in later),
            )


def pretrain_log(
    folder: Path,
    tokens: Path,
    size: str,
    per_step: int,
    count: int,
    report: Report,
    about: Machine,
) -> list[dict[str, Any]]:
    """The rows of the steps of a run, in which MFU is relative to the measured peak."""
    command = [sys.executable, "-m", "ownbert", "pretrain", str(tokens), "-o", str(folder)]
    options = ["--size", size, "--max-steps", str(count), "--batch-tokens", str(per_step)]
    options += ["--log-every", str(max(1, count // 10)), "--eval-every", str(10 * count)]
    options += ["--device", about.device.type, "--objectives", "mlm"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=max(10.0, report.left)
    )
    if done.returncode:
        raise RuntimeError(f"ownbert pretrain: {done.stderr.strip().splitlines()[-1:]}")
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [row for row in rows if not row.get("evaluation")]
