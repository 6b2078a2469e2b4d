"""A folder of ``ownbert fit`` in use: several models whose scores are added."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG
from ownbert.data.readers.columns import ColumnNames
from ownbert.errors import InputError
from ownbert.hub import model_folder
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.frozen_probe import FrozenProbe
from ownbert.inference.predictor import NetworkPredictor, characters
from ownbert.run.run_folder import BLEND
from ownbert.tasks.batched_forward import blocks
from ownbert.tasks.rows import Row
from ownbert.train.device import pick_device, pick_precision
from ownbert.views.blending import blend, from_scores, to_scores
from ownbert.views.linear_view import LinearView


class MemberScorer:
    """One model of a blend, or several whose scores are averaged.

    Args:
        folder: of the blend.
        kind: network, linear or frozen.
        folders: of the models, relative to ``folder``.
        device, precision: as of ``NetworkPredictor``.

    Attributes:
        networks: those of kind network.

    Raises:
        InputError: a folder cannot be used.
    """

    def __init__(
        self, folder: Path, kind: str, folders: Sequence[str], device: str, precision: str
    ) -> None:
        paths = [folder / path for path in folders]
        self.networks: list[NetworkPredictor] = []
        self.linear: list[LinearView | FrozenProbe] = []
        if kind == "network":
            self.networks = [NetworkPredictor(p, device=device, precision=precision) for p in paths]
        else:
            loader = FrozenProbe if kind == "frozen" else LinearView
            self.linear = [loader.load(path) for path in paths]

    def __call__(self, rows: Sequence[Row]) -> np.ndarray:
        """(N, C) scores of N rows."""
        found = [network_scores(network, rows) for network in self.networks]
        texts = [row.texts for row in rows]
        found += [model.scores(texts) for model in self.linear]
        return np.mean(found, axis=0)


def score_all(scorer: Callable[[Sequence[Row]], np.ndarray], rows: Sequence[Row]) -> np.ndarray:
    """(N, C) scores of any number of rows, in blocks that fit in memory."""
    return np.concatenate([scorer(block) for block in blocks(rows, size=characters)])


def network_scores(network: NetworkPredictor, rows: Sequence[Row]) -> np.ndarray:
    """(N, C) scores of N rows."""
    return to_scores(network.task.name, np.stack(network.raws(rows)[0]))


class BlendPredictor:
    """A folder of ``ownbert fit``: several models whose scores are added with weights.

    Args:
        folder, columns, device, precision: as of ``NetworkPredictor``.

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        columns: ColumnNames | None = None,
        device: str = "auto",
        precision: str = "float32",
    ) -> None:
        self.folder = model_folder(folder)
        self.blend = Blend.read(self.folder)
        self.task = self.blend.task(columns)
        self.precision = pick_precision(precision, pick_device(device))
        self._scorers = [
            MemberScorer(self.folder, member.kind, member.folders, device, self.precision)
            for member in self.blend.members
        ]
        for scorer, member in zip(self._scorers, self.blend.members, strict=True):
            self._check(scorer, member)

    def _check(self, scorer: MemberScorer, member: BlendMember) -> None:
        """Refuse models that answer otherwise than the blend says; the folder may be foreign."""
        task, size = self.task, len(self.task.labels)
        texts = ("a",) * (2 if task.pair else 1)  # pyright: ignore
        right = all(
            (own.task.name, tuple(own.task.labels)) == (task.name, tuple(task.labels))
            for own in scorer.networks
        )
        try:
            right &= all(own.scores([texts]).shape == (1, size) for own in scorer.linear)
        except (ValueError, IndexError, TypeError):
            right = False
        if not right:
            raise InputError(
                f"{self.folder / BLEND}: the model {member.name!r} does not answer with the "
                f"{size} {task.label_unit} of the blend, or its files are damaged"
            )

    @property
    def members(self) -> list[Path]:
        """The folder itself and those of all models."""
        paths = [self.folder / path for member in self.blend.members for path in member.folders]
        return list(dict.fromkeys([self.folder, *paths]))

    def __call__(self, rows: Sequence[Row]) -> list[Any]:
        """The answer of the task to each row."""
        raws, notes = self.raws(rows)
        return [self.task.decide(*each) for each in zip(raws, rows, notes, strict=True)]

    def raws(self, rows: Sequence[Row]) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
        """As of a ``NetworkPredictor``; there are no notes."""
        scores = self.scores(rows) + np.asarray(self.blend.offsets)
        return list(from_scores(self.task.name, scores)), [None] * len(rows)

    def scores(self, rows: Sequence[Row]) -> np.ndarray:
        """(N, C): the sum of the members' scores with their weights, without the offsets."""
        members = [scorer(rows) for scorer in self._scorers]
        return blend(members, np.asarray([member.weight for member in self.blend.members]))

    def warnings(self) -> Iterator[str]:
        """Warnings of the first network; the others read the rows in the same way."""
        for scorer in self._scorers:
            if scorer.networks:
                yield from scorer.networks[0].warnings()
                return


def open_predictor(
    folder: str | Path,
    *,
    columns: ColumnNames | None = None,
    device: str = "auto",
    precision: str = "float32",
    network: bool = False,
) -> "NetworkPredictor | BlendPredictor":
    """The predictor of a folder: a blend, an ensemble or one network.

    Args:
        network: of a blend only the network that is its Hugging Face folder.

    Raises:
        InputError: the folder cannot be used.
    """
    given: dict[str, Any] = {"columns": columns, "device": device, "precision": precision}
    folder = model_folder(folder)
    if (folder / BLEND).exists():
        if not network:
            return BlendPredictor(folder, **given)
        if not (folder / CONFIG).exists():
            raise InputError(f"{folder} has no network yet, only linear models")
    return NetworkPredictor(folder, **given)
