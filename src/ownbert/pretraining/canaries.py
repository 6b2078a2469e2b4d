"""Canaries: random token sequences planted in the training text to measure memorisation (``ownbert
audit``)."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.corpus.pretraining_examples import hold_out
from ownbert.corpus.store import Store
from ownbert.exceptions import InputError
from ownbert.files.json_files import write_json
from ownbert.run.file_names import CANARIES

LENGTH = 6  # tokens of a canary
# How often canaries are planted, cyclically.
_REPEATS = (1, 2, 4, 8, 16)
# Documents must have this many times the length of a canary.
_ROOM = 2


def plant(
    store: Store, ordinary: np.ndarray, count: int, *, held_out: float, seed: int
) -> tuple[Store, list[dict[str, Any]]]:
    """A store whose training text contains canaries; its files are not changed.

    Args:
        ordinary: (V) true for tokens that a canary may contain.
        count: number of canaries; the first is planted once, others 2, 4, 8 and 16 times.
        held_out: share of the documents that is held out and gets no canaries.

    Returns:
        The store, and for each canary its ``ids`` and the number of ``times`` it was planted.

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
            "{count} canaries are planted in {times} documents of {room} tokens or more, but "
            "{folder} has {count2} for training; use fewer",
            count,
            sum(times),
            _ROOM * LENGTH,
            store.folder,
            len(free),
        )
    places = iter(starts[rng.choice(free, sum(times), replace=False)].tolist())
    # A private memory map: pages are changed in memory only.
    path = store.folder / "tokens.bin"
    tokens = np.memmap(path, dtype=store.tokens.dtype, mode="c")
    known = np.flatnonzero(ordinary)
    canaries = []
    for number in times:
        ids = rng.choice(known, LENGTH)
        for _ in range(number):
            place = next(places)
            tokens[place : place + LENGTH] = ids
        canaries.append({"ids": ids.tolist(), "times": number})
    return replace(store, tokens=tokens), canaries


def write_canaries(folder: Path, canaries: list[dict[str, Any]]) -> None:
    """Write the canaries into a model folder."""
    if canaries:
        write_json(folder / CANARIES, {"format": 1, "canaries": canaries})
