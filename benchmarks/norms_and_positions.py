"""BERT's block beside T5's: pre-norm or post-norm, a table of positions or buckets of distances.

The table begins at random, as in BERT, or such that the first heads attend to neighbours.

    ownbert vocab TEXTS -o runs/words --vocab-size 4000
    ownbert prepare TEXTS -o runs/tokens --tokenizer runs/words
    python benchmarks/norms_and_positions.py runs/tokens [--steps 300] [--seeds 2] [--picture FILE]

Each line is a run of ``ownbert pretrain`` with MLM alone and the held-out loss on its way; the runs
of a seed differ in nothing else.
"""

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.pretraining.pretraining_run import Pretraining
from ownbert.run.run_folder import RunFolder
from ownbert.settings import resolve
from ownbert.train.log import read_log

T5_NORMS = {"norm_first": True, "final_norm": True, "norm_type": "rms_norm", "norm_bias": False}
NORMS: dict[str, dict[str, Any]] = {"post-norm": {}, "pre-norm": T5_NORMS}
# The kind of positions, and how they begin.
POSITIONS = {
    "table": ("absolute", "random"),
    "neighbours": ("absolute", "neighbours"),
    "buckets": ("relative_buckets", "random"),
}


class Variant(Pretraining):
    """Pretraining of a network that the format of BERT has no keys for; it is not saved."""

    def __init__(self, recipe: PretrainRecipe, changes: dict[str, Any]) -> None:
        super().__init__(recipe)
        self.config = replace(self.config, **changes)

    def save(self, learner: Any, folder: Any, world: Any) -> None:
        pass

    def finish(self, job: Any, folder: Any) -> Any:
        return job.state.learner.model


def losses(tokens: str, changes: dict[str, Any], options: dict[str, Any]) -> dict[int, float]:
    """Held-out losses of a run by step."""
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run", resume=False, overwrite=False)
        recipe = resolve(PretrainRecipe, options={"data.tokens": tokens, **options})
        Variant(recipe, changes).execute(folder, quiet=True)
        rows = [row for row in read_log(folder.path) if row.get("evaluation")]
    return {row["step"]: row["mlm_loss"] for row in rows}


def draw(curves: Mapping[tuple[str, str], Sequence[Mapping[int, float]]], path: Path) -> None:
    """One line for each combination: the mean of its seeds, each a mapping of steps to losses."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    colours = {"table": "#d0621b", "neighbours": "#2f855a", "buckets": "#2b6cb0"}
    lines = {"post-norm": "-", "pre-norm": ":"}
    for (norm, kind), seeds in curves.items():
        steps = sorted(seeds[0])
        means = [statistics.mean(losses[step] for losses in seeds) for step in steps]
        label = f"{norm}, {kind}"
        axes.plot(steps, means, lines[norm], color=colours[kind], label=label, marker="o", ms=3)
    axes.set_xlabel("steps")
    axes.set_ylabel("held-out MLM loss")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=80, metadata={"Software": None}, pil_kwargs={"optimize": True})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokens", help="token store that ownbert prepare wrote")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--learning-rate", type=float, help="by default that of the size")
    parser.add_argument("--picture", type=Path, help="draw the means of the seeds there (PNG)")
    given = parser.parse_args()
    curves: dict[tuple[str, str], list[dict[int, float]]] = defaultdict(list)
    for seed in range(given.seeds):
        for norm, changes in NORMS.items():
            for name, (kind, init) in POSITIONS.items():
                options = {
                    "objectives": ("mlm",),
                    "init_positions": init,
                    "size": given.size,
                    "seed": seed,
                    "max_steps": given.steps,
                    "eval_every": max(1, given.steps // 6),
                    "max_length": 128,
                    "batch_tokens": given.batch_tokens,
                    "learning_rate": given.learning_rate,
                }
                found = losses(given.tokens, {**changes, "position_embedding_type": kind}, options)
                curves[norm, name].append(found)
                shown = "  ".join(f"{step} {loss:.3f}" for step, loss in found.items())
                print(f"seed {seed}  {norm:9}  {name:10}  {shown}", flush=True)
    if given.picture:
        draw(curves, given.picture)


if __name__ == "__main__":
    main()
