"""Files of answers, a row each: JSON lines or a table; a stopped one is gone on with.

While it is written the file is ``.NAME.part`` beside the output, and ``.NAME.part.json`` says what
it is made of. It gets its name when it is whole.
"""

import contextlib
import csv
import gzip
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ownbert.errors import InputError
from ownbert.files import WRITE_FAILURES, atomic_path, make_folder, write_json

# What separates the columns, by the end of the name; and the endings of JSON lines.
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".json", ".ndjson")


class AnswerFile:
    """Rows for ``path``, in the format that its name says (.csv, .tsv, .jsonl; each also with
    .gz).

    A table has a column for each key of the first row; a mapping inside is spread over columns
    ``key.inner``, a list is JSON. made_for: what the rows are made of; ``resume`` keeps the rows
    of a stopped run that was made for the same, and without ``resume`` they are dropped. done: how
    many rows there are.
    """

    def __init__(self, path: str | Path, made_for: Mapping[str, Any], *, resume: bool) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError(f"cannot write {path}: it is a folder, a file name is needed")
        make_folder(self.path.parent)
        self.part = self.path.with_name(f".{self.path.name[:200]}.part")
        self.said = self.part.with_name(f"{self.part.name}.json")
        ending = Path(self.path.name.lower().removesuffix(".gz")).suffix
        if ending not in (*_SEPARATORS, *_LINES):
            known = ", ".join([*_LINES, *_SEPARATORS])
            raise InputError(
                f"cannot tell the kind of {path}; its name must end with one of {known}"
            )
        self.separator = _SEPARATORS.get(ending)
        self.made_for = json.loads(json.dumps(made_for))
        self.columns: list[str] | None = None
        self.done = 0
        with self._explained():
            self.file: BinaryIO = self.part.open("ab")
            self._lock()
            try:
                self._begin(resume)
            except BaseException:
                self.file.close()
                raise

    def _begin(self, resume: bool) -> None:
        """Cut off what is not to stay."""
        size = 0
        if resume and self.said.exists():
            self._refuse_other()
            size = self._whole_rows()
        self.file.truncate(size)
        write_json(self.said, self.made_for)

    def _refuse_other(self) -> None:
        try:
            before = json.loads(self.said.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = {}
        for name in self.made_for:
            if before.get(name) != self.made_for[name]:
                raise InputError(
                    f"cannot resume {self.path}: the {name} is not that of the stopped run; start "
                    "anew without --resume"
                )

    def _whole_rows(self) -> int:
        """Where the last whole row ends; takes the header, and counts the rows, up to there."""
        end = size = quotes = lines = 0
        with self.part.open("rb") as file:
            for line in file:
                size += len(line)
                # In a table a line break between quotes is part of a text.
                quotes += 0 if self.separator is None else line.count(b'"')
                if line.endswith(b"\n") and quotes % 2 == 0:
                    end, lines = size, lines + 1
        self.done = max(0, lines - (self.separator is not None))
        if self.separator is not None and lines:
            with self.part.open(encoding="utf-8", newline="") as file:
                self.columns = next(csv.reader(file, delimiter=self.separator))
        return end

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows. Raises ``InputError`` for one that has a column which the first has not."""
        lines = [self._line(row, self.done + i) for i, row in enumerate(rows, start=1)]
        with self._explained():
            self.file.write("".join(lines).encode())
            self.file.flush()
        self.done += len(rows)

    def _line(self, row: Mapping[str, Any], number: int) -> str:
        if self.separator is None:
            return json.dumps(row, ensure_ascii=False) + "\n"
        cells, header = dict(_flat(row)), ""
        if self.columns is None:
            self.columns = list(cells)
            header = self._joined(self.columns)
        if others := [name for name in cells if name not in self.columns]:
            raise InputError(
                f"{self.path}: answer {number:,} has {others[0]!r}, which is no column of the "
                "first answer; write to a .jsonl file"
            )
        return header + self._joined([cells.get(name, "") for name in self.columns])

    def _joined(self, cells: Sequence[str]) -> str:
        if self.separator == "\t":  # There a row is a line, whatever stands in quotes.
            cells = [json.dumps(c, ensure_ascii=False) if {*c} & {*"\t\r\n"} else c for c in cells]
        out = _Line()
        csv.writer(out, delimiter=self.separator or ",", lineterminator="\n").writerow(cells)
        return out.text

    def finish(self) -> None:
        """Give the file its name."""
        with self._explained():
            os.fsync(self.file.fileno())
            if self.path.name.lower().endswith(".gz"):
                with atomic_path(self.path) as packed:
                    _pack(self.part, packed)
                self.part.unlink()
            else:
                os.replace(self.part, self.path)
            self.said.unlink()
            self.file.close()

    def leave(self) -> None:
        """End without a whole file; one without rows is removed."""
        if not self.done:
            self.part.unlink(missing_ok=True)
            self.said.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a full disk was told of before
            self.file.close()

    def _lock(self) -> None:
        """``InputError`` if another process is writing the same."""
        try:
            import fcntl

            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise InputError(f"another process is writing {self.path}; wait for its end") from None
        except (ImportError, OSError):
            pass  # no such lock on this system

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in WRITE_FAILURES:
                raise InputError(f"cannot write {self.path}: {error.strerror}") from error
            raise


class _Line:
    """What csv writes to."""

    def write(self, text: str) -> None:
        self.text = text


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(column, text) of everything in a row."""
    for key, value in row.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        elif value is None:
            yield f"{prefix}{key}", ""
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{prefix}{key}", text


def _pack(source: Path, target: Path) -> None:
    # Without name and time, so that the same rows make the same file.
    with (
        source.open("rb") as rows,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
    ):
        shutil.copyfileobj(rows, packed, 1 << 20)
