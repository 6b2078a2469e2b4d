"""The model card of a fine-tuned folder: the model, its data, settings, metrics and use.

It may contain names of labels, but never texts of the training data.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from ownbert.checkpoint import Description, describe
from ownbert.finetuning.confusion import CONFUSION
from ownbert.finetuning.row_checks import LabelledSplit, label_counts
from ownbert.hub import PREFIX
from ownbert.language import translated
from ownbert.run.model_card import (
    MAX_ROWS,
    changed_settings,
    code,
    hub_base,
    in_words,
    labels_in_short,
    pictures,
    save_card,
    sha256,
    table,
)
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.metrics import LabelScore
from ownbert.tasks.task import Task, task_class
from ownbert.train.watch.log import CURVES

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
    """Write README.md into a model folder, unless the user has written one there.

    Args:
        folder: of the model or ensemble.
        recipe: a completed one.
        parts: the training and dev rows.
        metrics: by name, one value, or that of each of several models, of which mean and standard
            deviation are shown.
        labels: the scores of each label.
        several: what these models are ("3 seeds").
        model: the folder of one of them, if ``folder`` is an ensemble.
        precision: what is known of bfloat16.
        baseline: how well a linear model does on the same rows.
        name: of the folder, if the card is written before it is moved.

    Returns:
        A warning, if any.
    """
    description, task = describe(model or folder, with_decoder=True), task_class(recipe.task.name)
    name = name or Path(folder).resolve().name
    one = name if model is None else f"{name}/{Path(model).resolve().name}"
    blocks = [
        *_about(recipe, task, description),
        "## Data",
        *_data(parts, description.labels),
        "## Settings",
        table(("setting", "value"), in_words(_settings(recipe))),
        "## Metrics",
        *_metrics(metrics, labels, several),
        *(line for line in (baseline, precision) if line),
        *pictures(folder, _PICTURES),
        "## Use",
        *_usage(task, name, parts),
        *_usage_elsewhere(recipe, task, description, one, parts),
    ]
    return save_card(folder, _front(recipe, task), blocks, name=name)


def _front(recipe: FinetuneRecipe, task: type[Task]) -> dict[str, str]:
    """The metadata that the hub reads."""
    values = {"library_name": task.library, "pipeline_tag": task.pipeline_tag}
    if not recipe.model.new and (base := hub_base(recipe.model.folder)):
        values["base_model"] = base
    return values


def base_name(folder: str) -> str:
    """The name of a model without the path to it; a name on the hub is kept."""
    path, folder = Path(folder), folder.removeprefix(PREFIX)
    return path.resolve().name if path.exists() or path.is_absolute() else folder


def _about(recipe: FinetuneRecipe, task: type[Task], description: Description) -> Iterator[str]:
    base = base_name(recipe.model.folder)
    start = f"starts from {base}"
    if not recipe.model.folder:
        start = "starts from new weights"
    elif recipe.model.from_scratch:
        start = f"starts from new weights, in the size and with the vocabulary of {base}"
    config, family = description.config, description.family.model_type
    yield (
        f"A model of the family {family} ({config.num_hidden_layers} layers, "
        f"hidden size {config.hidden_size}) that {task.purpose} "
        f"(`ownbert finetune {task.name}`). It {start}."
    )
    if (image := config.image) is not None:
        pixels, patch = (f"{down} x {across}" for down, across in (image.size, image.patch))
        colours = "grey" if image.channels == 1 else "colour"
        yield f"It reads {pixels} pixels in {colours}, in patches of {patch}."
    labels = description.labels
    if task.label_heading and labels:
        yield f"{task.label_heading.format(len(labels))}: {labels_in_short(labels)}."


def _data(parts: Sequence[LabelledSplit], labels: Sequence[str]) -> Iterator[str]:
    sums = {split.source: _sha256(split) for split in parts}
    rows = []
    for split in parts:
        known = sums[split.source]
        name = Path(split.source).name if known else translated("rows given in Python")
        count = translated(f"{len(split.rows):,} {split.unit}")
        rows.append((translated(split.name), name, count, known))
    yield table(("", "file", "rows", "sha256"), rows)
    counts = [label_counts(split.rows, labels) for split in parts]
    if any(any(count.values()) for count in counts):
        shown = sorted(labels, key=lambda label: -counts[0][label])
        yield table(
            ("label", *(split.name for split in parts)),
            [(label, *(f"{count[label]:,}" for count in counts)) for label in shown],
            most=MAX_ROWS,
        )


def _settings(recipe: FinetuneRecipe) -> Iterator[tuple[str, str]]:
    """The most important settings, then all others that differ from the default."""
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


def _metrics(
    metrics: Mapping[str, Sequence[float]], labels: Sequence[LabelScore], several: str
) -> Iterator[str]:
    if not metrics:
        yield "None: there were no dev rows."
        return
    spread = f"On held-out rows: mean ± standard deviation of {several}."
    yield spread if several else "On the dev rows."
    yield table(
        ("metric", "value"), in_words((_named(name), _spread(v)) for name, v in metrics.items())
    )
    if labels:
        shown = labels
        if len(labels) > MAX_ROWS:
            shown = sorted(labels, key=lambda score: score.f1)
            yield f"By label, the {MAX_ROWS} with the lowest F1:"
        rows = [
            (s.label, *(f"{x:.3f}" for x in (s.precision, s.recall, s.f1)), f"{s.support:,}")
            for s in shown
        ]
        yield table(("label", "precision", "recall", "F1", "support"), rows, most=MAX_ROWS)


def _named(metric: str) -> str:
    return metric.replace("_", " ").replace("f1", "F1").replace("mcc", "MCC")


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4f}"
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def _usage(task: type[Task], name: str, parts: Sequence[LabelledSplit]) -> Iterator[str]:
    if task.library == "sentence-transformers":
        yield code("bash", f"ownbert embed {name} texts.txt -o vectors.npy")
        yield code(
            "python",
            f'import ownbert\n\nembedder = ownbert.Embedder("{name}")\n'
            'print(embedder.encode(["a text", "another"]).shape)',
        )
        return
    new, test = task.example_inputs
    predicted = f"ownbert predict {name} {new} -o predictions.jsonl"
    yield code("bash", f"{predicted}\nownbert evaluate {name} {test}")
    example = '("a text", "another")' if _pairs(task, parts) else task.example_row
    yield code(
        "python",
        f'import ownbert\n\npredictor = ownbert.Predictor("{name}")\nprint(predictor({example}))',
    )


def _pairs(task: type[Task], parts: Sequence[LabelledSplit]) -> bool:
    """Whether a row of the task is a pair of texts, as the rows are."""
    return task.head == "classification" and any(
        len(row.texts) == 2 for split in parts for row in split.rows[:1]
    )


def _usage_elsewhere(
    recipe: FinetuneRecipe,
    task: type[Task],
    description: Description,
    name: str,
    parts: Sequence[LabelledSplit],
) -> Iterator[str]:
    """How other libraries load the folder, and predict with it."""
    if description.values.get("model_type") != description.family.model_type:
        yield (
            "Transformers and sentence-transformers cannot compute this encoder, and refuse the "
            f"folder (`model_type` is `{description.values['model_type']}` in config.json)."
        )
        return
    if task.library == "sentence-transformers":
        yield "In sentence-transformers:"
        yield code(
            "python",
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("{name}")\n'
            'print(model.encode(["a text", "another"]).shape)',
        )
        return
    own_head = "ownbert_heads" in description.values
    suffix = re.search(r"For(?!Pre)\w+$", description.architecture)
    kind = "AutoModel" + (suffix.group() if suffix and not own_head else "")
    reader = ("processor", "AutoImageProcessor")
    if description.config.image is None:
        reader = ("tokenizer", "AutoTokenizer")
    lines = [
        f"from transformers import {reader[1]}, {kind}",
        "",
        f'{reader[0]} = {reader[1]}.from_pretrained("{name}")',
        f'model = {kind}.from_pretrained("{name}")',
    ]
    if not own_head:
        texts = '"a text", "another"' if _pairs(task, parts) else '"a text"'
        lines += [line.replace("TEXTS", texts) for line in task.transformers_lines]
    yield "In Transformers:"
    yield code("python", "\n".join(lines))
    if own_head:
        yield (
            "Transformers loads only the encoder: it has no such head, which is kept in the same "
            "files under names of ownbert (`ownbert_heads` in config.json)."
        )
    if recipe.task.long in ("windows", "segments"):
        yield (
            f"ownbert splits texts of more than {recipe.data.max_length} tokens into windows "
            f"(task.long {recipe.task.long}); Transformers does not."
        )


def _sha256(split: LabelledSplit) -> str:
    """The SHA-256 of a file, or of the digests of the images in a folder."""
    if split.source and Path(split.source).is_dir():
        digests = (text for row in split.rows for text in row.texts)
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return sha256(split.source)
