"""Canaries: random tokens that are planted in the training text, so that what a model remembers can
be measured (``ownbert audit``)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus.span_examples import hold_out
from ownbert.corpus.store import Store
from ownbert.errors import InputError
from ownbert.files import write_json
from ownbert.run.file_names import CANARIES

LENGTH = 6  # tokens
# How often the canaries are planted, over and over.
_REPEATS = (1, 2, 4, 8, 16)
# Documents need so many times as many tokens, so that a canary is a part of one.
_ROOM = 2


def plant(
    store: Store, ordinary: np.ndarray, count: int, *, held_out: float, seed: int
) -> tuple[Store, list[dict[str, Any]]]:
    """A store whose training text begins with a canary here and there; its files stay as they are.

    Args:
        store: of the corpus.
        ordinary: (V), true for the tokens that a canary may have.
        count: number of canaries; the first is planted once, others 2, 4, 8 and 16 times.
        held_out: the share of the documents that is held out, which get none.
        seed: of the hold-out, and of what is drawn.

    Returns:
        The store, and for each canary its ``ids`` and how often it was planted, ``times``.

    Raises:
        InputError: there are too few documents.

    Source: Carlini et al. 2019, "The Secret Sharer", section 4.
    """
    rng = np.random.default_rng((seed, 0xCA4A))
    times = [_REPEATS[i % len(_REPEATS)] for i in range(count)]
    split = hold_out(store.sentence_ends, store.document_ends, held_out, seed)
    starts = np.concatenate([[0], split.ends[:-1]])
    free = np.flatnonzero(~split.held & (split.ends - starts >= _ROOM * LENGTH))
    if len(free) < sum(times):
        raise InputError(
            f"{count} canaries are planted in {sum(times)} documents of {_ROOM * LENGTH} tokens or "
            f"more, and {store.folder} has {len(free)} to learn from; take fewer"
        )
    places = iter(starts[rng.choice(free, sum(times), replace=False)].tolist())
    # Changed in memory alone, page by page.
    path = store.folder / "tokens.bin"
    tokens = np.memmap(path, dtype=store.tokens.dtype, mode="c")
    known = np.flatnonzero(ordinary)
    found = []
    for number in times:
        ids = rng.choice(known, LENGTH)
        for _ in range(number):
            place = next(places)
            tokens[place : place + LENGTH] = ids
        found.append({"ids": ids.tolist(), "times": number})
    return replace(store, tokens=tokens), found


def write_canaries(folder: Path, canaries: list[dict[str, Any]]) -> None:
    """Write them into the folder of a model."""
    if canaries:
        write_json(folder / CANARIES, {"format": 1, "canaries": canaries})
