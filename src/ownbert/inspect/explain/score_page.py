"""The most unusual scored texts as a page of explanations, coloured by surprisal."""

from heapq import heappush, heappushpop
from pathlib import Path

import numpy as np

from ownbert.inference.scoring.score import ScoredText
from ownbert.inspect.explain.explain_page import write_page
from ownbert.inspect.explain.explanation import Explanation
from ownbert.inspect.explain.input_words import Word
from ownbert.language import translated

# Method name of these explanations; the page uses another scale for it.
SURPRISAL = "surprisal"
# Maximum texts on the page.
_MOST = 200


class MostUnusual:
    """Keeps the texts with the highest scores among all texts that it is called with.

    Attributes:
        count: number of texts.
        flagged: number of flagged texts; None without a profile of normal texts.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, ScoredText]] = []
        self.count, self.flagged = 0, None

    def __call__(self, scored: ScoredText) -> None:
        """Add a text, and drop the least unusual one if there are too many."""
        self.count += 1
        if scored.flag is not None:
            self.flagged = (self.flagged or 0) + scored.flag
        if scored.score is not None and scored.tokens:
            add = heappush if len(self._kept) < _MOST else heappushpop
            add(self._kept, (scored.score, -self.count, scored))

    def write(self, path: Path, *, title: str) -> None:
        """Write the page, most unusual text first.

        Raises:
            InputError: there were no texts.
        """
        kept = sorted(self._kept, reverse=True)
        explanations = [_explained(-number - 1, scored) for _, number, scored in kept]
        write_page(explanations, path, title=title)


def _explained(row: int, scored: ScoredText) -> Explanation:
    name = translated(f"row {row + 1:,}") if scored.id is None else str(scored.id)
    found = ["surprisal"] if scored.flag is None else ["flagged" if scored.flag else "not flagged"]
    target = "; ".join([f"{name}: {translated(found[0])}", *scored.reasons])
    words = [Word(0, start, end, (i,)) for i, (start, end) in enumerate(scored.spans)]
    values = np.array(scored.surprisals)
    return Explanation(
        row, (scored.text,), target, scored.score or 0.0, SURPRISAL, tuple(words), values
    )
