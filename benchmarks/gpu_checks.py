"""The checks of benchmarks/gpu.py: attention backends, resumption, several processes.

As a program it is ``ownbert`` with PyTorch's deterministic algorithms: ``gpu_checks.py pretrain
...``. By default attention's backward pass on a GPU adds up in an order that differs from run to
run.

H heads, K head size.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_report import Report
from gpu_speed import BF16, F32, Machine, own_model, random_batch
from torch import Tensor, nn

from ownbert.batches.layout import Layout, make_layout
from ownbert.nn.attention.attend import BACKENDS, attend
from ownbert.nn.attention.attend import varlen_unsupported as unsupported
from ownbert.objectives import MaskedLM
from ownbert.objectives.learner import Learner
from ownbert.train.distributed import ALONE, World, full_tensor, shard
from ownbert.train.optimizers import make_optimizer
from ownbert.train.step import step
from ownbert.train.training_settings import Optim

DTYPES = (F32, BF16, torch.float16)
# A backend may be wrong by so many times what the reference loses itself in the number type, and by
# so many times the distance of neighbouring numbers of the size of the largest one.
TIMES_REFERENCE, TIMES_EPSILON = 4, 8
DRAWS, DROPOUT = 100, 0.2
KINDS = ("absolute", "rotary", "relative_key_query", "alibi")
# Of a row of the log, what the clock decides.
CLOCK = ("seconds", "tokens_per_second", "mfu")


def parity(report: Report, about: Machine, given: argparse.Namespace) -> None:
    """Backends, then models."""
    heads, size = (2, 16) if given.small else (4, 64)
    left_out = set()
    for dtype in DTYPES:
        for name, backend in BACKENDS.items():
            if name == "reference":
                continue
            worst, where, count = 0.0, "", 0
            for kind, layout in layouts(about.device).items():
                query = torch.zeros(1, heads, size, dtype=dtype, device=about.device)
                reason = backend.unsupported(query, layout)
                if reason is not None:
                    left_out.add(f"{name} {reason}")
                    continue
                if layout.hides and not backend.masks:
                    continue
                try:
                    share = worst_share(name, layout, heads, size, dtype, backend.gradients)
                except RuntimeError as error:  # the others are checked all the same
                    report.falls_short(f"{name} in {dtype} ({kind}): {str(error)[:200]}")
                    continue
                count += 1
                if share > worst:
                    worst, where = share, kind
            if not count:
                continue
            number = str(dtype).removeprefix("torch.")
            report.row(
                backend=name, numbers=number, layouts=count, error_of_tolerance=worst, worst=where
            )
            right = worst <= 1
            report.require(right, f"{name} in {number}: {worst:.2g} of the tolerance ({where})")
    for line in sorted(left_out):
        report.note(f"left out: {line}")
    check_choice(report, about, heads, size)
    check_dropout(report, about, heads, size)
    check_models(report, about, given)


def layouts(device: torch.device) -> dict[str, Layout]:
    ragged, even = make_layout([1, 7, 128, 64, 33, 200]), make_layout([48] * 4)
    by_chance = torch.Generator().manual_seed(0)
    hidden = torch.rand(4, 1, 48, generator=by_chance) < 0.7
    found = {
        "ragged": ragged,
        "even": even,
        "causal": replace(ragged, causal=True),
        "window": replace(ragged, window=16),
        "keys hidden": replace(even, mask=hidden),
        "cross": replace(make_layout([5, 9, 1]), keys=make_layout([30, 17, 90])),
    }
    return {name: layout.to(device) for name, layout in found.items()}


def worst_share(
    name: str, layout: Layout, heads: int, size: int, dtype: torch.dtype, gradients: bool
) -> float:
    """The largest error of value and gradient as a share of what is allowed."""
    queries, keys = sum(layout.lengths), sum((layout.keys or layout).lengths)
    device = layout.cu_seqlens.device
    by_chance = torch.Generator().manual_seed(queries)
    *inputs, above = (
        torch.randn(rows, heads, size, generator=by_chance).to(device, dtype)
        for rows in (queries, keys, keys, queries)
    )

    def run(backend: str, kind: torch.dtype) -> list[Tensor]:
        x = [each.detach().to(kind).requires_grad_(gradients) for each in inputs]
        with torch.set_grad_enabled(gradients):
            out = attend(x[0], x[1], x[2], layout, backend=backend).out
        if not gradients:
            return [out]
        return [out.detach(), *torch.autograd.grad(out, x, above.to(kind))]

    truth, plain, found = (
        run(*each) for each in (("reference", torch.float64), ("reference", dtype), (name, dtype))
    )
    shares = []
    for true, rough, ours in zip(truth, plain, found, strict=True):
        floor = TIMES_EPSILON * torch.finfo(dtype).eps * max(1.0, float(true.abs().max()))
        allowed = TIMES_REFERENCE * float((rough.double() - true).abs().max()) + floor
        error = float((ours.double() - true).abs().max())
        shares.append(error / allowed if np.isfinite(error) else float("inf"))
    return max(shares)


def check_choice(report: Report, about: Machine, heads: int, size: int) -> None:
    """Whether mixed lengths in bfloat16 are attended to by the kernel for packed sequences."""
    query = torch.zeros(1, heads, size, dtype=BF16, device=about.device)
    reason = unsupported(query, make_layout([3, 5]).to(about.device))
    if reason is None:
        report.note("bfloat16 without dropout is attended to by varlen")
    else:
        report.note(f"bfloat16 is not attended to by varlen, which {reason}")


def check_dropout(report: Report, about: Machine, heads: int, size: int) -> None:
    """The mean over many draws is attention without dropout."""
    layout = make_layout([5, 33, 48]).to(about.device)
    by_chance = torch.Generator().manual_seed(1)
    rows = sum(layout.lengths)
    q, k, v = (torch.randn(rows, heads, size, generator=by_chance) for _ in range(3))
    q, k, v = (x.to(about.device) for x in (q, k, v))
    truth = attend(q, k, v, layout, backend="reference").out
    for name, backend in BACKENDS.items():
        if not backend.dropout or backend.unsupported(q, layout) is not None:
            continue
        torch.manual_seed(0)
        try:
            found = torch.stack(
                [attend(q, k, v, layout, dropout=DROPOUT, backend=name).out for _ in range(DRAWS)]
            ).double()
        except RuntimeError as error:
            report.falls_short(f"dropout of {name}: {str(error)[:200]}")
            continue
        deviation = found.std(0) / DRAWS**0.5
        score = float((((found.mean(0) - truth) / deviation.clamp_min(1e-9)) ** 2).mean())
        report.row(dropout=name, draws=DRAWS, mean_squared_deviation=score)
        report.require(0.5 < score < 2, f"dropout of {name}: {score:.2f}, which should be near 1")


def check_models(report: Report, about: Machine, given: argparse.Namespace) -> None:
    size = "tiny" if given.small else "mini"
    batch = random_batch(size, [7, 128, 33, 64, 100], about.device)
    for kind in KINDS:
        torch.manual_seed(0)
        model = own_model(size, about.device, position_embedding_type=kind)
        losses = {dtype: float(mean_loss(model, batch, dtype).detach()) for dtype in (F32, BF16)}
        off = abs(losses[BF16] - losses[F32])
        report.row(model=size, positions=kind, loss=losses[F32], bfloat16_differs_by=off)
        report.require(off < 0.03, f"{kind}: the loss in bfloat16 differs by {off:.3g}")
    try:
        from pretrain_ways import make_both, make_text

        ours, theirs = make_both(size, 0.0, about.device)
    except ImportError as error:
        report.note(f"left out: the comparison with Transformers: {error}")
        return
    text = make_text(np.random.default_rng(0), np.asarray([16, 128, 77, 40]))
    found = {}
    for name, way in (("OwnBERT", ours), ("Transformers", theirs)):
        loss = way.loss(way.batch(text, F32), F32)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in way.model.parameters()])
        found[name] = float(loss.detach()), float(norm)
        report.row(library=name, model=size, loss=found[name][0], gradient_norm=found[name][1])
    for what, one, other in zip(("loss", "norm"), *found.values(), strict=True):
        right = abs(one - other) <= 1e-3 * abs(other)
        report.require(right, f"{what} is {one:.6g}, with Transformers {other:.6g}")


def mean_loss(model: Any, batch: Any, dtype: torch.dtype) -> Tensor:
    with torch.autocast(batch.token_ids.device.type, BF16, enabled=dtype == BF16):
        loss = MaskedLM()(model(batch, ["mlm"]).logits["mlm"], batch)
    return loss.total / loss.count


def make_store(folder: Path, documents: int) -> Path:
    """A token store of ``documents`` short texts of words by chance."""
    from ownbert import learn_vocabulary, prepare

    rng = np.random.default_rng(0)
    lines = []
    for _ in range(documents):
        words = np.minimum(rng.zipf(1.3, rng.integers(20, 160)), 400)
        lines.append(" ".join(f"w{number}" for number in words) + " .")
    (folder / "corpus.txt").write_text("\n".join(lines) + "\n")
    learn_vocabulary(folder / "corpus.txt", folder / "vocabulary", kind="blank")
    prepare(folder / "corpus.txt", folder / "tokens", tokenizer=folder / "vocabulary")
    return folder / "tokens"


class Pretrain:
    """Runs of ``ownbert pretrain`` with deterministic algorithms, on one store."""

    def __init__(self, tokens: Path, about: Machine, given: argparse.Namespace) -> None:
        self.tokens, self.device = tokens, about.device.type
        size, steps, batch = ("tiny", 24, 512) if given.small else ("mini", 60, 4096)
        self.steps = steps
        self.options = ["--size", size, "--max-steps", str(steps), "--batch-tokens", str(batch)]
        self.options += ["--save-every", "5", "--eval-every", "10", "--log-every", "1"]
        self.options += ["--max-length", "128", "--device", self.device]

    def start(self, folder: Path, *options: str, torchrun: bool = False, exact: bool = True):
        program = [str(Path(__file__).resolve())] if exact else ["-m", "ownbert"]
        if torchrun:
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
            program = [*launcher, *program]
        command = [sys.executable, *program, "pretrain", str(self.tokens), "-o", str(folder)]
        return subprocess.Popen(
            [*command, *self.options, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, folder: Path, *options: str, seconds: float, **how: bool) -> None:
        """Run to the end.

        Raises:
            RuntimeError: it fails, or does not end in time.
        """
        run = self.start(folder, *options, **how)
        try:
            _, errors = run.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            raise RuntimeError(f"a run did not end within {seconds:.0f} s") from None
        if run.returncode:
            last = (errors.strip() or "nothing was said").splitlines()[-1]
            raise RuntimeError(f"a run ended with {run.returncode}: {last}")

    def kill(self, folder: Path, *options: str, step: int, seconds: float) -> bool:
        """Start or resume a run, and kill it after ``step``; whether it was running then."""
        run, log = self.start(folder, *options, "--resume"), folder / "log.jsonl"
        end = time.monotonic() + seconds
        while run.poll() is None and time.monotonic() < end:
            if log.exists() and len(log.read_text().splitlines()) >= step:
                break
            time.sleep(0.01)
        run.send_signal(signal.SIGKILL)
        run.communicate()
        return run.returncode == -signal.SIGKILL


def same_bits(one: Path, other: Path) -> bool:
    """Whether logs and weights of two runs are equal."""
    from safetensors.torch import load_file

    logs = [
        [
            {name: value for name, value in json.loads(line).items() if name not in CLOCK}
            for line in (folder / "log.jsonl").read_text().splitlines()
        ]
        for folder in (one, other)
    ]
    weights = [load_file(folder / "model.safetensors") for folder in (one, other)]
    return (
        logs[0] == logs[1]
        and weights[0].keys() == weights[1].keys()
        and all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    )


def resume(report: Report, about: Machine, given: argparse.Namespace) -> None:
    on_gpu = about.device.type == "cuda"
    cases = [("bfloat16", "0"), ("bfloat16", "0.1"), ("float32", "0")] if on_gpu else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = Pretrain(make_store(folder, 400), about, given)
        for precision, dropout in cases or [("float32", "0.1")]:
            options = ("--precision", precision, "--dropout", dropout)
            case = f"{precision}, dropout {dropout}"
            whole, killed = (folder / f"{part}-{case}" for part in ("whole", "killed"))
            runs.finish(whole, *options, seconds=report.left)
            hits = 0
            for share in (0.3, 0.7):
                step_number = int(share * runs.steps)
                hits += runs.kill(killed, *options, step=step_number, seconds=report.left)
            runs.finish(killed, *options, "--resume", seconds=report.left)
            same = same_bits(whole, killed)
            report.row(run=case, steps=runs.steps, kills=hits, equal_to_the_last_bit=same)
            report.require(hits > 0, f"{case}: the run had ended before it was killed")
            report.require(same, f"{case}: a run that was killed and resumed differs")
        if on_gpu and report.left > 30:
            pair = [folder / f"default-{i}" for i in range(2)]
            for each in pair:
                runs.finish(each, "--precision", "bfloat16", seconds=report.left, exact=False)
            same = "equal" if same_bits(*pair) else "not equal"
            report.note(f"two runs with PyTorch's default algorithms are {same} to the last bit")


def ddp(report: Report, about: Machine, given: argparse.Namespace) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        for precision in ("float32", "bfloat16"):
            compare_processes(report, about, given, precision)
    finally:
        torch.use_deterministic_algorithms(False)
    if given.one_process:
        report.note("left out: torchrun, which starts another process")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = Pretrain(make_store(folder, 200), about, given)
        runs.finish(folder / "plain", seconds=report.left)
        runs.finish(folder / "torchrun", seconds=report.left, torchrun=True)
        same = same_bits(folder / "plain", folder / "torchrun")
        report.row(run="torchrun with one process", equal_to_the_last_bit=same)
        report.require(same, "a run under torchrun with one process differs from a plain one")
    report.note("not here: several GPUs; NCCL refuses two processes on one")


def compare_processes(
    report: Report, about: Machine, given: argparse.Namespace, precision: str
) -> None:
    """Weights after three steps, with one process in the group."""
    size = "tiny" if given.small else "mini"
    batches = [random_batch(size, [40, 128, 7, 90], about.device, seed=i) for i in range(3)]

    def learn(wrap: Callable[[Learner], nn.Module]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        learner = Learner(own_model(size, about.device), [MaskedLM()])
        module = wrap(learner)
        optim = Optim(learning_rate=1e-3)
        optimizer = make_optimizer(learner, optim)
        for batch in batches:
            counts = {"mlm": MaskedLM().count(batch)}
            how: Mapping[str, Any] = {"objectives": learner.objectives, "optim": optim}
            step(module, optimizer, [batch], counts, rate=1e-3, precision=precision, **how)
        weights = learner.named_parameters()
        return {name: full_tensor(p.detach()).cpu() for name, p in weights}

    def sharded(learner: Learner) -> Learner:
        shard(learner, World(0, 1))
        return learner

    def replicated(learner: Learner) -> nn.Module:
        return nn.parallel.DistributedDataParallel(learner, gradient_as_bucket_view=True)

    plain = learn(lambda learner: learner)
    with process_group(about.device):
        found = {"DistributedDataParallel": learn(replicated), "fully_shard": learn(sharded)}
    for name, weights in found.items():
        off = max(float((weights[n] - plain[n]).abs().max()) for n in plain)
        report.row(wrapped=name, precision=precision, steps=3, weights_differ_by=off)
        report.require(off <= 1e-5, f"{name} in {precision}: weights differ by {off:.2g}")


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[World]:
    """A group of this process alone, with the backend that ``distributed.join`` takes."""
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as name:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        rendezvous = f"file://{name}/store"
        dist.init_process_group(backend, init_method=rendezvous, rank=0, world_size=1)
        try:
            yield ALONE
        finally:
            dist.destroy_process_group()


def main() -> None:
    torch.use_deterministic_algorithms(True)
    from ownbert.cli import main as ownbert

    ownbert()


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    main()
