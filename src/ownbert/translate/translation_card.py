"""The model card of a translation model: its data, settings and metrics, and how to use it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ownbert.language import translated
from ownbert.run.model_card import changed_settings, in_words, pictures, save_card, sha256, table
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
    """Write README.md into a model folder; see ``ownbert.run.model_card.save_card``."""
    ours = recipe.model.norm_first or not shared
    shown = ((n, f"{metrics[k]:.4f}") for n, k in (("loss", "loss"), ("accuracy", _ACCURACY)))
    values = {
        "net": recipe.model,
        "kind": recipe.vocabulary.kind,
        "parameters": parameters,
        "shared": shared,
        "data": table(("", "file", "pairs", "sha256"), _files(recipe.data, pairs)),
        "settings": table(("setting", "value"), in_words(_settings(recipe))),
        "metrics": table(("metric", "value"), in_words(shown)),
        "pictures": pictures(folder, {CURVES: "Loss and accuracy during training"}),
        "ours": ours,
    }
    front = {"pipeline_tag": "translation"}
    front = front if ours else {"library_name": "transformers"} | front
    return save_card(folder, front, __file__, values)


def _files(data: PairFiles, pairs: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    for part, prefix in (("training", ""), ("dev", "dev_")):
        paths = [getattr(data, prefix + side) for side in ("pairs", "source", "target")]
        for path in filter(None, paths):
            yield translated(part), Path(path).name, f"{pairs[part]:,}", sha256(path)
        if not any(paths):
            source = translated("held out of the training pairs")
            yield translated(part), source, f"{pairs[part]:,}", ""


def _settings(recipe: TranslateRecipe) -> Iterator[tuple[str, str]]:
    """The most important settings, then all others with non-default values."""
    yield "peak learning rate", f"{recipe.optim.learning_rate:.3g}"
    steps = recipe.run.max_steps
    yield "steps", f"{steps:,} at most" if steps else "limited by time"
    yield "batch", f"{recipe.data.batch_tokens:,} tokens of both sides"
    yield "seed", str(recipe.seed)
    yield "computed on", f"{recipe.run.device}, {recipe.run.precision}"
    yield from changed_settings(recipe, TranslateRecipe(), _SECTIONS)
