"""Anomaly scores of texts relative to normal texts; the profile is kept in a small file.

N texts, P parts of a score.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint.model_files import weights_checksums
from ownbert.checks import between
from ownbert.exceptions import InputError
from ownbert.files.npz_files import open_npz
from ownbert.files.writing import atomic_path
from ownbert.views.normal_counts import NormalCounts

NORMAL = "normal.npz"
# The parts of a score. Beyond the range of normal rows a part grows exponentially with the mean
# excess of their top 5% as its scale, or with this scale if larger: many normal rows have equal
# values.
PARTS = {"surprisal": 0.05, "counts": 0.01, "unseen": 1.0, "order": 0.01, "length": 0.05}
# Tolerances for these parts and for a score: values of a text differ slightly between batches.
_PART_TOLERANCE, _SCORE_TOLERANCE = 0.02, 0.01
# Maximum and minimum number of normal rows.
MOST_ROWS, _FEWEST = 20_000, 20
_FOLDS, _UPPER = 5, 0.05
_FORMAT = 1
# Tokens named in a reason.
_NAMED = 5
_FIT_AGAIN = "fit it again: ownbert score FOLDER --normal FILE"


class NormalProfile:
    """The parts of normal rows' scores, and the threshold for flagging a text.

    Args:
        counts: token statistics of normal rows.
        normal: float32 (N, P) parts of normal rows, each compared with other rows.
        false_alarms: share of normal rows that are flagged.
        passes: number of passes of the surprisal.

    Raises:
        InputError: there are too few normal rows for this share.
    """

    def __init__(
        self, counts: NormalCounts, normal: np.ndarray, false_alarms: float, passes: int | None
    ) -> None:
        between(0, 1)("false_alarms", false_alarms)
        needed = max(_FEWEST, math.ceil(1 / false_alarms - 1e-9))
        if len(normal) < needed:
            raise InputError(
                "{count:,} normal rows are too few for a false-alarm rate of {false_alarms:g}; "
                "it needs {needed:,} or more",
                len(normal),
                false_alarms,
                needed,
            )
        self.counts, self.normal, self.passes = counts, normal, passes
        self.false_alarms = false_alarms
        self._sorted = np.sort(normal, axis=0).astype(np.float64)
        sums = np.sort(self.weighed(normal).sum(1))
        place = math.ceil((len(sums) + 1) * (1 - false_alarms))
        self.threshold = float(sums[min(place, len(sums)) - 1]) + _SCORE_TOLERANCE

    @classmethod
    def fit(
        cls,
        texts: Sequence[Sequence[str]],
        surprisal: np.ndarray,
        *,
        false_alarms: float,
        passes: int | None,
    ) -> "NormalProfile":
        """Fit a profile to normal rows.

        Parts are computed by 5-fold cross-validation, so that they are those of unseen rows; the
        profile keeps all rows.

        Args:
            texts: N tokenised texts.
            surprisal: (N) mean surprisal of each text.
            false_alarms: share of new normal rows that may be flagged.
            passes: number of passes of the surprisal.
        """
        fold = np.random.default_rng(0).permutation(len(texts)) % _FOLDS
        normal = np.zeros((len(texts), len(PARTS)), dtype=np.float32)
        for number in range(_FOLDS if len(texts) >= _FEWEST else 0):
            others, own = (
                [text for text, n in zip(texts, fold, strict=True) if (n == number) == inside]
                for inside in (False, True)
            )
            place = fold == number
            normal[place], _ = _parts(NormalCounts.fit(others), own, surprisal[place])
        counts = NormalCounts.fit(texts if len(texts) else [()])
        return cls(counts, normal, false_alarms, passes)

    def parts(
        self, texts: Sequence[Sequence[str]], surprisal: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The weighted parts (N, P) of tokenised texts, which sum to the score, and the index of
        the nearest normal row (N)."""
        parts, nearest = _parts(self.counts, texts, surprisal)
        return self.weighed(parts), nearest

    def weighed(self, parts: np.ndarray) -> np.ndarray:
        """-ln of the share of normal rows with an equal or larger part: float64 (N, P).

        This puts the parts on one scale, and their sum is Fisher's method. Above the 95th
        percentile of normal rows, an exponential tail is assumed where it gives more.
        """
        count, weights = len(self._sorted), np.empty(parts.shape)
        for column, floor in enumerate(PARTS.values()):
            sorted_values, x = self._sorted[:, column], parts[:, column].astype(np.float64)
            same = _PART_TOLERANCE * floor
            larger = count - np.searchsorted(sorted_values, x - same, side="left")
            upper = sorted_values[int((1 - _UPPER) * (count - 1))]
            excess = sorted_values[sorted_values > upper + same] - upper
            scale = max(floor, excess.mean() if len(excess) else 0.0)
            tail = np.where(x > upper + same, (x - upper) / scale - math.log(_UPPER), 0.0)
            weights[:, column] = np.maximum(-np.log((larger + 1) / (count + 1)), tail)
        return weights

    def reasons(
        self, text: Sequence[str], surprisals: np.ndarray, weighed: np.ndarray, nearest: int
    ) -> list[str]:
        """The parts that are rarer than the false alarm rate, rarest first, each with the tokens
        that cause it."""
        least = -math.log(max(self.false_alarms, 1 / (len(self.normal) + 1))) - 1e-9
        names, order = list(PARTS), np.argsort(-weighed, kind="stable")
        chosen = [names[i] for i in order if weighed[i] >= least]
        return [self._reason(name, text, surprisals, nearest) for name in chosen]

    def _reason(self, name: str, text: Sequence[str], surprisals: np.ndarray, nearest: int) -> str:
        if name == "unseen":
            causes = list(dict.fromkeys(t for t in text if not self.counts.is_seen(t)))
        elif name == "order":
            causes = list(dict.fromkeys(" ".join(pair) for pair in self.counts.unseen_pairs(text)))
        elif name == "counts":
            differences = self.counts.differences(text, nearest)
            causes = [f"{token} x{own} for x{normal}" for token, own, normal in differences]
        elif name == "surprisal":
            order = sorted(zip(-surprisals, text, strict=True))
            causes = list(dict.fromkeys(t for value, t in order if value <= order[0][0] / 2))
        else:
            causes = [str(len(text))]
        more = [] if len(causes) <= _NAMED else ["..."]
        return ": ".join([name, ", ".join([*causes[:_NAMED], *more])]) if causes else name

    def save(self, folder: Path) -> None:
        """Write the profile into its model folder."""
        settings = {
            "format": _FORMAT,
            "parts": list(PARTS),
            "false_alarms": self.false_alarms,
            "passes": self.passes,
            "weights": weights_checksums(folder),
        }
        settings_bytes = np.frombuffer(json.dumps(settings).encode(), dtype=np.uint8)
        with atomic_path(folder / NORMAL) as path, path.open("wb") as file:
            arrays = {"settings": settings_bytes, "normal": self.normal, **self.counts.arrays()}
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, folder: Path, false_alarms: float | None = None) -> "NormalProfile | None":
        """Read the profile of a model folder; None if there is none.

        Args:
            folder: model folder.
            false_alarms: share of normal rows that may be flagged; None: as fitted.

        Raises:
            InputError: the profile is damaged, or was fitted with other weights.
        """
        path = folder / NORMAL
        if not path.exists():
            return None
        with open_npz(path, _FIT_AGAIN) as stored:
            arrays = {name: np.asarray(stored[name]) for name in stored}
            settings: Mapping[str, Any] = json.loads(arrays["settings"].tobytes())
            if settings["format"] != _FORMAT or settings["parts"] != list(PARTS):
                raise InputError(f"{path} was written by another version of ownbert; {_FIT_AGAIN}")
            if settings["weights"] != weights_checksums(folder):
                raise InputError(f"{path} was fitted with other weights than these; {_FIT_AGAIN}")
            normal = arrays["normal"]
            if normal.ndim != 2 or normal.shape[1] != len(PARTS) or not np.isfinite(normal).all():
                raise ValueError("parts")
            rate = settings["false_alarms"] if false_alarms is None else false_alarms
            return cls(NormalCounts.from_arrays(arrays), normal, rate, settings["passes"])


def _parts(
    counts: NormalCounts, texts: Sequence[Sequence[str]], surprisal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The parts (N, P) of texts, and their nearest normal rows (N)."""
    measured, nearest = counts.measured(texts)
    return np.stack([{"surprisal": surprisal, **measured}[p] for p in PARTS], 1), nearest
