"""The model card of a fine-tuned folder: the model, its data, settings, metrics and use.

It may contain label names, but never texts of the training data.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from ownbert.checkpoint import describe
from ownbert.figures import CJK_FONTS, PLAIN_FONT, fitting_fonts, installed_figure, save_figure
from ownbert.finetuning.row_checks import LabelledSplit, label_counts
from ownbert.hub import PREFIX
from ownbert.language import translated
from ownbert.language.messages import Message, names_of
from ownbert.run.file_names import CONFUSION as CONFUSION
from ownbert.run.model_card import (
    MAX_ROWS,
    changed_settings,
    in_words,
    pictures,
    save_card,
    sha256,
    table,
)
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.kinds import KINDS
from ownbert.tasks.metrics import LabelScore, Scores
from ownbert.tasks.rows import shortened
from ownbert.tasks.task import Task, task_class
from ownbert.train.log import CURVES
from ownbert.train.metric_names import decimals, shown_label_metric

_PICTURES = {
    CURVES: "Loss and metrics during training",
    CONFUSION: "Confusion matrix of the dev rows",
}


def write_card(
    folder: str | Path,
    recipe: FinetuneRecipe,
    parts: Sequence[LabelledSplit],
    *,
    metrics: Mapping[str, Sequence[float]],
    labels: Sequence[LabelScore] = (),
    several: str = "",
    model: str | Path | None = None,
    precision: str = "",
    baseline: str = "",
    name: str | None = None,
) -> str | None:
    """Write README.md into a model folder, unless the user has written one; return a warning or
    None.

    Args:
        folder: folder of the model or ensemble.
        metrics: by name, one value, or the values of several models, whose mean and standard
            deviation are shown.
        several: description of several models ("3 seeds").
        model: folder of one of them, if ``folder`` is an ensemble.
        precision: result of the bfloat16 check.
        baseline: score of the linear baseline.
        name: final name of the folder, if the card is written before it is moved.
    """
    description, task = describe(model or folder, with_decoder=True), task_class(recipe.task.name)
    name = name or Path(folder).resolve().name
    own_head = description.has_own_heads
    suffix = re.search(r"For(?!Pre)\w+$", description.architecture)
    values = {
        "recipe": recipe,
        "task": task,
        "base_name": base_name,
        "config": description.config,
        "family": description.family.model_type,
        "model_type": description.values.get("model_type"),
        "labels": description.labels,
        "heading": Message(
            task.label_heading, *(len(description.labels) for _ in names_of(task.label_heading))
        ),
        "data": _data(parts, description.labels),
        "settings": table(("setting", "value"), in_words(_settings(recipe))),
        "metrics": _metrics(metrics, labels) if metrics else "",
        "several": several,
        "baseline": baseline,
        "precision": precision,
        "pictures": pictures(folder, _PICTURES),
        "pairs": _pairs(task, parts),
        "one": name if model is None else f"{name}/{Path(model).resolve().name}",
        "own_head": own_head,
        "auto_class": "AutoModel" + (suffix.group() if suffix and not own_head else ""),
    }
    front = {"library_name": task.library, "pipeline_tag": KINDS[task.name].pipeline}
    base = None if recipe.model.new else recipe.model.folder
    return save_card(folder, front, __file__, values, name=name, base=base)


def base_name(folder: str) -> str:
    """The name of a model without the path; a name on the hub is kept."""
    path, folder = Path(folder), folder.removeprefix(PREFIX)
    return path.resolve().name if path.exists() or path.is_absolute() else folder


def _data(parts: Sequence[LabelledSplit], labels: Sequence[str]) -> str:
    """The files with their label counts."""
    sums = {split.source: _sha256(split) for split in parts}
    rows = []
    for split in parts:
        digest = sums[split.source]
        name = Path(split.source).name if digest else translated("rows given in Python")
        count = translated(f"{len(split.rows):,} {split.unit}")
        rows.append((translated(split.name), name, count, digest))
    tables = [table(("", "file", "rows", "sha256"), rows)]
    counts = [label_counts(split.rows, labels) for split in parts]
    if any(any(count.values()) for count in counts):
        shown = sorted(labels, key=lambda label: -counts[0][label])
        names = ("label", *(split.name for split in parts))
        counted = [(label, *(f"{count[label]:,}" for count in counts)) for label in shown]
        tables.append(table(names, counted, most=MAX_ROWS))
    return "\n\n".join(tables)


def _settings(recipe: FinetuneRecipe) -> Iterator[tuple[str, str]]:
    """The most important settings, then all others with non-default values."""
    yield "learning rate", f"{recipe.optim.learning_rate:g}"
    yield "epochs", Message("{epochs} at most", recipe.run.epochs)
    if recipe.run.max_steps is not None:
        yield "steps", Message("{max_steps:,} at most", recipe.run.max_steps)
    yield "batch size", str(recipe.data.batch_size)
    if recipe.data.max_length is not None:
        yield "longest input", Message("{max_length} tokens", recipe.data.max_length)
    yield "seed", str(recipe.seed)
    yield "computed on", f"{recipe.run.device}, {recipe.run.precision}"
    if recipe.data.labels_per_class is not None:
        yield "data.labels_per_class", str(recipe.data.labels_per_class)
    yield from changed_settings(recipe, FinetuneRecipe(), ("task", "model", "optim", "run"))


def _metrics(metrics: Mapping[str, Sequence[float]], labels: Sequence[LabelScore]) -> str:
    """The metrics, and those of each label."""
    named = in_words((_named(name), _spread(values)) for name, values in metrics.items())
    blocks, shown = [table(("metric", "value"), named)], labels
    if len(labels) > MAX_ROWS:
        shown = sorted(labels, key=lambda score: score.f1)
        blocks.append(Message("By label, the {max_rows} with the lowest F1:", MAX_ROWS))
    rows = [
        (
            s.label,
            *(shown_label_metric(x, s.support) for x in (s.precision, s.recall, s.f1)),
            f"{s.support:,}",
        )
        for s in shown
    ]
    if rows:
        names = ("label", "precision", "recall", "F1", "support")
        blocks.append(table(names, rows, most=MAX_ROWS))
    return "\n\n".join(blocks)


def _named(metric: str) -> str:
    return metric.replace("_", " ").replace("f1", "F1").replace("mcc", "MCC")


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return decimals(values[0], 4)
    return f"{decimals(mean(values), 4)} ± {stdev(values):.4f}"


def _pairs(task: type[Task], parts: Sequence[LabelledSplit]) -> bool:
    """Whether the rows of the task are pairs of texts."""
    return task.head == "classification" and any(
        len(row.texts) == 2 for split in parts for row in split.rows[:1]
    )


def _sha256(split: LabelledSplit) -> str:
    """The SHA-256 of a file, or of the digests of a folder's images."""
    if split.source and Path(split.source).is_dir():
        digests = (text for row in split.rows for text in row.texts)
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return sha256(split.source)


