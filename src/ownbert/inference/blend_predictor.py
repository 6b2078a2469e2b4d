"""A folder of ``ownbert fit`` in use: several models whose scores are added."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.data.readers.columns import ColumnNames
from ownbert.errors import InputError
from ownbert.hub import model_folder
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.engines import AUTO, TORCH, Choice
from ownbert.inference.frozen_probe import FrozenProbe
from ownbert.inference.predictor import NetworkPredictor, characters
from ownbert.run.file_names import BLEND
from ownbert.tasks.batched_forward import blocks
from ownbert.tasks.rows import Row
from ownbert.text.tokenizer import Tokenizer
from ownbert.time_limit import check_time
from ownbert.train.device import pick_device, pick_precision
from ownbert.views.blending import blend, from_scores, to_scores
from ownbert.views.linear_view import LinearView

# Rows that are scored between two looks at the clock.
_TOGETHER = 512


class MemberScorer:
    """One model of a blend, or several whose scores are averaged.

    Args:
        folder: of the blend.
        kind: network, linear or frozen.
        folders: of the models, relative to ``folder``.
        device, precision, engine: as of ``NetworkPredictor``.

    Attributes:
        networks: those of kind network.

    Raises:
        InputError: a folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        folders: Sequence[str],
        device: str = "auto",
        precision: str = "float32",
        engine: str | None = None,
    ) -> None:
        paths = [folder / path for path in folders]
        self.networks: list[NetworkPredictor] = []
        self.linear: list[LinearView | FrozenProbe] = []
        given: dict[str, Any] = {"device": device, "precision": precision}
        if kind == "network":
            self.networks = [NetworkPredictor(path, **given, engine=engine) for path in paths]
        elif kind == "frozen":
            self.linear = [FrozenProbe.load(path, **given) for path in paths]
        else:
            self.linear = [LinearView.load(path) for path in paths]

    def __call__(self, rows: Sequence[Row]) -> np.ndarray:
        """(N, C) scores of N rows."""
        found = [network_scores(network, rows) for network in self.networks]
        texts = [row.texts for row in rows]
        found += [model.scores(texts) for model in self.linear]
        return np.mean(found, axis=0)


def score_all(scorer: Callable[[Sequence[Row]], np.ndarray], rows: Sequence[Row]) -> np.ndarray:
    """(N, C) scores of any number of rows, in blocks that fit in memory.

    Raises:
        OutOfTime: the time limit has passed, if there is one.
    """
    found = []
    for block in blocks(rows, rows=_TOGETHER, size=characters):
        check_time()
        found.append(scorer(block))
    return np.concatenate(found)


def network_scores(network: NetworkPredictor, rows: Sequence[Row]) -> np.ndarray:
    """(N, C) scores of N rows."""
    return to_scores(network.task.name, np.stack(network.raws(rows)[0]))


class BlendPredictor:
    """A folder of ``ownbert fit``: several models whose scores are added with weights.

    Args:
        folder, columns, device, precision, engine: as of ``NetworkPredictor``; the engine is that
            of its networks.
        blend: of the folder, where it has been read already.

    Raises:
        InputError: the folder cannot be used.
    """

    precision_note = ""

    def __init__(
        self,
        folder: str | Path,
        *,
        blend: Blend | None = None,
        columns: ColumnNames | None = None,
        device: str = "auto",
        precision: str = "float32",
        engine: str | None = None,
    ) -> None:
        self.folder = model_folder(folder)
        self.blend = Blend.read(self.folder) if blend is None else blend
        self.task = self.blend.task(columns)
        self.precision = pick_precision(precision, pick_device(device))
        self.scorers = [
            MemberScorer(self.folder, member.kind, member.folders, device, self.precision, engine)
            for member in self.blend.members
        ]
        for scorer, member in zip(self.scorers, self.blend.members, strict=True):
            self._check(scorer, member)
        if engine not in (None, AUTO, TORCH) and not self.engines:
            raise InputError(f"{self.folder} has no network for --engine {engine}; leave it out")

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
        members = [scorer(rows) for scorer in self.scorers]
        return blend(members, np.asarray([member.weight for member in self.blend.members]))

    @property
    def networks(self) -> list[NetworkPredictor]:
        """The members that are networks."""
        return [network for scorer in self.scorers for network in scorer.networks]

    @property
    def tokenizer(self) -> Tokenizer | None:
        """That of its first network, fine-tuned or frozen; None: there is none."""
        networks = [
            *self.networks,
            *(m.embedder for s in self.scorers for m in s.linear if isinstance(m, FrozenProbe)),
        ]
        return networks[0].tokenizer if networks else None

    @property
    def engines(self) -> list[Choice]:
        """What computes its networks."""
        return [choice for network in self.networks for choice in network.engines]

    def notes(self) -> Iterator[str]:
        """As of a ``NetworkPredictor``."""
        chosen = (self.precision_note, *(choice.note for choice in self.engines))
        yield from dict.fromkeys(filter(None, chosen))

    def warnings(self) -> Iterator[str]:
        """Warnings of the first network; the others read the rows in the same way."""
        for network in self.networks[:1]:
            yield from network.warnings()
