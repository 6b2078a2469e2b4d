"""The state of a ``fit`` run (fit.json), for resuming it, and its clock (replay.json), so that
another run can repeat its steps."""

import base64
import contextlib
import json
import shutil
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert import checks
from ownbert.exceptions import InputError, in_short
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import make_folder
from ownbert.fitting import candidates
from ownbert.fitting.candidates import WORK
from ownbert.fitting.findings import Points
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.inference.blend import KINDS
from ownbert.limits import COUNT
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.time_limit import Recording, started_at

STATE = "fit.json"
_FORMAT = 1
_SECONDS = checks.number(0, 1e9)
_POINT = checks.list_of(checks.number(-1e9, 1e9), least=2, most=2)


def _checks() -> checks.Check:
    """What the file contains; candidates are those of ``CANDIDATES``."""
    required = {
        "name": checks.one_of(*(candidate.name for candidate in candidates.CANDIDATES)),
        "title": checks.text,
        "kind": checks.one_of(*KINDS),
        "folders": checks.list_of(checks.text, least=1, most=1000),
        "seconds": _SECONDS,
    }
    optional = {
        "share": checks.number(0, 1),
        "partial": checks.truth,
        "first": checks.list_of(checks.text, most=1000),
        "unknown": checks.list_of(checks.whole(0, COUNT)),
    }
    candidate = checks.record({**required, **optional}, required=tuple(required), closed=True)
    return checks.record(
        {
            "format": checks.one_of(_FORMAT),
            "identity": checks.object_,
            "seconds": _SECONDS,
            "points": checks.list_of(_POINT, most=1000),
            "candidates": checks.list_of(candidate),
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
        try:
            saved = read_json(folder / STATE, missing={}, check=_checks())
        except InputError as error:
            raise InputError(f"{error}; start over with --overwrite") from None
        if not saved:
            return None
        points = tuple((float(at), float(score)) for at, score in saved.get("points", ()))
        return cls(saved["identity"], float(saved.get("seconds", 0.0)), points, saved["candidates"])

    def require_same(self, identity: Mapping[str, Any], folder: Path) -> None:
        """Raise ``InputError`` if a run with other files or settings has written this state."""
        if difference := self.difference(identity):
            raise InputError(
                "{folder} was made with {difference}; use the same, or start over with "
                "{--overwrite}",
                folder,
                difference,
            )

    def difference(self, identity: Mapping[str, Any]) -> str:
        """The first difference to another run's files and settings; empty if there is none."""
        before = _without_unset(self.identity)
        now = _without_unset(json.loads(json.dumps(identity)))
        return "" if before == now else _difference(before, now)


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


def remove_leftovers(folder: Path, work: Sequence[str], *, first_folds: bool) -> None:
    """Remove files that later runs do not need.

    Args:
        folder: folder of the run.
        work: names in the folder of intermediate files.
        first_folds: whether to remove the models of the first fold.
    """
    copies = [*(folder / "members").rglob("first-fold*")] if first_folds else []
    for path in (*copies, *(folder / WORK / name for name in work)):
        shutil.rmtree(path, ignore_errors=True)


# In the folder of intermediate files.
REPLAY = "replay.json"
_REPLAY_FORMAT, _MOST = 1, 10**8
_RECORDING = checks.record(
    {
        "format": checks.one_of(_REPLAY_FORMAT),
        "made_with": checks.record({"threads": checks.whole(1, 4096)}, required=("threads",)),
        "readings": checks.whole(0, _MOST),
        "kinds": checks.text,
        "values": checks.text,
    },
    required=("format", "made_with", "readings", "kinds", "values"),
)


def made_with() -> dict[str, Any]:
    """What the last digits of a result depend on besides the steps."""
    return {
        "threads": torch.get_num_threads(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        **{name: version(name) for name in ("ownbert", "torch", "numpy", "scipy")},
    }


class ReplayedRun:
    """A finished run of ``fit`` that another one repeats.

    Args:
        folder: its folder.
        output: the folder of the new run.
        resume: whether the new run is to be resumed, which is not possible.

    Raises:
        InputError: the run cannot be replayed.
    """

    def __init__(self, folder: Path, output: Path, *, resume: bool = False) -> None:
        if resume:
            raise InputError("{--replay} repeats a run from its start; omit {--resume}")
        if folder.resolve() == output.resolve():
            raise InputError("a replay of {folder} needs another folder; name it with {-o}", folder)
        if not folder.is_dir():
            raise InputError(
                "there is no folder {folder}; {--replay} needs that of a finished run", folder
            )
        self.folder = folder
        self.recording, self.environment = read_recording(folder / WORK)
        state = FitState.read(folder)
        if state is None:
            raise InputError("{folder} is missing; the run cannot be replayed", folder / STATE)
        self._state = state
        self._recipe = resolve(FitRecipe, config=folder / RECIPE)

    def __str__(self) -> str:
        return str(self.folder)

    def files(self, *files: Any) -> tuple[Any, ...]:
        """The dev, test, unlabelled and added rows: those named, else the files of the run."""
        names = ("dev", "test", "unlabelled", "add")
        of_run = (getattr(self._recipe, name) or None for name in names)
        return tuple(
            recorded if named is None or (isinstance(named, Sized) and not len(named)) else named
            for named, recorded in zip(files, of_run, strict=True)
        )

    def settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of the run by name; ``require_same`` refuses others that are given."""
        settings = {name: value for name, value in options.items() if value is not None}
        recorded = asdict(self._recipe)
        for name in ("minutes", "device"):  # not in the identity
            if settings.get(name, recorded[name]) != recorded[name]:
                difference = f"--{name} {recorded[name]}"
                raise InputError(
                    f"{self.folder} was made with {difference}; a replay needs the same"
                )
        return {**recorded, **settings}

    def require_same(self, identity: Mapping[str, Any]) -> None:
        """Raise ``InputError`` if files or settings differ from those of the run."""
        if difference := self._state.difference(identity):
            raise InputError(f"{self.folder} was made with {difference}; a replay needs the same")

    def differences(self, environment: Mapping[str, Any]) -> Iterator[str]:
        """Yield a warning for each package that has another version, and for another processor."""
        for name, now in environment.items():
            then = self.environment.get(name)
            if name != "threads" and now != then:
                yield (
                    f"warning: {self.folder} was made with {name} {in_short(then)}, this is "
                    f"{in_short(now)}: the last digits may differ"
                )


def read_recording(work: Path) -> tuple[Recording, dict[str, Any]]:
    """The recording of a run, to replay it, and what it was made with.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = work / REPLAY
    if not path.exists():
        raise InputError(
            "{path} is missing: only a finished run of fit that was not resumed can be replayed",
            path,
        )
    saved = read_json(path, check=_RECORDING)
    count = saved["readings"]
    try:
        kinds = _unpacked(saved["kinds"], count)
        values = array("d", _unpacked(saved["values"], 8 * count))
    except (ValueError, zlib.error):
        raise InputError("{path} is damaged; the run cannot be replayed", path) from None
    return Recording(kinds, values), saved["made_with"]


class RunClock:
    """The clock of a run: recorded if the run is new, replayed if it repeats another run.

    Args:
        work: folder of intermediate files, for the recording.
        identity: the files and settings of the run.
        replayed: the run to repeat.

    Raises:
        InputError: the run to repeat had other files or settings.
    """

    def __init__(
        self, work: Path, identity: Mapping[str, Any], replayed: ReplayedRun | None = None
    ) -> None:
        if replayed is not None:
            replayed.require_same(identity)
        self._work, self._replayed = work, replayed
        self._recording = Recording() if replayed is None else replayed.recording

    def start(self, started: float | None) -> float:
        """The time of ``time.monotonic`` at which the run was started, by default now, as recorded
        in a replay."""
        with self._recording.running():
            return started_at(time.monotonic() if started is None else started)

    @contextlib.contextmanager
    def running(
        self, candidates: Sequence[Any], say: Callable[[str], Any], *, resumed: bool
    ) -> Iterator[None]:
        """Record or replay the clock in the block, and write the recording.

        Args:
            candidates: the candidates so far; the block adds more.
            say: called with warnings.
            resumed: whether an earlier run may have left files. Such a run is not recorded; if it
                adds candidates, the recording of the earlier one is removed.
        """
        before, environment, path = len(candidates), made_with(), self._work / REPLAY
        if resumed and self._work.exists():
            yield
            if len(candidates) > before:
                path.unlink(missing_ok=True)
            return
        if self._replayed is not None:
            for line in self._replayed.differences(environment):
                say(line)
            environment = self._replayed.environment
        # Also if the number is the same: MKL otherwise chooses numbers of its own.
        torch.set_num_threads(environment["threads"])
        with self._recording.running():
            yield
        if self._recording.rest:
            say(f"warning: the replay took fewer steps than {self._replayed}")
        write_json(
            make_folder(self._work) / REPLAY,
            {
                "format": _REPLAY_FORMAT,
                "made_with": environment,
                "readings": len(self._recording.kinds),
                "kinds": _packed(self._recording.kinds),
                "values": _packed(self._recording.values.tobytes()),
            },
        )


def _packed(data: bytes | bytearray) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpacked(text: str, size: int) -> bytes:
    """Raise ``ValueError`` if there are not ``size`` bytes."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(base64.b64decode(text, validate=True), size + 1)
    if len(data) != size:
        raise ValueError("size")
    return data
