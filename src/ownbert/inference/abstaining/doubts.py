"""Answers that may be refused or be sets of labels. N rows, C labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ownbert.inference.opened import Opened
from ownbert.tasks.rows import OutputOptions, Row

_ROUNDING = 1e-6  # of a probability that is computed in another batch


class Doubts:
    """What a folder does not know.

    Args:
        opened: the folder.
        options: the share of texts that may be refused, and the coverage of label sets.
        calibrate, say: as of ``held_out_of``.

    Attributes:
        identity: of the held-out rows.

    Raises:
        InputError: there are no held-out rows, or too few of them.
    """

    def __init__(
        self,
        opened: Opened,
        options: OutputOptions,
        calibrate: Any = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        from ownbert.inference.abstaining.calibrate import embedder_of, held_out_of

        opened.task.refuse_output_options(options)
        self.labels = opened.task.labels
        held_out = held_out_of(opened, calibrate, say, options)
        self.identity = held_out.identity
        self._scope, self._embedder, self.threshold, self.least = held_out.scope, None, None, None
        if options.coverage is not None:
            self.least = held_out.least_probability(options.coverage) - _ROUNDING
        if options.unknown is not None:
            self.threshold = held_out.threshold(options.unknown)
            self._embedder = embedder_of(opened, held_out)

    def scores(self, probabilities: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
        """(N) the higher, the less likely a row has one of the labels. probabilities: (N, C)."""
        if self._scope is None or self._embedder is None:
            return 1 - probabilities.max(1)
        from ownbert.inference.embedding.embedding_outputs import of_length_one
        from ownbert.inference.frozen_probe import embed_rows

        texts = [row.texts for row in rows]
        return self._scope.scores(of_length_one(embed_rows(self._embedder, texts)))

    def sets(self, probabilities: np.ndarray) -> list[list[str]]:
        """For each row the labels that cannot be excluded, the most probable first; may be none.
        probabilities: (N, C)."""
        order = np.argsort(-probabilities, axis=1, kind="stable")
        counts = (probabilities >= self.least).sum(1)
        return [
            [self.labels[i] for i in own[:count]] for own, count in zip(order, counts, strict=True)
        ]

    def added_to(
        self, outputs: Sequence[dict[str, Any]], raws: Sequence[np.ndarray], rows: Sequence[Row]
    ) -> list[dict[str, Any]]:
        """Rows of a file with ``labels``, ``unknown`` and ``unknown_score``, as far as these were
        asked for; an unknown text has no label."""
        found, probabilities = [dict(output) for output in outputs], np.stack(raws)
        if self.least is not None:
            for output, labels in zip(found, self.sets(probabilities), strict=True):
                output["labels"] = labels
        if self.threshold is not None:
            scores = self.scores(probabilities, rows)
            for output, score in zip(found, scores.tolist(), strict=True):
                output["unknown"] = score > self.threshold
                output["unknown_score"] = round(score, 4)
                if output["unknown"]:
                    labels = [k for k in output if k == "label" or k.startswith("label_")]
                    output |= dict.fromkeys(labels)
        return found


def output_rows(
    opened: Opened, rows: Sequence[Row], options: OutputOptions, doubts: Doubts | None
) -> list[dict[str, Any]]:
    """The answers to some rows, as rows of a file without what tells these apart."""
    raws, decided = opened.answered(rows)
    found = [
        opened.task.output_row(each, row, options) for each, row in zip(decided, rows, strict=True)
    ]
    return found if doubts is None else doubts.added_to(found, raws, rows)
