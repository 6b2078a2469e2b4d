"""Functions of the user's that a training run calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Callbacks:
    """What is called while a model is trained, in the first process; what they raise ends the run.

    Args:
        on_log: takes each row of log.jsonl with the losses of the last steps, as a mapping.
        on_evaluate: takes each row with the metrics of an evaluation.
        on_save: takes the folder in which the state has been saved (in pretraining with the model
            as an ordinary folder), and its step and seconds.
    """

    on_log: Callable[[Row], object] | None = None
    on_evaluate: Callable[[Row], object] | None = None
    on_save: Callable[[Path, Row], object] | None = None

    def logged(self, row: Row) -> None:
        """Pass on a row of the log."""
        called = self.on_evaluate if row.get("evaluation") else self.on_log
        if called is not None:
            called(dict(row))

    def saved(self, folder: Path, step: int, seconds: float) -> None:
        """Say that the state has been saved."""
        if self.on_save is not None:
            self.on_save(folder, {"step": step, "seconds": seconds})
