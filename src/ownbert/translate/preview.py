"""What training of a translation would do, without doing it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.settings import dump, resolve
from ownbert.translate.recipe import TranslateRecipe
from ownbert.translate.run import TranslationRun

_SHOWN = 3


def preview_translation(
    *, config: str | Path | None = None, overrides: Sequence[str] = (), **options: Any
) -> str:
    """What ``train_translation`` would do, without doing it: the resolved recipe, counts, lengths,
    and the first pairs as the model sees them."""
    recipe = resolve(TranslateRecipe, config=config, overrides=overrides, options=options)
    run = TranslationRun(recipe)
    lines = [dump(run.recipe), *run.summary()]
    for name, rows in (("source", run.data.sources), ("target", run.data.targets)):
        half, most = np.percentile([len(row) for row in rows], (50, 90)).round().astype(int)
        longest = max(map(len, rows))
        lines.append(f"tokens a {name}: median {half}, 90% up to {most}, longest {longest}")
    lines.append("the first pairs, as the model sees them:")
    for one, two in zip(run.data.sources[:_SHOWN], run.data.targets[:_SHOWN], strict=True):
        lines += [" ".join(run.source.tokens(one)), f"    {' '.join(run.target.tokens(two))}"]
    return "\n".join(lines)
