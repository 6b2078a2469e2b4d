"""A run as it goes: a live bar on a terminal, a line now and then elsewhere, nothing if quiet."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

# Seconds between lines where there is no terminal.
_EVERY = 15.0


class Display:
    """Shows progress in [0, 1] and the numbers of the last logged row."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self.title, self.quiet = title, quiet
        self.console = Console(highlight=False, soft_wrap=True)
        self.bar: Progress | None = None
        self.numbers = ""
        self.last_line = 0.0
        self.started = 0.0
        self.first: float | None = None

    def __enter__(self) -> "Display":
        if self.console.is_terminal and not self.quiet:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                TextColumn("{task.percentage:>3.0f}%  {task.fields[left]}  {task.fields[numbers]}"),
                console=self.console,
            )
            self.task = self.bar.add_task(self.title, total=1.0, numbers="", left="")
            self.bar.start()
        return self

    def __exit__(self, *failure) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, progress: float, row: Mapping[str, Any] | None = None) -> None:
        """After every step; ``row`` where one was logged."""
        if self.quiet:
            return
        if self.first is None:
            self.first, self.started = progress, time.monotonic()
        if row is not None:
            self.numbers = describe(row)
        left = self._left(progress)
        if self.bar is not None:
            self.bar.update(self.task, completed=progress, numbers=self.numbers, left=left)
        elif row is not None and (row.get("evaluation") or self._due()):
            self.say(f"{self.title} {progress:4.0%}  {left}  {self.numbers}")

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            (self.bar.console if self.bar else self.console).print(text, markup=False)

    def _due(self) -> bool:
        now = time.monotonic()
        if now - self.last_line < _EVERY:
            return False
        self.last_line = now
        return True

    def _left(self, progress: float) -> str:
        done = progress - (self.first or 0.0)
        if done <= 0:
            return "--:-- left"
        seconds = round((time.monotonic() - self.started) * (1 - progress) / done)
        hours, minutes = seconds // 3600, seconds // 60 % 60
        clock = f"{minutes:02d}:{seconds % 60:02d}"
        return f"{f'{hours}:' if hours else ''}{clock} left"


def describe(row: Mapping[str, Any]) -> str:
    """The numbers of a log row on one line."""
    parts = [f"step {row['step']:,}" + (" held out" if row.get("evaluation") else "")]
    for key, (name, form) in _SHOWN.items():
        if key in row:
            parts.append(f"{name} {row[key]:{form}}")
    return "  ".join(parts)


_SHOWN = {
    "loss": ("loss", ".3f"),
    "mlm_loss": ("MLM", ".3f"),
    "mlm_unigram_loss": ("unigram baseline", ".3f"),
    "mlm_accuracy": ("accuracy", ".1%"),
    "nsp_loss": ("NSP", ".3f"),
    "nsp_accuracy": ("accuracy", ".1%"),
    "accuracy": ("accuracy", ".1%"),
    "macro_f1": ("macro-F1", ".3f"),
    "tokens_per_second": ("tokens/s", ",.0f"),
}
