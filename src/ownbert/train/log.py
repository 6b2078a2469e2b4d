"""The log of a run: log.jsonl with one row per logged step, and TensorBoard event files."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from ownbert.exceptions import InputError, needing
from ownbert.files.writing import write_text

LOG = "log.jsonl"
CURVES = "curves.png"
BOARD = "tensorboard"

# Keys of a row that are not metrics.
_NO_METRIC = ("step", "evaluation")


class RunLog:
    """Writes the rows of ``log.jsonl`` and keeps them in ``rows``.

    Rows of earlier runs are kept up to ``step``, so that the log of a resumed run has each step
    once; None drops all rows. Processes other than the first do not write (``writes``), but have
    the same rows, so that all make equal decisions.
    """

    def __init__(
        self,
        folder: Path,
        *,
        step: int | None = None,
        tensorboard: bool = False,
        writes: bool = True,
    ) -> None:
        self.path = folder / LOG
        self._file: TextIO | None = None
        self._board: _Board | None = None
        self.rows = [] if step is None else [r for r in read_log(folder) if r["step"] <= step]
        if not writes:
            return
        if tensorboard:
            need_tensorboard()
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._board = _Board(folder / BOARD, self.rows, step) if tensorboard else None
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        # Nine digits represent any float32 exactly.
        rounded = {k: float(f"{v:.9g}") if isinstance(v, float) else v for k, v in row.items()}
        self.rows.append(rounded)
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(rounded) + "\n")
            self._file.flush()
            if self._board is not None:
                self._board.write(rounded)
        except OSError as error:
            with contextlib.suppress(OSError):  # close() retries writing
                self._file.close()
            raise InputError(
                "cannot write {path}: {reason}", self.path, error.strerror or error
            ) from error

    def close(self) -> None:
        for file in filter(None, (self._file, self._board)):
            file.close()


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the log in ``folder``, if any, except an incomplete last row.

    Raises:
        InputError: any other line is not a valid row.
    """
    path = folder / LOG
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("cannot read {path}: {error}", path, error) from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                return
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError("{path}, line {number}: not a row of a log", path, number)
        yield row


def need_tensorboard() -> None:
    """Raise ``InputError`` if TensorBoard is not installed."""
    with needing(
        "run.tensorboard needs a package that is missing: pip install 'ownbert[tensorboard]'"
    ):
        import torch.utils.tensorboard  # noqa: F401


class _Board:
    """TensorBoard event files: one curve per metric, train/... and held_out/..."""

    def __init__(self, folder: Path, rows: list[dict[str, Any]], step: int | None) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        old = list(folder.glob("events.out.tfevents.*"))
        if step is None:
            for path in old:
                path.unlink()
        # Later events belong to steps after the saved state, which will be repeated.
        purge = None if step is None else step + 1
        self.writer = SummaryWriter(str(folder), purge_step=purge, flush_secs=10)
        if not old:  # also resumed runs without TensorBoard so far
            for row in rows:
                self.write(row)

    def write(self, row: Mapping[str, Any]) -> None:
        group = "held_out" if row.get("evaluation") else "train"
        for name, value in row.items():
            if name not in _NO_METRIC and isinstance(value, int | float) and math.isfinite(value):
                self.writer.add_scalar(f"{group}/{name}", value, row["step"])

    def close(self) -> None:
        self.writer.close()
