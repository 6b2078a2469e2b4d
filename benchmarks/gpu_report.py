"""What a section of benchmarks/gpu.py has found: rows, notes, and what falls short."""

import json
import time
from pathlib import Path
from typing import Any


class Report:
    """Rows of a section; written to a file whenever something is added.

    Args:
        path: the file; None: nothing is written.
        seconds: how long the section may take.
    """

    def __init__(self, path: Path | None = None, *, seconds: float = 3600.0) -> None:
        self.path, self.start = path, time.monotonic()
        self.deadline = self.start + seconds
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.shortfalls: list[str] = []
        self.status = "running"

    @property
    def left(self) -> float:
        """Seconds until the section must end."""
        return self.deadline - time.monotonic()

    def row(self, **values: Any) -> None:
        self.rows.append(values)
        self._write()

    def note(self, line: str) -> None:
        """Something to read beside the figures, such as what is left out and why."""
        print(line, flush=True)
        self.notes.append(line)
        self._write()

    def falls_short(self, line: str) -> None:
        print(f"FALLS SHORT: {line}", flush=True)
        self.shortfalls.append(line)
        self._write()

    def require(self, right: bool, line: str) -> None:
        """A check: ``line`` is what is wrong if it is not ``right``."""
        if not right:
            self.falls_short(line)

    def end(self, status: str) -> None:
        self.status = status
        self._write()

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "seconds": round(time.monotonic() - self.start, 1),
            "rows": self.rows,
            "notes": self.notes,
            "shortfalls": self.shortfalls,
        }

    def _write(self) -> None:
        if self.path is not None:
            whole = self.path.with_suffix(".new")
            whole.write_text(json.dumps(self.as_dict()))
            whole.replace(self.path)


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as Markdown; those with other columns are another table."""
    lines: list[str] = []
    columns: list[str] = []
    for row in rows:
        if list(row) != columns:
            columns = list(row)
            lines += ["", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
        lines.append(f"| {' | '.join(_shown(row[name]) for name in columns)} |")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
