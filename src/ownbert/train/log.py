"""What a run leaves to look at: log.jsonl, a row a logged step, and TensorBoard's files."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ownbert.errors import InputError
from ownbert.files import write_text

LOG = "log.jsonl"
CURVES = "curves.png"
BOARD = "tensorboard"

# Of a row, what is not a curve.
_NOT_DRAWN = ("step", "evaluation")


class RunLog:
    """Rows of ``log.jsonl``. Rows after ``step`` are dropped, so that a resumed run has each step
    once; ``step`` None starts anew. ``tensorboard``: write the same for TensorBoard.

    Raises ``InputError`` when the disk is full, or TensorBoard is asked for and not installed.
    """

    def __init__(self, folder: Path, *, step: int | None = None, tensorboard: bool = False) -> None:
        if tensorboard:
            need_tensorboard()
        self.path = folder / LOG
        self.rows = [] if step is None else [r for r in read_log(folder) if r["step"] <= step]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._board = _Board(folder / BOARD, self.rows, step) if tensorboard else None
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        rounded = {k: _rounded(v) for k, v in row.items()}
        self.rows.append(rounded)
        try:
            self._file.write(json.dumps(rounded) + "\n")
            self._file.flush()
            if self._board is not None:
                self._board.write(rounded)
        except OSError as error:
            with contextlib.suppress(OSError):  # it would try once more to write what is left
                self._file.close()
            raise InputError(f"cannot write {self.path}: {error.strerror or error}") from error

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of a log, none if there is none; a last row that was cut off is left out.

    Raises ``InputError`` for anything else that is not a row.
    """
    path = folder / LOG
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                return
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}, line {number}: not a row of a log")
        yield row


def need_tensorboard() -> None:
    """Raise ``InputError`` where the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise InputError(
            "run.tensorboard needs a package that is not there: pip install 'ownbert[tensorboard]'"
        ) from None


def _rounded(value: Any) -> Any:
    """Nine digits tell every float32 from its neighbours."""
    return float(f"{value:.9g}") if isinstance(value, float) else value


class _Board:
    """Event files with a curve a number, train/... and held_out/..., over the steps."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]], step: int | None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        old = list(folder.glob("events.out.tfevents.*"))
        if step is None:
            for path in old:
                path.unlink()
        # Events from there on belong to what was run after the state that the run resumes from.
        purge = None if step is None else step + 1
        self.writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=10)
        if not old:  # a resumed run that had none before
            for row in rows:
                self.write(row)

    def write(self, row: Mapping[str, Any]) -> None:
        part = "held_out" if row.get("evaluation") else "train"
        for name, value in row.items():
            if name not in _NOT_DRAWN and isinstance(value, int | float) and math.isfinite(value):
                self.writer.add_scalar(f"{part}/{name}", value, row["step"])

    def close(self) -> None:
        self.writer.close()
