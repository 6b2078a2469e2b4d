"""What a fine-tuning run would do, without doing it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.tasks.finetune import Finetuning, given
from ownbert.tasks.recipe import FinetuneRecipe
from ownbert.train.settings import dump, resolve

_SHOWN = 5


def preview_finetuning(
    task: str | None = None,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """The resolved recipe, counts, shares of the labels, lengths, and examples decoded."""
    asked = given(task, options)
    run = Finetuning(resolve(FinetuneRecipe, config=config, overrides=overrides, options=asked))
    data, sizes = run.train_data, run.train_data.sizes
    lines = [dump(run.recipe), *run.summary()]
    if shares := run.task.shares(run.train_rows):
        lines.append(f"labels: {shares}")
    lines.append(f"tokens an example: median {np.median(sizes):.0f}, longest {sizes.max()}")
    for row, example in list(zip(run.train_rows, data.examples, strict=False))[:_SHOWN]:
        tokens = run.tokenizer.tokens(example.token_ids.tolist())
        lines.append(f"{run.task.preview(row)}: {' '.join(tokens)}")
    return "\n".join(lines)
