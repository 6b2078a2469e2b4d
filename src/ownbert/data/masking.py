"""Which tokens are hidden from the model, and what it sees instead."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ownbert.errors import InputError


@dataclass(frozen=True)
class Masking:
    """BERT's masking (Devlin et al. 2019, section 3.1, task 1).

    ``rate`` of the tokens become targets; of these 80 % show [MASK], 10 % a random token of the
    real vocabulary, 10 % themselves. Special tokens are never targets and never replacements:
    ``ordinary`` (V) is true for all others.
    """

    mask_id: int
    ordinary: np.ndarray
    rate: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise InputError(f"masking rate {self.rate} must be between 0 and 1")

    def __call__(
        self, ids: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids (L) -> what the model sees (L), target positions (m, ascending), what stood there.

        At least one target, if there is any ordinary token.
        """
        candidates = np.flatnonzero(self.ordinary[ids])
        count = min(len(candidates), max(1, round(self.rate * len(candidates))))
        positions = np.sort(rng.choice(candidates, count, replace=False))
        targets = ids[positions]
        draw = rng.random(count)
        shown = np.where(draw < 0.8, self.mask_id, targets)
        replaced = draw >= 0.9
        pool = self.replacements
        shown[replaced] = pool[rng.integers(len(pool), size=int(replaced.sum()))]
        seen = ids.copy()
        seen[positions] = shown
        return seen, positions, targets

    @cached_property
    def replacements(self) -> np.ndarray:
        """Ids that a random replacement is drawn from."""
        return np.flatnonzero(self.ordinary)


def ordinary_tokens(vocab_size: int, special_ids: tuple[int, ...]) -> np.ndarray:
    """(V) true for every token that is not special."""
    ordinary = np.ones(vocab_size, dtype=bool)
    ordinary[list(special_ids)] = False
    return ordinary
