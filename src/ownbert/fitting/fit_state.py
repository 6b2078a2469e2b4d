"""fit.json: the state of a ``fit`` run, for resuming it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import checks
from ownbert.exceptions import InputError, in_short
from ownbert.files.json_files import read_json, write_json
from ownbert.fitting.minutes_curve import Points
from ownbert.inference.blend import KINDS
from ownbert.limits import COUNT
from ownbert.views.view_features import VIEWS

STATE = "fit.json"
_FORMAT = 1
_SECONDS = checks.number(0, 1e9)
_POINT = checks.list_of(checks.number(-1e9, 1e9), least=2, most=2)
# Titles of candidates by name; linear models have those of their views. Names become file names.
TITLES = {
    **{name: view.title for name, view in VIEWS.items()},
    "self-trained": "linear models, self-trained",
    "joined": "network, linear models built in",
    "start": "network, only its head trained",
    "network": "network, fine-tuned",
    "joined-finetuned": "fine-tuned + linear models",
    "ngrams": "network with n-grams, fine-tuned",
    "probe": "linear on the frozen network",
    "student": "distilled network",
    "joined-student": "distilled + linear models",
}
_REQUIRED = {
    "name": checks.one_of(*TITLES),
    "title": checks.text,
    "kind": checks.one_of(*KINDS),
    "folders": checks.list_of(checks.text, least=1, most=1000),
    "seconds": _SECONDS,
}
_CANDIDATE = checks.record(
    {
        **_REQUIRED,
        "share": checks.number(0, 1),
        "partial": checks.truth,
        "first": checks.list_of(checks.text, most=1000),
        "unknown": checks.list_of(checks.whole(0, COUNT)),
    },
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
            saved = read_json(path, check=_KEYS)
        except InputError as error:
            raise InputError(f"{error}; start over with --overwrite") from None
        points = tuple((float(at), float(score)) for at, score in saved.get("points", ()))
        return cls(saved["identity"], float(saved.get("seconds", 0.0)), points, saved["candidates"])

    def require_same(self, identity: Mapping[str, Any], folder: Path) -> None:
        """Raise ``InputError`` if a run with other files or settings has written this state."""
        before = _without_unset(self.identity)
        now = _without_unset(json.loads(json.dumps(identity)))
        if before != now:
            raise InputError(
                f"{folder} was made with {_difference(before, now)}; use the same, or start over "
                "with --overwrite"
            )


def _without_unset(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without settings that are None: earlier versions had fewer settings, and tiny as
    the default size."""
    settings = identity.get("settings") or {}
    unset = {"size": "tiny"}
    kept = {k: v for k, v in settings.items() if v is not None and v != unset.get(k)}
    return {**identity, "settings": kept}


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference between two identities, with the earlier run's value."""
    old, new = before["settings"], now["settings"]
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            option = f"--{name.replace('_', '-')}"
            return f"{option} {in_short(old[name])}" if name in old else f"no {option}"
    return "other files"


def saved_scores(path: Path, shapes: Sequence[tuple[int, int]]) -> np.ndarray | None:
    """The logits in a file; None if it is missing, damaged, or has none of the shapes."""
    try:
        # Memory-mapped, so that a header cannot request more memory than the file has bytes.
        scores = np.array(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError):
        return None
    fits = scores.shape in shapes and scores.dtype.kind == "f"
    return scores if fits and np.isfinite(scores).all() else None
