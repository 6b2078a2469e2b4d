"""The model card of a pretrained folder: model, corpus statistics, settings and use."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ownbert.config.encoder import EncoderConfig
from ownbert.language import translated
from ownbert.objectives import PRETRAINING, objectives_of
from ownbert.pretraining.pretrain_recipe import PretrainRecipe
from ownbert.run.model_card import changed_settings, hub_base, in_words, pictures, save_card, table
from ownbert.train.watch.log import CURVES

_SECTIONS = ("data", "model", "task", "optim", "run")
_BASELINES = {
    "unigram_loss": "loss of the unigram baseline",
    "uniform_loss": "loss of the uniform baseline",
}


def write_card(
    folder: Path,
    recipe: PretrainRecipe,
    config: EncoderConfig,
    *,
    data: Mapping[str, str],
    metrics: Mapping[str, Any],
    precision: str = "",
) -> str | None:
    """Write README.md into a model folder; see ``ownbert.run.model_card.save_card``."""
    source = recipe.model.init_from
    objectives = dict.fromkeys(o for task, _ in recipe.parts for o in task.objectives)
    # A head with word features needs more than text, and Transformers does not support it.
    classes = [one.auto_class for one in objectives_of(objectives) if one.auto_class is not None]
    fills = classes[-1:] == ["AutoModelForMaskedLM"] and "word features" not in data
    front = {"library_name": "transformers"}
    if fills:
        front["pipeline_tag"] = "fill-mask"
    tasks = ", ".join(translated(PRETRAINING[one].title) for one in objectives)
    values = {
        "config": config,
        "source": source and (hub_base(source) or Path(source).resolve().name),
        "fills": fills,
        "writes": classes[-1:] == ["AutoModelForSeq2SeqLM"],
        "tasks": tasks,
        "data": table(("", ""), in_words(data.items())),
        "settings": table(("setting", "value"), in_words(_settings(recipe))),
        "metrics": _metrics(metrics),
        "precision": precision,
        "pictures": pictures(folder, {CURVES: "Loss and accuracy during training"}),
    }
    return save_card(folder, front, __file__, values, base=source)


def _settings(recipe: PretrainRecipe) -> Iterator[tuple[str, str]]:
    """The most important settings, then all others with non-default values."""
    yield "peak learning rate", f"{recipe.optim.learning_rate:.3g}"
    if recipe.run.max_steps:
        yield "steps", f"{recipe.run.max_steps:,} at most"
    if recipe.run.max_minutes:
        yield "time", f"{recipe.run.max_minutes:g} minutes at most"
    yield "batch", f"{recipe.data.batch_tokens:,} tokens"
    yield "seed", str(recipe.seed)
    yield "computed on", f"{recipe.run.device}, {recipe.run.precision}"
    shown = {"data.tokens", "data.batch_tokens", "model.init_from", "model.init_counts"}
    shown |= {"run.max_minutes", "optim.learning_rate"}
    for name, value in changed_settings(recipe, PretrainRecipe(), _SECTIONS):
        if name not in shown:
            yield name, value


def _metrics(metrics: Mapping[str, Any]) -> str:
    """The losses and accuracies of the last evaluation with their baselines."""
    rows = [("step", f"{metrics['step']:,}")] if "step" in metrics else []
    for task, objective in PRETRAINING.items():
        words = objective.title
        loss, share = metrics.get(f"{task}_loss"), metrics.get(f"{task}_accuracy")
        if loss is not None:
            rows.append((f"{words}: loss", f"{loss:.4f}"))
            if objective.predicts:
                rows.append((f"{words}: perplexity", f"{math.exp(min(loss, 50)):,.1f}"))
        if share is not None:
            rows.append((f"{words}: accuracy", f"{share:.4f}"))
    rows += [(words, f"{metrics[key]:.4f}") for key, words in _BASELINES.items() if key in metrics]
    return table(("metric", "value"), in_words(rows)) if rows else ""
