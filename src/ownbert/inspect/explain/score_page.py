"""The most unusual scored texts as a page of explanations, coloured by surprisal."""

from heapq import heappush, heappushpop
from pathlib import Path

import numpy as np

from ownbert.inference.scoring.score import ScoredText
from ownbert.inspect.explain.explain import Explanation
from ownbert.inspect.explain.explain_page import write_page
from ownbert.inspect.explain.input_words import Word
from ownbert.language import translated

# Method name of these explanations; the page uses another scale for it.
SURPRISAL = "surprisal"
# Maximum texts on the page.
_MOST = 200


class MostUnusual:
    """Keeps the texts with the highest scores among all texts that it is called with."""

    def __init__(self) -> None:
        self._kept: list[tuple[float, int, ScoredText]] = []
        self._count = 0

    def __call__(self, scored: ScoredText) -> None:
        """Add a text, and drop the least unusual one if there are too many."""
        self._count += 1
        if scored.score is not None and scored.tokens:
            add = heappush if len(self._kept) < _MOST else heappushpop
            add(self._kept, (scored.score, -self._count, scored))

    def write(self, path: Path, *, title: str) -> None:
        """Write the page, most unusual text first.

        Raises:
            InputError: there were no texts.
        """
        explanations = [
            _explained(row, each[2]) for row, each in enumerate(sorted(self._kept)[::-1])
        ]
        write_page(explanations, path, title=title)


def _explained(row: int, scored: ScoredText) -> Explanation:
    if scored.flag is None:
        target = translated("surprisal")
    else:
        flag = translated("flagged") if scored.flag else translated("not flagged")
        target = "; ".join([flag, *scored.reasons])
    words = [Word(0, start, end, (i,)) for i, (start, end) in enumerate(scored.spans)]
    values = np.array(scored.surprisals)
    return Explanation(
        row, (scored.text,), target, scored.score or 0.0, SURPRISAL, tuple(words), values
    )
