"""A ``fit`` folder in use: several models whose weighted logits are added."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import Description
from ownbert.exceptions import InputError
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.engines import AUTO, TORCH, Compute
from ownbert.inference.frozen_probe import FrozenProbe
from ownbert.inference.opened import Networks, Opened, characters, describe_members
from ownbert.language.messages import Option
from ownbert.run.file_names import BLEND
from ownbert.tasks.row_network import blocks
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import UnknownWords
from ownbert.time_limit import check_time, clock_seconds
from ownbert.train.device import pick_device, pick_precision
from ownbert.views.blending import blend, from_scores, rows_without_features
from ownbert.views.linear_models import LinearView

# Rows between checks of the time limit, in ``score_all`` and in ``score_until``.
_BLOCK, _SMALL_BLOCK = 512, 64


class Members:
    """Models whose weighted logits are added; several models of a member are averaged.

    Args:
        folder: folder that model folders are relative to.
        members: members with their weights.
        compute: device, precision (settled) and engine of the networks.
        described: networks of folders that have been read already.

    Attributes:
        models: models of each member.

    Raises:
        InputError: a folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        members: Sequence[BlendMember],
        compute: Compute,
        described: Mapping[Path, Sequence[Description]] = {},
    ) -> None:
        def opened(kind: str, path: Path) -> Networks | LinearView | FrozenProbe:
            if kind == "network":
                return Networks(path, described.get(path) or describe_members(path), compute)
            if kind == "frozen":
                given: Any = {"device": compute.device, "precision": compute.precision}
                return FrozenProbe.load(path, **given)
            return LinearView.load(path)

        self._weights = np.asarray([member.weight for member in members])
        self.models = [[opened(m.kind, folder / path) for path in m.folders] for m in members]

    def __call__(self, rows: Sequence[Row], offsets: np.ndarray | float = 0.0) -> np.ndarray:
        """(N, C) logits of N rows.

        Args:
            offsets: (C) added to the logits, except for rows without any known feature; see
                ``ownbert.views.blending.blend``.
        """
        return self.answers(rows, offsets)[0]

    def answers(
        self, rows: Sequence[Row], offsets: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The logits (N, C) of N rows, and (N) whether they have no known feature."""
        texts = [row.texts for row in rows]
        scores, unknown = [], []
        for models in self.models:
            logits = [
                m.scores(rows) if isinstance(m, Networks) else m.scores(texts) for m in models
            ]
            scores.append(np.mean(logits, axis=0))
            pairs = zip(models, logits, strict=True)
            unknown.append(np.all([_knows_nothing(*pair) for pair in pairs], axis=0))
        without = rows_without_features(self._weights, unknown)
        return blend(scores, self._weights, offsets, unknown), without

    @property
    def networks(self) -> list[Networks]:
        """The members that are networks."""
        return [one for models in self.models for one in models if isinstance(one, Networks)]


def _knows_nothing(model: Networks | LinearView | FrozenProbe, scores: np.ndarray) -> np.ndarray:
    """(N) whether a model is linear and knows no feature of the rows with these scores (N, C)."""
    if isinstance(model, LinearView):
        return model.model.knows_nothing(scores)
    return np.zeros(len(scores), dtype=bool)


def score_until(
    scorer: Callable[[Sequence[Row]], np.ndarray], rows: Iterable[Row], seconds: float
) -> np.ndarray:
    """(n, C) logits of the first n rows, as many as the time permits.

    Raises:
        OutOfTime: the time limit has passed.
    """
    start, scores, rest = clock_seconds(), [], iter(rows)
    while block := list(islice(rest, _SMALL_BLOCK)):
        check_time()
        scores.append(scorer(block))
        if clock_seconds() - start > seconds:
            break
    return np.concatenate(scores)


def score_all(scorer: Callable[[Sequence[Row]], np.ndarray], rows: Sequence[Row]) -> np.ndarray:
    """(N, C) logits of any number of rows, in blocks that fit in memory.

    Raises:
        OutOfTime: the time limit has passed, if there is one.
    """
    scores = []
    for block in blocks(rows, rows=_BLOCK, size=characters):
        check_time()
        scores.append(scorer(block))
    return np.concatenate(scores)


def all_raws(opened: Opened, rows: Sequence[Row]) -> np.ndarray:
    """(N, C) raw outputs of any number of rows, such as probabilities of labels."""
    return score_all(lambda block: np.stack(opened.raws(block)[0]), rows)


class OpenedBlend(Opened):
    """A ``fit`` folder: several models whose weighted logits are added.

    Args:
        folder: the opened folder.
        blend: blend of the folder.
        compute: device, precision (settled) and engine of the networks.
        described: networks that have been read already, by folder.

    Attributes:
        seen: number of rows so far.
        without_features: number of rows so far without any known feature.

    Raises:
        InputError: the folder cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        blend: Blend,
        compute: Compute,
        described: Mapping[Path, Sequence[Description]],
    ) -> None:
        self.folder, self.blend, self.compute, self.task = folder, blend, compute, blend.task
        self.precision = pick_precision(compute.precision or "float32", pick_device(compute.device))
        self.scores = Members(folder, blend.members, compute, described)
        paths = [folder / path for member in blend.members for path in member.folders]
        self.members = list(dict.fromkeys([folder, *paths]))
        self.networks = self.scores.networks
        self.engines = [choice for network in self.networks for choice in network.engines]
        self.seen = self.without_features = 0
        for models, member in zip(self.scores.models, blend.members, strict=True):
            self._check(models, member)
        self.probes = [
            m.embedder for each in self.scores.models for m in each if isinstance(m, FrozenProbe)
        ]
        for probe in self.probes:  # forget the words of the checks
            probe.unknown = UnknownWords(probe.tokenizer)
        self.tokenizer = next((one.tokenizer for one in (*self.networks, *self.probes)), None)
        if compute.engine not in (None, AUTO, TORCH) and not self.engines:
            raise InputError(
                "{folder} has no network for {engine}; omit it",
                self.folder,
                Option("--engine", compute.engine),
            )

    def _check(self, models: Sequence[Any], member: BlendMember) -> None:
        """Reject models whose outputs do not fit the blend, because the folder may be untrusted."""
        task, size = self.task, len(self.task.labels)
        texts = ("a",) * (2 if task.pair else 1)  # pyright: ignore

        def fits(one: Any) -> bool:
            if isinstance(one, Networks):
                return one.task.name == task.name and [*one.task.labels] == [*task.labels]
            return one.scores([texts]).shape == (1, size)

        try:
            right = all(map(fits, models))
        except (ValueError, IndexError, TypeError):
            right = False
        if not right:
            raise InputError(
                f"{self.folder / BLEND}: the model {member.name!r} does not predict the {size} "
                f"{task.label_unit} of the blend, or its files are damaged"
            )

    def raws(self, rows: Sequence[Row]) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
        """The raw outputs of each row, and as notes whether rows have no known feature."""
        scores, unknown = self.scores.answers(rows, np.asarray(self.blend.offsets))
        self.seen += len(rows)
        self.without_features += int(unknown.sum())
        return list(from_scores(self.task.name, scores)), unknown.tolist()

    def notes(self) -> Iterator[str]:
        yield from super().notes()
        if self.blend.shifted:
            yield (
                f"note: {self.folder} was written by an earlier version of ownbert fit: its "
                "probabilities favour rare labels; fit again for calibrated ones"
            )

    def warnings(self) -> Iterator[str]:
        """Warnings of the first network, as the others read rows in the same way, or of the frozen
        network, and of the linear models."""
        for network in self.networks[:1]:
            yield from network.warnings()
        for probe in () if self.networks else self.probes[:1]:
            if warning := probe.unknown.warning():
                yield warning
        if self.seen and self.without_features == self.seen:
            yield (
                "warning: the models know no word of these texts, so all predictions are the same; "
                "fit models on texts like these"
            )
