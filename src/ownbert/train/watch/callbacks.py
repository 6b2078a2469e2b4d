"""Callbacks of a training run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Callbacks:
    """Functions called during training, in the first process; their exceptions end the run.

    Args:
        on_log: called with each row of log.jsonl with training losses, as a mapping.
        on_evaluate: called with each row with metrics of an evaluation.
        on_save: called with the folder of a saved state (in pretraining also a model folder), and
            a mapping of its step and seconds.
    """

    on_log: Callable[[Row], object] | None = None
    on_evaluate: Callable[[Row], object] | None = None
    on_save: Callable[[Path, Row], object] | None = None

    def logged(self, row: Row) -> None:
        """Dispatch a row of the log."""
        called = self.on_evaluate if row.get("evaluation") else self.on_log
        if called is not None:
            called(dict(row))

    def saved(self, folder: Path, step: int, seconds: float) -> None:
        """Report a saved state."""
        if self.on_save is not None:
            self.on_save(folder, {"step": step, "seconds": seconds})