# Maximum number of labels for showing counts in cells, and for naming all labels.
_NUMBERS, _NAMES = 15, 40
# Maximum number of named labels if not all are named.
_NAMED = 24
_CONFUSED = 3  # confusions in words
_LONGEST = 28  # maximum characters of a name
_DPI = 120


def most_confused(scores: Scores) -> list[str]:
    """The most frequent confusions in words ("film taken for album: 12"), one line each; empty
    without a confusion matrix."""
    labels, pairs = [score.label for score in scores.labels], scores.confusions(_CONFUSED)
    return [
        Message("{labels} predicted as {labels2}: {rows:,}", labels[i], labels[j], rows)
        for i, j, rows in pairs
    ]


def draw_confusion(path: Path, scores: Scores, *, fonts: Sequence[str] = CJK_FONTS) -> str | None:
    """Plot the confusion matrix as a PNG file; colours are shares of the rows (true labels), cells
    show counts. With many labels only the most confused ones are named. An earlier plot is removed,
    even if ``scores`` has no confusion matrix.

    Without matplotlib nothing is drawn; if none of ``fonts`` has the characters of the labels,
    their indices (id2label in config.json) are shown. Returns a warning or None.
    """
    if (confusion := scores.confusion) is None:
        path.unlink(missing_ok=True)
        return None
    if (figure_class := installed_figure()) is None:
        path.unlink(missing_ok=True)
        return "no plot of the confusion matrix; it needs: pip install 'ownbert[plot]'"
    labels, warning = [score.label for score in scores.labels], None
    family = fitting_fonts(map(_short_label, labels), fonts)
    if family is None:
        family, labels = [PLAIN_FONT], [str(i) for i in range(len(labels))]
        warning = Message(
            "{file}: no installed font has the labels' characters; it shows their numbers "
            "(id2label in config.json)",
            path.name,
        )
    count = len(labels)
    side = min(11.0, max(2.2, count * (0.55 if count <= _NUMBERS else 0.27)))
    font = min(9.0, max(5.0, 0.85 * 72 * side / count))
    named = list(range(count))
    if count > _NAMES:
        # The most confused labels, far enough apart that their names do not overlap.
        named, distance = [], font / 72 * count / side
        wrong = confusion.sum(0) + confusion.sum(1) - 2 * np.diag(confusion)
        for label in np.argsort(-wrong, kind="stable").tolist():
            if len(named) < _NAMED and all(abs(label - other) >= distance for other in named):
                named.append(label)
        named.sort()
    # The matrix fills the figure; names and colour bar are outside, and the saved box includes
    # them.
    figure = figure_class(figsize=(side, side), dpi=_DPI)
    axis = figure.add_axes((0, 0, 1, 1))
    image = _cells(axis, confusion)
    _names(axis, named, labels, font, family)
    _bar(figure, image, figure.add_axes((1 + 0.15 / side, 0, 0.13 / side, 1)))
    if len(named) < count:
        words = Message("the {count} most confused of {count2} labels are shown", len(named), count)
        axis.set_title(words, fontsize=9, loc="left")
    # Same as bbox_inches="tight", without drawing everything twice.
    box = figure.get_tightbbox().padded(0.1)
    save_figure(figure, path, _DPI, bbox_inches=box)
    return warning


