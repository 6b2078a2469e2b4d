"""What a run leaves to look at: log.jsonl, a row a logged step, and curves.png."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ownbert.files import atomic_path, write_text

LOG = "log.jsonl"
CURVES = "curves.png"


class RunLog:
    """Rows of ``log.jsonl``. Rows after ``step`` are dropped, so that a resumed run has each step
    once; ``step`` None starts anew."""

    def __init__(self, folder: Path, *, step: int | None = None) -> None:
        self.path = folder / LOG
        rows = [] if step is None else [r for r in read_log(folder) if r["step"] <= step]
        write_text(self.path, "".join(json.dumps(row) + "\n" for row in rows))
        self.rows = rows
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        rounded = {k: _rounded(v) for k, v in row.items()}
        self.rows.append(rounded)
        self._file.write(json.dumps(rounded) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_log(folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of a log; a last row that was cut off is left out."""
    path = folder / LOG
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return


def _rounded(value: Any) -> Any:
    return float(f"{value:.8g}") if isinstance(value, float) else value


def draw_curves(folder: Path, rows: list[dict[str, Any]]) -> Path | None:
    """Losses, accuracies and other measures over the steps; None where matplotlib is missing or
    nothing was logged."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    panels = {
        "loss": [k for k in _keys(rows) if k.endswith("_loss")],
        "accuracy": [k for k in _keys(rows) if k.endswith(("accuracy", "macro_f1"))],
    }
    panels = {title: keys for title, keys in panels.items() if keys}
    if not panels:
        return None
    figure = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, keys) in zip(axes, panels.items(), strict=True):
        for number, key in enumerate(keys):
            _draw(axis, rows, key, f"C{number}")
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    path = folder / CURVES
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
    return path


def _draw(axis: Any, rows: list[dict[str, Any]], key: str, color: str) -> None:
    """Training as a thin line, evaluation as a thick one; a baseline is dashed."""
    for held_out in (False, True):
        points = [(r["step"], r[key]) for r in rows if key in r and _is_eval(r) == held_out]
        if not points:
            continue
        name = key.replace("_", " ") + (" (held out)" if held_out else "")
        style = "--" if "unigram" in key else "-"
        axis.plot(
            *zip(*points, strict=True),
            style,
            color=color,
            label=name,
            linewidth=2 if held_out else 1,
            alpha=1 if held_out else 0.5,
            marker="o" if held_out else "",
            markersize=3,
        )


def _is_eval(row: Mapping[str, Any]) -> bool:
    return bool(row.get("evaluation"))


def _keys(rows: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))
