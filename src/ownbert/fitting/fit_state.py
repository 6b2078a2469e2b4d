"""The state of a ``fit`` run (fit.json), for resuming it, and its clock (replay.json), so that
another run can repeat its steps."""

import base64
import contextlib
import json
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
from ownbert.language.messages import Message, Option
from ownbert.limits import COUNT
from ownbert.run.file_names import RECIPE
from ownbert.settings import resolve
from ownbert.time_limit import Recording, started_at

# The recording of the clock is in the folder of intermediate files.
STATE, REPLAY = "fit.json", "replay.json"
_FORMAT, _MOST = 1, 10**8
_SECONDS = checks.number(0, 1e9)
_POINT = checks.list_of(checks.number(-1e9, 1e9), least=2, most=2)
_RECORDING = checks.record(
    {
        "format": checks.one_of(_FORMAT),
        "made_with": checks.record({"threads": checks.whole(1, 4096)}, required=("threads",)),
        "readings": checks.whole(0, _MOST),
        "kinds": checks.text,
        "values": checks.text,
    },
    required=("format", "made_with", "readings", "kinds", "values"),
)


def _checks() -> checks.Check:
    """What fit.json contains; candidates are those of ``CANDIDATES``."""
    candidate = {
        "name": checks.one_of(*(candidate.name for candidate in candidates.CANDIDATES)),
        "title": checks.text,
        "kind": checks.one_of(*KINDS),
        "folders": checks.list_of(checks.text, least=1, most=1000),
        "seconds": _SECONDS,
        "share": checks.number(0, 1),
        "partial": checks.truth,
        "first": checks.list_of(checks.text, most=1000),
        "unknown": checks.list_of(checks.whole(0, COUNT)),
    }
    required = ("name", "title", "kind", "folders", "seconds")
    return checks.record(
        {
            "format": checks.one_of(_FORMAT),
            "identity": checks.object_,
            "seconds": _SECONDS,
            "points": checks.list_of(_POINT, most=1000),
            "candidates": checks.list_of(checks.record(candidate, required=required, closed=True)),
        },
        required=("format", "identity", "candidates"),
    )


@dataclass(frozen=True)
class FitState:
    """The state of a run."""

    identity: Mapping[str, Any]  # files and settings that must be the same on resumption
    seconds: float  # spent so far
    points: Points  # of the curve over minutes of pretraining
    candidates: Sequence[dict[str, Any]]  # see ``ComparedModel.about``

    def write(self, folder: Path) -> None:
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
            raise InputError("{error}; start over with {--overwrite}", error) from None
        if not saved:
            return None
        points = tuple((float(at), float(score)) for at, score in saved.get("points", ()))
        return cls(saved["identity"], float(saved.get("seconds", 0.0)), points, saved["candidates"])

    def difference(self, identity: Mapping[str, Any]) -> Option | str:
        """The first difference to another run's files and settings, with the value of this one;
        empty if there is none."""
        now = json.loads(json.dumps(identity))
        old, new = (values.get("settings") or {} for values in (self.identity, now))
        for name in sorted({*old, *new}):
            if (value := old.get(name)) != new.get(name):
                return f"no {Option(name)}" if value is None else Option(name, value)
        return "" if self.identity == now else "other files"


class ReplayedRun:
    """A finished run of ``fit`` in a folder that another one, in ``output``, repeats.

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
        self.recording, self.environment = _read_recording(folder / WORK / REPLAY)
        state = FitState.read(folder)
        if state is None:
            raise InputError("{folder} is missing; the run cannot be replayed", folder / STATE)
        self._state = state
        self._recipe = asdict(resolve(FitRecipe, config=folder / RECIPE))

    def options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The files and settings of the run; those that are named in ``options`` replace them, and
        ``require_same`` refuses differences."""
        named = {name: value for name, value in options.items() if value is not None}
        for name in ("minutes", "device"):  # not in the identity
            if named.get(name, self._recipe[name]) != self._recipe[name]:
                self._refuse(Option(name, self._recipe[name]))
        files = {name: self._recipe[name] or None for name in ("dev", "test", "unlabelled", "add")}
        for name in files.keys() & named.keys():
            if isinstance(named[name], Sized) and not len(named[name]):
                del named[name]
        return {**self._recipe, **files, **named}

    def require_same(self, identity: Mapping[str, Any]) -> None:
        """Raise ``InputError`` if files or settings differ from those of the run."""
        if difference := self._state.difference(identity):
            self._refuse(difference)

    def _refuse(self, difference: Option | str) -> None:
        raise InputError(
            "{folder} was made with {difference}; a replay needs the same",
            *(self.folder, difference),
        )

    def differences(self, environment: Mapping[str, Any]) -> Iterator[str]:
        """Yield a warning for each package that has another version, and for another processor."""
        for name, now in environment.items():
            then = self.environment.get(name)
            if name != "threads" and now != then:
                yield (
                    Message(
                        "warning: {folder} was made with {name} {then}, this is {now}: the last "
                        "digits may differ",
                        self.folder,
                        name,
                        in_short(then),
                        in_short(now),
                    )
                )


def _read_recording(path: Path) -> tuple[Recording, dict[str, Any]]:
    """The recording of a run, to replay it, and what it was made with."""
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
    """The clock of a run with files and settings ``identity``: recorded in the folder ``work`` if
    the run is new, replayed if it repeats another one.

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
        self, fitted: Sequence[Any], say: Callable[[str], Any], *, resumed: bool
    ) -> Iterator[None]:
        """Record or replay the clock in the block, which fits more models, and write the recording;
        ``say`` is called with warnings.

        A resumed run, for which an earlier one may have left files, is not recorded; if it fits
        more models, the recording of the earlier one is removed.
        """
        before, path = len(fitted), self._work / REPLAY
        if resumed and self._work.exists():
            yield
            if len(fitted) > before:
                path.unlink(missing_ok=True)
            return
        # What the last digits of a result depend on besides the steps.
        environment: Mapping[str, Any] = {
            "threads": torch.get_num_threads(),
            "processor": torch.backends.cpu.get_cpu_capability(),
            **{name: version(name) for name in ("ownbert", "torch", "numpy", "scipy")},
        }
        if self._replayed is not None:
            for line in self._replayed.differences(environment):
                say(line)
            environment = self._replayed.environment
        # Also if the number is the same: MKL otherwise chooses numbers of its own.
        torch.set_num_threads(environment["threads"])
        with self._recording.running():
            yield
        if self._replayed is not None and self._recording.rest:
            say(
                Message(
                    "warning: the replay took fewer steps than {replayed}", self._replayed.folder
                )
            )
        write_json(
            make_folder(self._work) / REPLAY,
            {
                "format": _FORMAT,
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
