"""The model card of a translation model: its data, settings and metrics, and how to use it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ownbert.language import translated
from ownbert.run.model_card import (
    changed_settings,
    code,
    in_words,
    pictures,
    save_card,
    sha256,
    table,
)
from ownbert.train.watch.log import CURVES
from ownbert.translate.translation_recipe import PairFiles, TranslateRecipe

_ACCURACY = "translation_accuracy"
_SECTIONS = ("vocabulary", "model", "task", "optim", "run")


def write_card(
    folder: Path,
    recipe: TranslateRecipe,
    *,
    pairs: Mapping[str, int],
    parameters: int,
    shared: bool,
    metrics: Mapping[str, float],
) -> str | None:
    """Write README.md into a model folder; see ``ownbert.run.model_card.save_card``.

    Args:
        recipe: a completed one.
        pairs: how many there are in "training" and "dev".
        shared: whether both sides have one vocabulary.
        metrics: on the dev pairs.

    Returns:
        A warning, if any.
    """
    name, net = folder.resolve().name, recipe.model
    ours = net.norm_first or not shared
    vocabularies = "one vocabulary" if shared else "a vocabulary each"
    blocks = [
        f"An encoder-decoder Transformer ({net.N} + {net.N} layers, hidden size {net.d_model}, "
        f"{parameters:,} parameters) that turns one sequence into another (`ownbert translate "
        f"train`). It was trained from scratch; source and target have {vocabularies} of "
        f"{recipe.vocabulary.kind} tokens.",
        "## Data",
        table(("", "file", "pairs", "sha256"), _files(recipe.data, pairs)),
        "## Settings",
        table(("setting", "value"), in_words(_settings(recipe))),
        "## Metrics",
        "On the dev pairs: cross entropy per token without label smoothing, and the share of "
        "tokens predicted correctly from the reference tokens before them.",
        table(
            ("metric", "value"),
            in_words(
                (n, f"{metrics[k]:.4f}") for n, k in (("loss", "loss"), ("accuracy", _ACCURACY))
            ),
        ),
        *pictures(folder, {CURVES: "Loss and accuracy during training"}),
        "## Use",
        code(
            "bash",
            f"ownbert translate {name} new.txt -o translated.txt\n"
            f"ownbert translate score {name} --source test.source --target test.target",
        ),
        code(
            "python",
            "from ownbert.translate.decode import Translator\n\n"
            f'for text in Translator("{name}")(["a text", "another"]):\n    print(text)',
        ),
        *_transformers(name, ours),
    ]
    front = {"pipeline_tag": "translation"}
    return save_card(folder, front if ours else {"library_name": "transformers"} | front, blocks)


def _files(data: PairFiles, pairs: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    for part, prefix in (("training", ""), ("dev", "dev_")):
        found = [getattr(data, prefix + side) for side in ("pairs", "source", "target")]
        for path in filter(None, found):
            yield translated(part), Path(path).name, f"{pairs[part]:,}", sha256(path)
        if not any(found):
            yield (
                translated(part),
                translated("held out of the training pairs"),
                f"{pairs[part]:,}",
                "",
            )


def _settings(recipe: TranslateRecipe) -> Iterator[tuple[str, str]]:
    """The settings that readers always want to know, then all others that are not the default."""
    yield "peak learning rate", f"{recipe.optim.learning_rate:.3g}"
    yield "steps", f"{recipe.run.max_steps:,} at most" if recipe.run.max_steps else "by time"
    yield "batch", f"{recipe.data.batch_tokens:,} tokens of both sides"
    yield "seed", str(recipe.seed)
    yield "computed on", f"{recipe.run.device}, {recipe.run.precision}"
    yield from changed_settings(recipe, TranslateRecipe(), _SECTIONS)


def _transformers(name: str, ours: bool) -> Iterator[str]:
    if ours:
        yield (
            "Only ownbert can load the folder: Transformers has no pre-norm Marian, and loads one "
            "tokenizer per folder."
        )
        return
    yield "In Transformers:"
    yield code(
        "python",
        "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n"
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")\n'
        f'model = AutoModelForSeq2SeqLM.from_pretrained("{name}")\n'
        'ids = model.generate(**tokenizer("a text", return_tensors="pt"), max_new_tokens=60)\n'
        "print(tokenizer.decode(ids[0], skip_special_tokens=True))",
    )
