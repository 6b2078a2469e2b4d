"""Faithfulness of explanations: mask words in order of relevance, and measure the effect.

U words of a row, R pairs of row and target.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size

from ownbert.exceptions import InputError
from ownbert.figures import plotted
from ownbert.inference.engines import Say, say_each
from ownbert.inspect.explain.blend_words import LinearShares
from ownbert.inspect.explain.explain import Explainer
from ownbert.inspect.explain.methods import (
    METHODS,
    ExplainedTarget,
    leave_one_out,
    method_named,
    random_order,
)
from ownbert.language import translated
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames

# Shares of the words that are masked, or kept while all others are masked.
SHARES = (0.05, 0.1, 0.2, 0.5)
RANDOM = "random order"
# Fast methods; exact Shapley values of ten segments take a thousand passes.
USUAL = tuple(name for name in METHODS if name != "shapley")
_FEWEST_WORDS = 4
_TITLES = {"comprehensiveness": "without the top words", "sufficiency": "with only the top words"}


@dataclass(frozen=True)
class Faithfulness:
    """Faithfulness of a method's explanations over R pairs of row and target.

    Args:
        comprehensiveness: (R, shares) drop of the prediction without the most relevant words;
            higher is better.
        sufficiency: (R, shares) drop of the prediction with only these words; lower is better.
        correlation: (R) Spearman correlation with leave-one-out values.
    """

    comprehensiveness: np.ndarray
    sufficiency: np.ndarray
    correlation: np.ndarray

    def row(self) -> dict[str, float]:
        """Means over the rows and shares, with standard errors."""
        out: dict[str, float] = {}
        for name in ("comprehensiveness", "sufficiency", "correlation"):
            values = getattr(self, name)
            values = values.mean(1) if values.ndim == 2 else values[np.isfinite(values)]
            count = len(values)
            out[name] = float(values.mean()) if count else math.nan
            spread = float(values.std(ddof=1)) if count > 1 else math.nan
            out[f"{name}_error"] = spread / math.sqrt(max(1, count))
        return out


@in_float32
def faithfulness(
    folder: str | Path,
    data: Any,
    *,
    methods: Sequence[str] = USUAL,
    rows: int = 100,
    text_column: str | None = None,
    second_column: str | None = None,
    device: str = "auto",
    network: bool = False,
    say: Say | None = None,
) -> Mapping[str, Faithfulness]:
    """Compare methods and a random order on rows.

    A drop is that of the predicted probability; for regression values and cosines, it is the
    absolute change. Rows with fewer than four words are skipped.

    Args:
        folder: model folder.
        data: rows in any form accepted by ``Predictor``.
        methods: names in ``METHODS``.
        rows: maximum number of explained predictions, from the first row.
        text_column, second_column: columns of the rows; by default as in training.
        device: auto, cpu or cuda.
        network: use only the network of a ``fit`` folder; methods are always compared on networks.
        say: called with a note if the folder predicts with other models.

    Raises:
        InputError: no row can be explained, or a method is unknown.

    Source: DeYoung et al. 2020 (ERASER), section 4.2: area over the perturbation curve.
    """
    columns = ColumnNames(text_column, second_column)
    explainer = Explainer(folder, columns=columns, device=device, network=network)
    if isinstance(explainer.blend, LinearShares):
        raise InputError(
            "{folder} predicts with linear models, whose explanations are exact: there are no "
            "methods to compare",
            folder,
        )
    if explainer.blend is not None:
        explainer = explainer.of_network
    if explainer.note is not None and not network:
        say_each((Message("note: {line!t}", explainer.note),), say)
    named = {name: method_named(name) for name in methods}
    named[RANDOM] = random_order
    results: dict[str, list[tuple[np.ndarray, np.ndarray, float]]] = {name: [] for name in named}
    found = (
        of_models[0]
        for encoded in explainer.encoded(data)
        if len(encoded.words) >= _FEWEST_WORDS
        for _, of_models in explainer.explained_targets(encoded)
    )
    for explained in islice(found, rows):
        left_out = leave_one_out(explained).values
        for name, attribute in named.items():
            values = left_out if name == "leave_one_out" else attribute(explained).values
            results[name].append((*_measure(explained, values), _spearman(values, left_out)))
    if not results[RANDOM]:
        raise InputError(
            "no row has {fewest_words} words whose removal could be measured", _FEWEST_WORDS
        )
    return {
        name: Faithfulness(*map(np.asarray, zip(*each, strict=True)))
        for name, each in results.items()
    }


def best_method(results: Mapping[str, Faithfulness]) -> str | None:
    """The method with the largest comprehensiveness minus sufficiency; None if no method is better
    than the random order."""

    def score(name: str) -> float:
        return float(results[name].comprehensiveness.mean() - results[name].sufficiency.mean())

    best = max(results, key=score)
    return None if best == RANDOM else best


def _measure(explained: ExplainedTarget, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Comprehensiveness and sufficiency (shares) of the order of ``values`` (U)."""
    signed = explained.target.probability is not None
    order = np.argsort(-values if signed else -np.abs(values), kind="stable")
    counts = [max(1, round(share * len(order))) for share in SHARES]
    inputs = [explained.read.token_ids]
    inputs += [explained.without(order[:count].tolist()) for count in counts]
    inputs += [explained.without(order[count:].tolist()) for count in counts]
    outputs = explained.values(inputs, probability=True)
    drops = outputs[0] - outputs[1:]
    drops = drops if signed else np.abs(drops)
    return drops[: len(counts)], drops[len(counts) :]


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The rank correlation; NaN if all values are equal."""
    from scipy.stats import rankdata

    x, y = (rankdata(v) - (len(v) + 1) / 2 for v in (a, b))
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / size) if size else math.nan


def faithfulness_table(results: Mapping[str, Faithfulness]) -> list[str]:
    """A table with one line per method: means and standard errors."""
    names = ("comprehensiveness", "sufficiency", "correlation")
    width = max(cell_len(translated(name)) for name in results)
    headings = [translated(name) for name in names]
    lines = [" " * width + "".join(" " * (19 - cell_len(one)) + one for one in headings)]
    for name, each in results.items():
        row = each.row()
        cells = (f"{row[n]:+.3f} ± {row[f'{n}_error']:.3f}" for n in names)
        lines.append(
            set_cell_size(translated(name), width) + "".join(f"  {cell:>17}" for cell in cells)
        )
    return lines


def draw_curves(curves: Mapping[str, Faithfulness], path: Path) -> None:
    """Plot the drop of the prediction by the share of masked and of kept words."""
    with plotted(path, 10, 4, len(_TITLES), sharey=True) as axes:
        for axis, (attribute, title) in zip(axes, _TITLES.items(), strict=True):
            for name, each in curves.items():
                style = {"color": "0.5", "linestyle": "--"} if name == RANDOM else {}
                means = getattr(each, attribute).mean(0)
                axis.plot([100 * share for share in SHARES], means, marker="o", label=name, **style)
            axis.set(title=title, xlabel="words, %")
        axes[0].set_ylabel("drop in probability")
        axes[1].legend(fontsize=8, frameon=False)
