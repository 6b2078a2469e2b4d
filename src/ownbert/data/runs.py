"""Sequences of equal length that lie side by side. T tokens."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Runs:
    """Neighbours of equal length: (first row, sequences, length) each.

    order (T): the rows sorted by the length of their sequence, and places (T): the way back; None
    where the batch is sorted already.
    """

    spans: tuple[tuple[int, int, int], ...]
    order: Tensor | None
    places: Tensor | None


def find_runs(lengths: Sequence[int], device: torch.device) -> Runs:
    """The fewest that sequences of these lengths make when they are sorted."""
    lens = np.asarray(lengths, dtype=np.int64)
    change = np.flatnonzero(np.diff(lens))
    order = places = None
    if len(np.unique(lens)) <= len(change):  # a length comes again after another one
        sorting = np.argsort(lens, kind="stable")
        parts = np.split(np.arange(lens.sum()), np.cumsum(lens)[:-1])
        rows = torch.from_numpy(np.concatenate([parts[b] for b in sorting]))
        order = rows.to(device)
        places = rows.argsort().to(device)
        lens = lens[sorting]
        change = np.flatnonzero(np.diff(lens))
    edges = [0, *(change + 1).tolist(), len(lens)]
    starts = np.concatenate([[0], np.cumsum(lens)])
    spans = ((int(starts[a]), b - a, int(lens[a])) for a, b in itertools.pairwise(edges))
    return Runs(tuple(spans), order, places)
