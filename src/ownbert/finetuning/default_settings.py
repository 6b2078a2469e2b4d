"""How long and how fast a model is fine-tuned, where the user does not say.

It follows from the rows, the size of the model and how it was made. All tasks and ``fit`` use it.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from ownbert.errors import InputError
from ownbert.files import read_yaml
from ownbert.run.file_names import RECIPE

# With fewer rows there are more epochs and smaller batches.
FEW = 3000
_BATCH_OF_FEW, _BATCH = 16, 32
_EPOCHS_OF_FEW, _EPOCHS = 12, 4
# Rows of all epochs together for a small model of the user's, which learns longer: 12 instead of 4
# epochs gained a point of macro-F1 with 7,000 rows and two of micro-F1 with 8,000 of several labels
# (docs/lab/fit.md).
_ROWS_OF_OWN = 100_000
# Updates of few rows, at least: with fewer a new head has hardly left its random start. Epochs for
# them, at most.
_FEWEST_STEPS, _MOST_EPOCHS = 200, 50
# Peak learning rates by hidden size for few examples; half of them for many. That of 128 was
# measured (with 280 and 7,000 examples); those of larger models are BERT's usual range.
_RATES = ((128, 1e-3), (256, 5e-4), (512, 2e-4), (768, 5e-5))
_LARGE_RATE = 2e-5
# The share of the rate where the head begins as a linear model.
_RATE_OF_LINEAR = 0.3
# The largest hidden size of a model that a few minutes of pretraining suffice for.
_SMALL = 256


@dataclass(frozen=True)
class DefaultSettings:
    """The defaults for a model and its rows.

    Args:
        rows: to learn from.
        hidden_size: of the model.
        own: whether it is a small model of the user's, as ``is_small_and_own`` tells.
        linear: whether the head begins as a linear model.
    """

    rows: int
    hidden_size: int
    own: bool = False
    linear: bool = False

    @property
    def few(self) -> bool:
        return self.rows < FEW

    @property
    def batch_size(self) -> int:
        return _BATCH_OF_FEW if self.few else _BATCH

    def epochs(self, steps: int, seen: float = 1.0) -> int:
        """Times through the rows.

        Args:
            steps: updates of an epoch.
            seen: share of the tokens that is read in an epoch: of a long document some windows.
        """
        if not self.few:
            longer = _ROWS_OF_OWN // self.rows if self.own else 0
            return max(_EPOCHS, min(_EPOCHS_OF_FEW, longer))
        epochs = max(_EPOCHS_OF_FEW, math.ceil(_FEWEST_STEPS / steps)) / seen
        return min(_MOST_EPOCHS, math.ceil(epochs))

    @property
    def learning_rate(self) -> float:
        """The peak."""
        peak = peak_rate(self.hidden_size) * (_RATE_OF_LINEAR if self.linear else 1)
        return peak if self.few or self.own else peak / 2


def epochs_per_evaluation(epochs: int) -> int:
    """Epochs between two evaluations where the number of epochs is a default.

    An epoch of very few rows is a few updates, and after four of them without a better score a run
    would stop that has not begun to learn.
    """
    return math.ceil(epochs / _EPOCHS_OF_FEW)


def peak_rate(hidden_size: int) -> float:
    """The default peak learning rate by the size of the model, for few examples."""
    return next((rate for size, rate in _RATES if hidden_size <= size), _LARGE_RATE)


def is_small_and_own(folder: str, hidden_size: int) -> bool:
    """Whether ``ownbert pretrain`` has made a small model from new weights, by its recipe.

    Such a model knows little that a larger learning rate could destroy.
    """
    path = Path(folder) / RECIPE
    if hidden_size > _SMALL or not folder or not path.is_file():
        return False
    try:
        recipe = read_yaml(path)
        return bool(recipe["data"]["tokens"]) and recipe["model"].get("init_from") is None
    except (InputError, KeyError, TypeError, AttributeError):
        return False  # a recipe of fine-tuning, or of another program
