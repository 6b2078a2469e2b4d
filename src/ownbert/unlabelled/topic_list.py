"""Topics of N texts, as they were found."""

from dataclasses import dataclass, field

import numpy as np

_NAME = 4  # words


@dataclass(frozen=True)
class Topic:
    """Texts that are alike.

    Args:
        words: the most distinctive first.
        size: how many texts it has.
        typical: indices of the texts nearest to the centre, and the texts.
        over_time: how many of its texts are of each period.
    """

    words: list[str]
    size: int
    typical: list[tuple[int, str]] = field(default_factory=list)
    over_time: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its first words."""
        return ", ".join(self.words[:_NAME])


@dataclass(frozen=True)
class Topics:
    """The topics of texts, the largest first.

    Args:
        topics: C topics.
        of_text: (N) the number of the topic of each text, from 0.
        similarity: (N) the cosine of each text with the centre of its topic.
        periods: names of the periods in their order; none without dates.
    """

    topics: list[Topic]
    of_text: np.ndarray
    similarity: np.ndarray
    periods: list[str]