def _cells(axis: Any, confusion: np.ndarray) -> Any:
    from matplotlib.colors import PowerNorm

    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    # The square root makes rare confusions visible.
    image = axis.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    if len(confusion) <= _NUMBERS:
        for (i, j), count in np.ndenumerate(confusion):
            color = "white" if shares[i, j] > 0.35 else "0.15"
            if count:
                text = f"{count}" if count < 100_000 else f"{count / 1000:.0f}k"
                axis.text(j, i, text, ha="center", va="center", color=color, fontsize=8)
    return image


def _names(
    axis: Any, named: Sequence[int], labels: Sequence[str], font: float, family: list[str]
) -> None:
    names = [_short_label(labels[i]) for i in named]
    # Dollar signs in names do not start math mode.
    style = {"fontsize": font, "fontfamily": family, "parse_math": False}
    axis.set_xticks(named, names, rotation=90, **style)
    axis.set_yticks(named, names, **style)
    axis.tick_params(length=2)
    axis.set_xlabel("predicted", fontsize=9)
    axis.set_ylabel("true", fontsize=9)


def _bar(figure: Any, image: Any, axis: Any) -> None:
    bar = figure.colorbar(image, cax=axis, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1])
    bar.ax.set_yticklabels(["0", "1%", "5%", "20%", "50%", "100%"], fontsize=8)
    bar.outline.set_visible(False)


def _short_label(label: str) -> str:
    return shortened(" ".join(label.split()), _LONGEST)
