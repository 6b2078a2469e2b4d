"""Default training settings: epochs, learning rate and batch size.

They depend on the rows, the model size and its origin. All tasks and ``fit`` use them.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from ownbert.exceptions import InputError
from ownbert.files.json_files import read_yaml
from ownbert.run.file_names import RECIPE

# With fewer rows, training has more epochs and smaller batches.
FEW = 3000
_BATCH_OF_FEW, _BATCH = 16, 32
_EPOCHS_OF_FEW, _EPOCHS = 12, 4
# Total rows of all epochs for a small model trained by the user, which benefits from longer
# training: 12 instead of 4 epochs gained one point of macro-F1 with 7,000 rows and two of micro-F1
# with 8,000 multi-label rows (docs/lab/fit.md).
_ROWS_OF_OWN_MODEL = 100_000
# Minimum updates with few rows: with fewer, a new head hardly leaves its random initialisation.
# Maximum epochs for reaching them.
_FEWEST_STEPS, _MOST_EPOCHS = 200, 50
# Peak learning rates by hidden size for few examples; halved for many. The one for 128 was measured
# (with 280 and 7,000 examples); those of larger models are BERT's usual range.
_RATES = ((128, 1e-3), (256, 5e-4), (512, 2e-4), (768, 5e-5))
_LARGE_RATE = 2e-5
# Factor of the learning rate if the head is initialised as a linear model.
_RATE_OF_LINEAR = 0.3
# Maximum hidden size of a model for which a few minutes of pretraining suffice.
_SMALL = 256


@dataclass(frozen=True)
class DefaultSettings:
    """The defaults for ``rows`` training rows and a model. ``own``: whether the user pretrained a
    small model (``is_small_and_own``); ``linear``: whether the head is initialised as a linear
    model."""

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
        """Number of epochs for ``steps`` updates per epoch. ``seen``: share of the tokens read per
        epoch, below 1 if windows of long documents are sampled."""
        if not self.few:
            longer = _ROWS_OF_OWN_MODEL // self.rows if self.own else 0
            return max(_EPOCHS, min(_EPOCHS_OF_FEW, longer))
        epochs = max(_EPOCHS_OF_FEW, math.ceil(_FEWEST_STEPS / steps)) / seen
        return min(_MOST_EPOCHS, math.ceil(epochs))

    @property
    def learning_rate(self) -> float:
        """The peak learning rate."""
        peak = peak_rate(self.hidden_size) * (_RATE_OF_LINEAR if self.linear else 1)
        return peak if self.few or self.own else peak / 2


def epochs_per_evaluation(epochs: int) -> int:
    """Epochs between evaluations if the number of epochs is a default. An epoch of very few rows
    has only a few updates, so that patience would stop the run before it has learnt anything."""
    return math.ceil(epochs / _EPOCHS_OF_FEW)


def peak_rate(hidden_size: int) -> float:
    """The default peak learning rate for a hidden size, with few examples."""
    return next((rate for size, rate in _RATES if hidden_size <= size), _LARGE_RATE)


def is_small_and_own(folder: str, hidden_size: int) -> bool:
    """Whether a model is small and was pretrained from scratch by ``ownbert pretrain``.

    Such a model has little knowledge that a high learning rate could destroy.
    """
    path = Path(folder) / RECIPE
    if hidden_size > _SMALL or not folder or not path.is_file():
        return False
    try:
        recipe = read_yaml(path)
        return bool(recipe["data"]["tokens"]) and recipe["model"].get("init_from") is None
    except (InputError, KeyError, TypeError, AttributeError):
        return False  # not a pretraining recipe
