"""Exact contributions of words for ``fit`` folders that only use linear models.

An output of a linear model is a sum over the n-grams of a text, so no approximation is needed. C
labels.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG
from ownbert.exceptions import InputError
from ownbert.inference.blend import Blend
from ownbert.inference.opened_blend import OpenedBlend
from ownbert.inspect.explain.input_words import Word
from ownbert.inspect.explain.targets import chosen_labels, likeliest
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.rows import Row
from ownbert.views.contributions import contributions
from ownbert.views.linear_models import LinearModel
from ownbert.views.tokens import spans_of

CONTRIBUTIONS = "contributions"


def answers_linearly(folder: Path, blend: Blend) -> bool:
    """Whether a folder's predictions come from linear models only, or it has no network."""
    kinds = {member.kind for member in blend.members}
    return kinds == {"linear"} or not (folder / CONFIG).is_file()


class LinearShares:
    """Contributions of words in the linear models of a folder.

    Raises:
        InputError: the folder also uses other models.
    """

    def __init__(self, opened: OpenedBlend) -> None:
        self.predictor = opened
        if any(member.kind != "linear" for member in opened.blend.members):
            raise InputError(
                f"{opened.folder} also predicts from vectors of a network, which has no head to "
                "explain; run fit with more --minutes"
            )

    def targets(self, row: Row, target: str | None, most: int) -> list[tuple[int, str, float]]:
        """(index, name, probability or value) of each target to explain."""
        task: Any = self.predictor.task
        outputs = self._outputs(row)
        chosen = chosen_labels(task, outputs, target, most)
        return [(i, str(task.labels[i]), float(outputs[i])) for i in chosen]

    def answers(self, row: Row) -> tuple[tuple[str, float], ...]:
        """The most probable labels of a row, for single-label tasks."""
        task: Any = self.predictor.task
        single = isinstance(task, SingleLabelTask)
        return likeliest(self._outputs(row), task.labels.__getitem__) if single else ()

    def _outputs(self, row: Row) -> np.ndarray:
        return np.asarray(self.predictor.raws([row])[0][0])

    def words(self, row: Row) -> list[Word]:
        """The words of a row: separated by spaces, or single characters in scripts without
        spaces."""
        kind = "marked" if self._kind == "chinese" else "ids"  # vowel signs stay with letters
        return [
            Word(number, start, end, ())
            for number, text in enumerate(row.texts)
            for start, end in spans_of(text, kind)
        ]

    @property
    def _kind(self) -> str:
        return next(view.kind for _, view in self._views())

    def _views(self) -> Iterator[tuple[float, Any]]:
        """Yield each linear model with its weight."""
        members = self.predictor.scores.models
        for member, models in zip(self.predictor.blend.members, members, strict=True):
            for view in models:
                yield member.weight / len(models), view

    def shares(self, row: Row, target: int, words: list[Word]) -> np.ndarray:
        """Contributions (words) to the output for a label, relative to the other labels."""
        shares = [np.zeros(len(text)) for text in row.texts]
        for weight, view in self._views():
            direction = _direction(view.model, target)
            parts = contributions(view.view, row.texts, view.kind, direction)
            shares = [one + weight * other for one, other in zip(shares, parts, strict=True)]
        return np.asarray([shares[word.text][word.start : word.end].sum() for word in words])


def _direction(model: LinearModel, target: int) -> np.ndarray:
    """(F) weights of an output; for softmax, minus the mean over outputs."""
    weights = model.weights[:, target].astype(np.float64)
    return weights - model.weights.mean(1) if model.link == "softmax" else weights
