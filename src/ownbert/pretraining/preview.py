"""What a pretraining run would do, without doing it."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.data.loader import Loader, Position
from ownbert.pretraining.recipe import PretrainRecipe
from ownbert.pretraining.run import Pretraining
from ownbert.settings import dump, resolve

_SHOWN = 3


def preview_pretraining(
    tokens: str | Path | None = None,
    *,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    **options: Any,
) -> str:
    """The resolved recipe, the counts, and the first sequences of the first batch, decoded."""
    options["data.tokens"] = None if tokens is None else str(tokens)
    run = Pretraining(resolve(PretrainRecipe, config=config, overrides=overrides, options=options))
    first = run.phase_data[0]
    loader = Loader(first.examples, run.recipe.seed, batch_tokens=first.settings.batch_tokens)
    with contextlib.closing(loader.batches(Position())) as batches:
        batch, _ = next(batches)
    ids, targets = batch.token_ids.numpy(), {}
    if batch.masked_positions is not None and batch.masked_ids is not None:
        targets = dict(zip(batch.masked_positions.tolist(), batch.masked_ids.tolist(), strict=True))
    lines = [
        dump(run.recipe),
        *run.summary(),
        f"first batch: {batch.sequences} sequences, {batch.tokens:,} tokens, "
        f"{len(targets):,} to predict, shown as seen->target",
    ]
    start = 0
    for number, length in enumerate(batch.layout.lengths[:_SHOWN]):
        words = [
            _word(run, int(ids[row]), targets.get(row)) for row in np.arange(start, start + length)
        ]
        pair = ""
        if batch.next_sentence is not None:
            follows = int(batch.next_sentence[number]) == 0
            names = ("in order", "exchanged") if first.task.pairs == "sop" else ("next", "not next")
            pair = f"  ({names[not follows]})"
        lines.append(f"{number + 1}{pair}  {' '.join(words)}")
        start += length
    return "\n".join(lines)


def _word(run: Pretraining, seen: int, target: int | None) -> str:
    token = run.tokenizer.tokens([seen])[0]
    return token if target is None else f"{token}->{run.tokenizer.tokens([target])[0]}"
