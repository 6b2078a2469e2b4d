"""The model card of a fine-tuned folder: what it is, learnt from what, how good, how to use it.

Names of labels stand in it, texts never.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from ownbert.checkpoint import Description, describe
from ownbert.finetuning.checks import LabelledSplit, label_counts
from ownbert.run.model_card import MAX_ROWS, cell, changed_settings, code, save_card, sha256, table
from ownbert.tasks.metrics import LabelScore
from ownbert.tasks.recipe import FinetuneRecipe

# pipeline_tag of the hub, and what the model does, by task.
_ABOUT = {
    "classify": ("text-classification", "gives each text one of its labels"),
    "multilabel": ("text-classification", "gives each text any number of its labels"),
    "regress": ("text-classification", "gives each text a number"),
    "tag": ("token-classification", "gives each word of a text a tag"),
    "answer": ("question-answering", "finds the answer to a question in a text"),
    "choose": ("multiple-choice", "chooses one of several texts that fits another"),
    "embed": (
        "sentence-similarity",
        "turns texts into vectors that are near where texts are alike",
    ),
    "image": ("image-classification", "gives each picture one of its labels"),
}


def write_card(
    folder: str | Path,
    recipe: FinetuneRecipe,
    parts: Sequence[LabelledSplit],
    *,
    measures: Mapping[str, Sequence[float]],
    labels: Sequence[LabelScore] = (),
    several: str = "",
    model: str | Path | None = None,
    name: str | None = None,
) -> str | None:
    """Write README.md into a model folder, unless somebody has written one there himself.

    recipe: a completed one. parts: the rows that were learnt and measured. measures: by name, one
    value or that of each of several models, of which mean and standard deviation are shown;
    several: what these are ("3 seeds"). labels: how well each is found. model: the folder of one of
    them, where ``folder`` is no model itself. name: where the folder will be, if elsewhere. Returns
    what to tell people, if anything.
    """
    said = describe(model or folder)
    name = name or Path(folder).resolve().name
    one = name if model is None else f"{name}/{Path(model).resolve().name}"
    blocks = [
        *_about(recipe, said),
        "## Data",
        *_data(parts, said.labels),
        "## Settings",
        table(("setting", "value"), _settings(recipe)),
        "## Measures",
        *_measures(measures, labels, several),
        "## Use",
        *_use(recipe.task.name, name),
        *_transformers(recipe, said, one),
    ]
    return save_card(folder, _front(recipe), blocks, name=name)


def _front(recipe: FinetuneRecipe) -> dict[str, str]:
    """What the hub reads."""
    embeds = recipe.task.name == "embed"
    values = {
        "library_name": "sentence-transformers" if embeds else "transformers",
        "pipeline_tag": _ABOUT[recipe.task.name][0],
    }
    if not recipe.model.new:
        values["base_model"] = base_name(recipe.model.folder)
    return values


def base_name(folder: str) -> str:
    """The name of a model without the path to it; a name of the hub stays whole."""
    path = Path(folder)
    return path.resolve().name if path.exists() or path.is_absolute() else folder


def _about(recipe: FinetuneRecipe, said: Description) -> Iterator[str]:
    base = base_name(recipe.model.folder)
    start = f"starts from {base}"
    if not recipe.model.folder:
        start = "starts from new weights"
    elif recipe.model.from_scratch:
        start = f"starts from new weights, in the size and with the vocabulary of {base}"
    config = said.config
    yield (
        f"A model of the family {said.family.model_type} ({config.num_hidden_layers} layers, "
        f"hidden size {config.hidden_size}) that {_ABOUT[recipe.task.name][1]} "
        f"(`ownbert finetune {recipe.task.name}`). It {start}."
    )
    if (image := config.image) is not None:
        pixels, patch = (f"{down} x {across}" for down, across in (image.size, image.patch))
        colours = "grey" if image.channels == 1 else "colour"
        yield f"It reads {pixels} pixels in {colours}, in patches of {patch}."
    labelled = ("classify", "multilabel", "tag", "regress", "image")
    if recipe.task.name in labelled and said.labels:
        more = ", ..." if len(said.labels) > MAX_ROWS else ""
        what = "Numbers" if recipe.task.name == "regress" else f"{len(said.labels)} labels"
        yield f"{what}: {', '.join(map(cell, said.labels[:MAX_ROWS]))}{more}."


def _data(parts: Sequence[LabelledSplit], labels: Sequence[str]) -> Iterator[str]:
    sums = {split.source: _sha256(split) for split in parts}
    rows = []
    for split in parts:
        known = sums[split.source]
        name = Path(split.source).name if known else "rows given in Python"
        rows.append((split.name, name, f"{len(split.rows):,} {split.unit}", known))
    yield table(("", "file", "rows", "sha256"), rows)
    counts = [label_counts(split.rows, labels) for split in parts]
    if any(any(count.values()) for count in counts):
        shown = sorted(labels, key=lambda label: -counts[0][label])
        yield table(
            ("label", *(split.name for split in parts)),
            [(label, *(f"{count[label]:,}" for count in counts)) for label in shown],
        )


def _settings(recipe: FinetuneRecipe) -> Iterator[tuple[str, str]]:
    """Those that are always asked for, then all that are not the default."""
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


def _measures(
    measures: Mapping[str, Sequence[float]], labels: Sequence[LabelScore], several: str
) -> Iterator[str]:
    if not measures:
        yield "None: there were no dev rows."
        return
    spread = f"On held-out rows: mean ± standard deviation of {several}."
    yield spread if several else "On the dev rows."
    values = [(_named(name), _spread(found)) for name, found in measures.items()]
    yield table(("measure", "value"), values)
    if labels:
        rows = [
            (s.label, *(f"{x:.3f}" for x in (s.precision, s.recall, s.f1)), f"{s.support:,}")
            for s in labels
        ]
        yield table(("label", "precision", "recall", "F1", "support"), rows)


def _named(measure: str) -> str:
    return measure.replace("_", " ").replace("f1", "F1").replace("mcc", "MCC")


def _spread(values: Sequence[float]) -> str:
    if len(values) < 2:
        return f"{values[0]:.4f}"
    return f"{mean(values):.4f} ± {stdev(values):.4f}"


def _use(task: str, name: str) -> Iterator[str]:
    quoted = f'"{name}"'
    if task == "embed":
        yield code("bash", f"ownbert embed {name} texts.txt -o vectors.npy")
        yield code(
            "python",
            f"import ownbert\n\nvectors = ownbert.Embedder({quoted}).encode(['a text', 'another'])",
        )
        return
    new, test = ("pictures", "test-pictures") if task == "image" else ("new.csv", "test.csv")
    predicted = f"ownbert predict {name} --input {new} -o predictions.jsonl"
    yield code("bash", f"{predicted}\nownbert evaluate {name} --data {test}")
    yield code(
        "python", f'import ownbert\n\nownbert.predict({quoted}, "{new}", "predictions.jsonl")'
    )


def _transformers(recipe: FinetuneRecipe, said: Description, name: str) -> Iterator[str]:
    if recipe.task.name == "embed":
        yield "In sentence-transformers:"
        yield code(
            "python",
            "from sentence_transformers import SentenceTransformer\n\n"
            f'model = SentenceTransformer("{name}")',
        )
        return
    ours = "ownbert_heads" in said.values
    found = re.search(r"For(?!Pre)\w+$", said.architecture)
    kind = "AutoModel" + (found.group() if found and not ours else "")
    reader = ("processor", "AutoImageProcessor")
    if said.config.image is None:
        reader = ("tokenizer", "AutoTokenizer")
    yield "In Transformers:"
    yield code(
        "python",
        f"from transformers import {reader[1]}, {kind}\n\n"
        f'{reader[0]} = {reader[1]}.from_pretrained("{name}")\n'
        f'model = {kind}.from_pretrained("{name}")',
    )
    if ours:
        yield (
            "Transformers reads the encoder alone: it has no head such as this one, which is kept "
            "in the same files under names of ownbert (`ownbert_heads` in config.json)."
        )
    if recipe.task.long != "cut":
        yield (
            f"Longer texts than {recipe.data.max_length} tokens are read in pieces by ownbert "
            f"(task.long {recipe.task.long}); Transformers does not do this by itself."
        )


def _sha256(split: LabelledSplit) -> str:
    """That of a file, or of the digests of the pictures in a folder."""
    if split.source and Path(split.source).is_dir():
        digests = (text for row in split.rows for text in row.texts)
        return hashlib.sha256("\n".join(digests).encode()).hexdigest()
    return sha256(split.source)
