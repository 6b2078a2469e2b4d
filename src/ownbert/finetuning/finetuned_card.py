"""The model card of a fine-tuned folder: the model, its data, settings, metrics and use.

It may contain label names, but never texts of the training data.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from ownbert.checkpoint import describe
from ownbert.finetuning.confusion import CONFUSION
from ownbert.finetuning.row_checks import LabelledSplit, label_counts
from ownbert.hub import PREFIX
from ownbert.language import translated
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
from ownbert.tasks.metrics import LabelScore
from ownbert.tasks.task import Task, task_class
from ownbert.train.watch.log import CURVES
from ownbert.train.watch.metric_names import decimals, shown_label_metric

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
    """Write README.md into a model folder, unless the user has written one.

    Args:
        folder: folder of the model or ensemble.
        recipe: completed recipe.
        parts: training and dev rows.
        metrics: by name, one value, or the values of several models, whose mean and standard
            deviation are shown.
        labels: metrics of each label.
        several: description of several models ("3 seeds").
        model: folder of one of them, if ``folder`` is an ensemble.
        precision: result of the bfloat16 check.
        baseline: score of the linear baseline.
        name: final name of the folder, if the card is written before it is moved.

    Returns:
        A warning or None.
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
        known = sums[split.source]
        name = Path(split.source).name if known else translated("rows given in Python")
        count = translated(f"{len(split.rows):,} {split.unit}")
        rows.append((translated(split.name), name, count, known))
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
    yield "epochs", f"{recipe.run.epochs} at most"
    if recipe.run.max_steps is not None:
        yield "steps", f"{recipe.run.max_steps:,} at most"
    yield "batch size", str(recipe.data.batch_size)
    if recipe.data.max_length is not None:
        yield "longest input", f"{recipe.data.max_length} tokens"
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
        blocks.append(f"By label, the {MAX_ROWS} with the lowest F1:")
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
