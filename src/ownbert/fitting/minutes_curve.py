"""The benefit of more pretraining: linear probes of the network at several checkpoints."""

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.files.writing import make_folder
from ownbert.fitting.comparison import ComparedModel, Comparison
from ownbert.fitting.linear_candidates import probe_scores
from ownbert.fitting.networks import copy_network
from ownbert.fitting.rows.labelled_rows import LabelledRows
from ownbert.time_limit import OutOfTime, check_time, time_limit

# Number of checkpoints, and the first one as a share of the run: an earlier network knows little
# more than word frequencies. Pretraining for fewer minutes has no curve.
_MOMENTS, _FIRST, _FEWEST_MINUTES = 6, 0.25, 1.0
# Maximum characters of the probed rows, a few seconds of the run.
_MOST_CHARACTERS = 300_000
# Share of the pretraining's time for probing the checkpoints.
_SHARE = 0.06

Points = tuple[tuple[float, float], ...]


class Checkpoints:
    """Copies a network during pretraining; a callback for each time it is saved.

    Args:
        folder: folder for the copies, each in a subfolder named after its seconds.
        minutes: expected duration of the pretraining.
    """

    def __init__(self, folder: Path, minutes: float) -> None:
        self.folder, self.minutes = folder, minutes

    def __call__(self, network: Path, saved: Mapping[str, Any]) -> None:
        """Copy the network if enough time has passed since the last copy."""
        seconds, total = saved["seconds"], 60 * self.minutes
        if self.minutes < _FEWEST_MINUTES or seconds < _FIRST * total:
            return
        interval = (1 - _FIRST) * total / _MOMENTS
        if all(seconds - measured >= interval for measured in self._seconds()):
            copy_network(network, make_folder(self.folder / f"{seconds:.3f}"))

    def _seconds(self) -> list[float]:
        return [float(path.name) for path in self.folder.glob("*")]

    @property
    def taken(self) -> bool:
        """Whether there are any copies."""
        return any(self.folder.glob("*"))

    def measure(self, rows: LabelledRows, metric: str | None = None) -> Points:
        """Score a linear probe of each copy, then remove the copies.

        Returns:
            (minutes, score) of as many copies as fit in a small share of the pretraining's time.
        """
        some, points = _subset(rows), []
        limit = _SHARE * 60 * self.minutes
        with contextlib.suppress(OutOfTime), time_limit(limit):
            for seconds in sorted(self._seconds(), reverse=True):
                path = self.folder / f"{seconds:.3f}"
                scores = probe_scores(path, some, seconds=limit / _MOMENTS)
                model = ComparedModel("probe", "", "frozen", (), 0.0, scores=scores)
                value = Comparison(some, [model], metric).blended.value()
                points.append((seconds / 60, value))
                check_time()
        shutil.rmtree(self.folder, ignore_errors=True)
        return tuple(sorted(points))


def _subset(rows: LabelledRows) -> LabelledRows:
    """A subset of the rows within the maximum size, in the same folds."""
    order = np.random.default_rng(0).permutation(len(rows.rows))
    sizes = np.cumsum([sum(map(len, rows.rows[i].texts)) for i in order])
    chosen = np.sort(order[: max(2, int(np.searchsorted(sizes, _MOST_CHARACTERS)))])
    if len(chosen) == len(rows.rows):
        return rows
    place = {int(old): new for new, old in enumerate(chosen)}

    def renumbered(indices: Iterable[int]) -> np.ndarray:
        return np.asarray([place[int(i)] for i in indices if int(i) in place], dtype=np.int64)

    folds = [(renumbered(learn), renumbered(held_out)) for learn, held_out in rows.folds]
    return replace(
        rows,
        rows=[rows.rows[i] for i in chosen],
        targets=rows.targets[chosen],
        folds=[(learn, held_out) for learn, held_out in folds if len(learn) and len(held_out)],
        clusters=rows.clusters[chosen],
    )
