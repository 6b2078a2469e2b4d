"""fit.json: the state of a ``fit`` run, for resuming it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import checks
from ownbert.errors import InputError
from ownbert.files.json_files import read_json, write_json
from ownbert.fitting.minutes_curve import Points
from ownbert.inference.blend import KINDS
from ownbert.views.view_features import VIEWS

STATE = "fit.json"
_FORMAT = 1
_SECONDS = checks.number(0, 1e9)
_POINT = checks.list_of(checks.number(-1e9, 1e9), least=2, most=2)
_REQUIRED = {
    # Names become file names.
    "name": checks.one_of(
        *(*VIEWS, "self-trained", "probe", "start", "joined", "network", "ngrams", "student")
    ),
    "title": checks.text,
    "kind": checks.one_of(*KINDS),
    "folders": checks.list_of(checks.text, least=1, most=1000),
    "seconds": _SECONDS,
}
_CANDIDATE = checks.record(
    {**_REQUIRED, "share": checks.number(0, 1), "first": checks.list_of(checks.text, most=1000)},
    required=tuple(_REQUIRED),
    closed=True,
)
_KEYS = checks.record(
    {
        "format": checks.one_of(_FORMAT),
        "identity": checks.object_,
        "seconds": _SECONDS,
        "points": checks.list_of(_POINT, most=1000),
        "candidates": checks.list_of(_CANDIDATE),
    },
    required=("format", "identity", "candidates"),
)


@dataclass(frozen=True)
class FitState:
    """The state of a run.

    Args:
        identity: files and settings that must be the same on resumption.
        seconds: time spent so far.
        points: points of the curve over minutes of pretraining.
        candidates: candidates as returned by ``ComparedModel.about``.
    """

    identity: Mapping[str, Any]
    seconds: float
    points: Points
    candidates: Sequence[dict[str, Any]]

    def write(self, folder: Path) -> None:
        """Write the state into the folder of the run."""
        write_json(folder / STATE, {"format": _FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> "FitState | None":
        """The state written by an earlier run; None if there is none.

        Raises:
            InputError: the file is damaged.
        """
        path = folder / STATE
        if not path.exists():
            return None
        try:
            found = read_json(path, check=_KEYS)
        except InputError as error:
            raise InputError(f"{error}; start over with --overwrite") from None
        points = tuple((float(at), float(score)) for at, score in found.get("points", ()))
        return cls(found["identity"], float(found.get("seconds", 0.0)), points, found["candidates"])


def saved_scores(path: Path, shapes: Sequence[tuple[int, int]]) -> np.ndarray | None:
    """The logits in a file; None if it is missing, damaged, or has none of the shapes."""
    try:
        # Memory-mapped, so that a header cannot request more memory than the file has bytes.
        scores = np.array(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError):
        return None
    fits = scores.shape in shapes and scores.dtype.kind == "f"
    return scores if fits and np.isfinite(scores).all() else None
