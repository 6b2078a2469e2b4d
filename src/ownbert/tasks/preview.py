"""What a fine-tuning run would do, without doing it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.tasks.finetune import Finetuning
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.train.settings import dump, resolve

_SHOWN = 3


def preview_finetuning(
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """The resolved recipe, counts, shares of the labels, lengths, and examples decoded."""
    options["model.folder"] = options.pop("model", None)
    options = {k: str(v) if isinstance(v, Path) else v for k, v in options.items()}
    run = Finetuning(resolve(FinetuneRecipe, config=config, overrides=overrides, options=options))
    data = run.train_data
    lengths = np.asarray([len(ids) for ids in data.ids])
    counts = np.bincount(data.labels, minlength=len(run.labels))
    shares = (f"{n} {c / len(data):.1%}" for n, c in zip(run.labels, counts, strict=True))
    lines = [
        dump(run.recipe),
        *run.summary(),
        f"labels: {', '.join(shares)}",
        f"tokens a document: median {np.median(lengths):.0f}, longest {lengths.max()}",
    ]
    for ids, label in list(zip(data.ids, data.labels, strict=True))[:_SHOWN]:
        lines.append(f"{run.labels[label]}: {' '.join(run.tokenizer.tokens(ids.tolist()))}")
    return "\n".join(lines)
