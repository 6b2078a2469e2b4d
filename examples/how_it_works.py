"""Make the figures of docs/how-it-works.md, and print the numbers behind them.

    python examples/how_it_works.py [figure ...]

Figures: heads, scale, norms (24 small training runs, about a quarter of an hour on one core) and
trace (a screenshot of the page of ``ownbert trace``, which needs Chromium). Default: all of them.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.config.encoder import EncoderConfig
from ownbert.inspect.parameters import head_columns
from ownbert.inspect.trace import EXAMPLE, trace_attention
from ownbert.inspect.trace.trace import write_page
from ownbert.nn.model import Model
from ownbert.nn.multihead import Attention
from ownbert.objectives import MaskedLM
from ownbert.objectives.learner import Learner

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
RATES = (1e-4, 3e-4, 1e-3, 3e-3)
SEEDS, STEPS = (0, 1, 2), 300
DIGITS, FIRST, LENGTH = 16, 5, 8
CLS, SEP, MASK = 2, 3, 4


def heads() -> None:
    """The fused qkv matrix of a layer of BERT-base, divided into the columns of its heads."""
    with torch.device("meta"):
        attention = Attention(EncoderConfig.of_size("base", vocab_size=30522))
    rows, columns = 768, 3 * attention.width
    figure, axes = plt.subplots(figsize=(8, 3.2))
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    tones = {"queries": "tab:blue", "keys": "tab:orange", "values": "tab:green"}
    for head in head_columns(attention):
        for kind, (_, first, last) in head.columns.items():
            strength = 0.85 if head.head == 5 else 0.15 + 0.1 * (head.head % 2)
            axes.axvspan(first, last + 1, color=tones[kind], alpha=strength, lw=0)
            middle = (first + last + 1) / 2
            axes.text(middle, rows / 2, str(head.head), ha="center", va="center", fontsize=7)
            if head.head == 5:
                axes.text(middle, -18, f"{first}..{last}", ha="center", va="bottom", fontsize=8)
            if head.head == 0:
                third = first + attention.width / 2
                on = {"fc": "white", "ec": "none", "alpha": 0.85, "pad": 1.5}
                axes.text(third, 0.8 * rows, kind, ha="center", va="center", fontsize=9, bbox=on)
    axes.set_xticks([0, 768, 1536, 2304])
    axes.set_yticks([0, 768])
    axes.set(xlabel="columns of qkv: 3 HK = 2304", ylabel="inputs: D = 768")
    figure.suptitle(
        "qkv of BERT-base, 768 x 2304: 12 heads side by side in each third", fontsize=10
    )
    _save(figure, "heads")


def scale() -> None:
    """The softmax of 16 scores for queries and keys of increasing size."""
    torch.manual_seed(0)
    sizes = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    largest: dict[str, list[float]] = {"scores as they are": [], "scores / sqrt(K)": []}
    slope: dict[str, list[float]] = {name: [] for name in largest}
    for size in sizes:
        q, k = torch.randn(1000, size), torch.randn(1000, 16, size)
        scores = torch.einsum("qk,qsk->qs", q, k)
        for name, divisor in zip(largest, (1.0, size**0.5), strict=True):
            weights = (scores / divisor).softmax(-1)
            largest[name].append(weights.amax(-1).mean().item())
            slope[name].append((weights * (1 - weights)).mean().item())
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.8))
    titles = ("largest of 16 weights", "slope of the softmax")
    means = ("mean of the largest weight", "mean of w (1 - w)")
    for axes, lines, title, mean in zip(panels, (largest, slope), titles, means, strict=True):
        for name, values in lines.items():
            axes.plot(sizes, values, marker="o", ms=3, label=name)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="K (d_k), size of a head", ylabel=mean, title=title, ylim=(0, None))
        axes.title.set_fontsize(10)
    panels[0].legend(fontsize=8, loc="center right")
    _save(figure, "scale")


def norms() -> None:
    """Post-norm and pre-norm, 12 layers, at several learning rates from the first step on."""
    curves = {
        (norm_first, rate): [train(norm_first=norm_first, rate=rate, seed=s) for s in SEEDS]
        for norm_first in (False, True)
        for rate in RATES
    }
    draw_norms(curves)


def draw_norms(curves: dict[tuple[bool, float], list[list[float]]]) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
    for axes, norm_first in zip(panels, (False, True), strict=True):
        name = "pre-norm" if norm_first else "post-norm"
        for rate, style in zip(RATES, ("-", "--", "-.", ":"), strict=True):
            runs = np.array([_smooth(run) for run in curves[norm_first, rate]])
            steps = np.arange(runs.shape[1]) + 10
            label = f"{rate:.0e}".replace("e-0", "e-")
            (line,) = axes.plot(steps, runs.mean(0), style, label=label)
            axes.fill_between(steps, runs.min(0), runs.max(0), alpha=0.2, color=line.get_color())
            last = [np.mean(run[-20:]) for run in curves[norm_first, rate]]
            print(name, rate, [round(float(x), 2) for x in last])
        axes.axhline(np.log(DIGITS), color="grey", lw=0.8)
        axes.set(title=f"{name}, 12 layers, no warm-up", xlabel="step", ylim=(0, 3.6))
        axes.title.set_fontsize(10)
    panels[0].set_ylabel("loss (grey: guessing)")
    panels[0].legend(title="learning rate", fontsize=8, title_fontsize=8, loc="lower left")
    _save(figure, "norms")


def train(*, norm_first: bool, rate: float, seed: int) -> list[float]:
    """The loss of each step of learning to sort: 8 numbers, followed by 8 masks.

    The initial weights have the standard deviation of Xavier initialisation for D = 64,
    sqrt(2 / 2 D).
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    config = EncoderConfig(
        vocab_size=FIRST + DIGITS,
        hidden_size=64,
        num_hidden_layers=12,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.125,
        norm_first=norm_first,
        final_norm=norm_first,
    )
    learner = Learner(Model(config, ["mlm"], pooler=False), [MaskedLM()])
    optimizer = torch.optim.AdamW(learner.parameters(), lr=rate)
    losses = []
    for _ in range(STEPS):
        loss = learner(_sorting(rng, 16))["mlm"]
        mean = loss.total / loss.count
        mean.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean.item())
    return losses


def _sorting(rng: np.random.Generator, count: int) -> Batch:
    examples = []
    for _ in range(count):
        numbers = rng.integers(FIRST, FIRST + DIGITS, LENGTH)
        ids = np.concatenate([[CLS], numbers, [SEP], np.full(LENGTH, MASK), [SEP]])
        places = np.arange(LENGTH) + LENGTH + 2
        answers = np.sort(numbers)
        zeros = np.zeros_like(ids)
        examples.append(Example(ids, zeros, masked_positions=places, masked_ids=answers))
    return pack(examples)


def _smooth(values: Sequence[float], width: int = 20) -> np.ndarray:
    return np.convolve(values, np.full(width, 1 / width), "valid")


def trace() -> None:
    """A screenshot of the worked example's page in Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("trace: skipped, Chromium not found", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        write_page(trace_attention(**EXAMPLE, digits=1), page)
        command = [
            *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={folder}/profile", "--window-size=1100,1030"),
            *(f"--screenshot={PICTURES / 'trace.png'}", f"{page.as_uri()}#outputs.2.1"),
        ]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)


def _save(figure, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(PICTURES / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    makers = {"heads": heads, "scale": scale, "norms": norms, "trace": trace}
    for wanted in sys.argv[1:] or makers:
        if wanted not in makers:
            sys.exit(f"no figure {wanted!r}; one of {', '.join(makers)}")
        makers[wanted]()
