"""The topics of N texts as data."""

from dataclasses import dataclass, field

import numpy as np

from ownbert.exceptions import fields_repr

_NAME, _TEXT = 4, 40  # words; characters of a text


@dataclass(frozen=True)
class Topic:
    """Similar texts.

    Args:
        words: most distinctive words, most distinctive first.
        size: number of texts.
        typical: indices and texts nearest to the centre.
        over_time: number of texts in each period.
    """

    words: list[str]
    size: int
    typical: list[tuple[int, str]] = field(default_factory=list)
    over_time: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        return fields_repr(self)

    @property
    def name(self) -> str:
        """The first words, or the start of the most typical text if there are no words."""
        text = self.typical[0][1][:_TEXT].strip() if self.typical else ""
        return ", ".join(self.words[:_NAME]) or text or "-"


@dataclass(frozen=True)
class Topics:
    """The topics of texts, largest first.

    Args:
        topics: C topics.
        of_text: (N) index of the topic of each text.
        similarity: (N) cosine of each text with the centre of its topic.
        periods: names of the periods in order; empty without dates.
    """

    topics: list[Topic]
    of_text: np.ndarray
    similarity: np.ndarray
    periods: list[str]

    def __repr__(self) -> str:
        return fields_repr(self)
