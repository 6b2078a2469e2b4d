"""All that a run is made of at one moment, saved whole or not at all."""

import pickle
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ownbert.data.loader import Position
from ownbert.errors import InputError
from ownbert.files import atomic_path
from ownbert.nn.model import Model

FOLDER = "checkpoints"
_KEEP = 2


@dataclass
class TrainState:
    """A run: weights, optimiser, where the loader stands, clocks, and the best evaluation.

    seconds: time in the loop, over all resumptions. best: {"step", "value", "since"} of the
    measure that is watched, since when the value has stood; best_weights: the weights then, where
    they are to be restored at the end.
    """

    model: Model
    optimizer: torch.optim.Optimizer
    position: Position = field(default_factory=Position)
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: dict[str, float] | None = None
    best_weights: dict[str, torch.Tensor] | None = None

    def save(self, folder: Path) -> Path:
        """Write the state of this step below ``folder`` and keep the last two."""
        path = folder / FOLDER / f"step-{self.step:08d}.pt"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "position": asdict(self.position),
            "clock": {"step": self.step, "tokens": self.tokens, "seconds": self.seconds},
            "best": self.best,
            "best_weights": self.best_weights,
            "random": _random_state(),
        }
        with atomic_path(path) as temporary:
            torch.save(state, temporary)
        for old in sorted(path.parent.glob("step-*.pt"))[:-_KEEP]:
            old.unlink()
        return path

    def restore(self, path: Path) -> None:
        """Go back to a saved state. Raises ``InputError`` for a file that cannot be read."""
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, KeyError, ValueError, EOFError, OSError, pickle.PickleError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{path} cannot be read ({reason}); delete it to go on from the one before it"
            ) from None
        self.position = Position(**state["position"])
        self.step = state["clock"]["step"]
        self.tokens = state["clock"]["tokens"]
        self.seconds = state["clock"]["seconds"]
        self.best, self.best_weights = state["best"], state["best_weights"]
        _set_random_state(state["random"])


def newest(folder: Path) -> Path | None:
    """The last state saved below ``folder``."""
    return max((folder / FOLDER).glob("step-*.pt"), default=None)


def _random_state() -> dict[str, Any]:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def remove_states(folder: Path) -> None:
    """Delete the saved states of a run that has come to its end."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
