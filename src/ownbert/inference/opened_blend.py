"""A ``fit`` folder in use: several models whose weighted logits are added. One kind is a linear
probe, a linear model on the text vectors of a frozen network.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import Description
from ownbert.exceptions import InputError
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.embedder import Embedder
from ownbert.inference.engines import AUTO, TORCH, Compute
from ownbert.inference.opened import Networks, Opened, characters, describe_members
from ownbert.language.messages import Message, Option
from ownbert.run.file_names import BLEND, ENCODER
from ownbert.tasks.row_network import blocks
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import UnknownWords
from ownbert.time_limit import check_time, clock_seconds
from ownbert.train.device import pick_device, pick_precision
from ownbert.views import PROBE
from ownbert.views.blending import blend, from_scores, rows_without_features
from ownbert.views.linear_models import LinearModel, LinearView, reading_linear, save_linear

# Rows between checks of the time limit, in ``score_all`` and in ``score_until``.
_ROWS, _FEW_ROWS = 512, 64
# Words per piece of a long text, length from which words imply a script without spaces, and the
# maximum number of pieces.
_PIECE_WORDS, _LONG_WORD, _MOST_PIECES = 100, 20, 100
# Pieces between checks of the time limit.
_PIECES_AT_ONCE = 2048


@dataclass(frozen=True)
class FrozenProbe:
    """Computes logits of texts: by a linear model on the vectors of a network, after subtraction
    of ``mean`` (F) and division by ``scale`` (F)."""

    embedder: Embedder
    mean: np.ndarray
    scale: np.ndarray
    model: LinearModel

    def scores(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """(N, C) log-probabilities, logits, or regression values of N texts or pairs of texts."""
        return self.model.scores((embed_rows(self.embedder, texts) - self.mean) / self.scale)

    def save(self, folder: Path, *, beside: bool = False) -> None:
        """Write the probe into a folder, whose network is in ``ENCODER``; ``beside``: in that of
        the folder ``probe`` two levels above."""
        settings = {"beside": True} if beside else {}
        save_linear(folder, PROBE, self.model, {"mean": self.mean, "scale": self.scale}, settings)

    @classmethod
    def load(cls, folder: Path, **options: Any) -> "FrozenProbe":
        """Read a probe written by ``save``."""
        with reading_linear(folder, PROBE) as (model, arrays, settings):
            mean, scale = arrays["mean"], arrays["scale"]
            if not mean.shape == scale.shape == model.weights.shape[:1]:
                raise ValueError("the mean, the scale and the weights differ in size")
            place = folder.resolve().parents[1] / PROBE if settings.get("beside") else folder
            return cls(Embedder(place / ENCODER, **options), mean, scale, model)


def embed_rows(embedder: Embedder, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
    """Vectors (N, F) of texts; for a pair (a, b) the concatenation of a, b, |a - b| and a * b."""
    parts = [_embed(embedder, [row[i] for row in texts]) for i in range(len(texts[0]))]
    if len(parts) == 1:
        return parts[0]
    a, b = parts
    return np.concatenate([a, b, np.abs(a - b), a * b], axis=1)


def _embed(embedder: Embedder, texts: Sequence[str]) -> np.ndarray:
    """Vectors (N, D) of texts; for a long text the mean over its pieces, which is better than the
    vector of its first tokens (docs/lab/long-documents.md)."""
    pieces = [_pieces(text) for text in texts]
    all_pieces = [piece for row_pieces in pieces for piece in row_pieces]
    parts = []
    for start in range(0, len(all_pieces), _PIECES_AT_ONCE):
        check_time()
        parts.append(embedder.encode(all_pieces[start : start + _PIECES_AT_ONCE]))
    vectors = np.concatenate(parts)
    ends = np.cumsum([len(row_pieces) for row_pieces in pieces])
    sums = np.add.reduceat(vectors, np.concatenate([[0], ends[:-1]]), axis=0)
    return sums / np.diff(ends, prepend=0)[:, None]


def _pieces(text: str) -> list[str]:
    """Split a text into pieces of about a hundred words, or of similar length without spaces."""
    if len(text) <= _PIECE_WORDS:
        return [text]
    words = text.split()
    if len(words) * _LONG_WORD < len(text):  # script without spaces
        step = _PIECE_WORDS
        pieces = [text[i : i + step] for i in range(0, len(text), step)]
    else:
        starts = range(0, len(words), _PIECE_WORDS)
        pieces = [" ".join(words[i : i + _PIECE_WORDS]) for i in starts]
    return pieces[:_MOST_PIECES] or [text]


class LayerEmbedder(Embedder):
    """An ``Embedder`` that concatenates the vectors of all layers: (N, (L + 1) D)."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder, engine="torch")
        self.truncate_dim = None
        self.layers = 1 + sum(ends for _, ends in self.model.encoder.schedule())

    def _packed(self, description: Description) -> Any:
        encoder = super()._packed(description)
        encoder.layers = True
        return encoder

    @property
    def size(self) -> int:
        """The size of the concatenated vectors."""
        return self.layers * self.config.hidden_size

    def encode_ids(self, ids: Sequence[np.ndarray], **options: Any) -> np.ndarray:
        """See ``Embedder``; vectors are not normalized."""
        return super().encode_ids(ids, **{**options, "normalize": False})

    def by_layer(self, vectors: np.ndarray) -> list[np.ndarray]:
        """Split vectors (N, k (L + 1) D), k per text or pair, into one (N, k D) per layer."""
        parts = vectors.reshape(len(vectors), -1, self.layers, self.config.hidden_size)
        return [parts[:, :, layer].reshape(len(vectors), -1) for layer in range(self.layers)]


class Members:
    """Models whose weighted logits are added; several ``models`` of a member are averaged.

    Folders of members are relative to ``folder``; ``described`` are networks that have been read
    already.
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
                return FrozenProbe.load(path, device=compute.device, precision=compute.precision)
            return LinearView.load(path)

        self._weights = np.asarray([member.weight for member in members])
        self.models = [[opened(m.kind, folder / path) for path in m.folders] for m in members]

    def __call__(self, rows: Sequence[Row], offsets: np.ndarray | float = 0.0) -> np.ndarray:
        """(N, C) logits of N rows. Offsets (C) are added, except for rows without any known
        feature."""
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
            # Only linear models may know no feature of a row.
            without = [
                m.model.knows_nothing(x) if isinstance(m, LinearView) else np.zeros(len(x), bool)
                for m, x in zip(models, logits, strict=True)
            ]
            unknown.append(np.all(without, axis=0))
        without = rows_without_features(self._weights, unknown)
        return blend(scores, self._weights, offsets, unknown), without


def score_until(
    scorer: Callable[[Sequence[Row]], np.ndarray], rows: Iterable[Row], seconds: float
) -> np.ndarray:
    """(n, C) logits of the first n rows, as many as the time permits."""
    start, scores, rest = clock_seconds(), [], iter(rows)
    while block := list(islice(rest, _FEW_ROWS)):
        check_time()
        scores.append(scorer(block))
        if clock_seconds() - start > seconds:
            break
    return np.concatenate(scores)


def score_all(scorer: Callable[[Sequence[Row]], np.ndarray], rows: Sequence[Row]) -> np.ndarray:
    """(N, C) logits of any number of rows, in blocks that fit in memory."""
    scores = []
    for block in blocks(rows, rows=_ROWS, size=characters):
        check_time()
        scores.append(scorer(block))
    return np.concatenate(scores)


def all_raws(opened: Opened, rows: Sequence[Row]) -> np.ndarray:
    """(N, C) raw outputs of any number of rows, such as probabilities of labels."""
    return score_all(lambda block: np.stack(opened.raws(block)[0]), rows)


class OpenedBlend(Opened):
    """A ``fit`` folder: several models whose weighted logits are added.

    Attributes:
        seen, without_features: numbers of rows so far, and of those without any known feature.
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
        models = [model for of_member in self.scores.models for model in of_member]
        self.networks = [model for model in models if isinstance(model, Networks)]
        self.engines = [choice for network in self.networks for choice in network.engines]
        self.seen = self.without_features = 0
        for of_member, member in zip(self.scores.models, blend.members, strict=True):
            self._check(of_member, member)
        self.probes = [model.embedder for model in models if isinstance(model, FrozenProbe)]
        for probe in self.probes:  # forget the words of the checks
            probe.unknown = UnknownWords(probe.tokenizer)
        readers = (*self.networks, *self.probes)
        self.tokenizer = next((reader.tokenizer for reader in readers), None)
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

        def fits(model: Any) -> bool:
            if isinstance(model, Networks):
                return model.task.name == task.name and [*model.task.labels] == [*task.labels]
            return model.scores([texts]).shape == (1, size)

        try:
            right = all(map(fits, models))
        except (ValueError, IndexError, TypeError):
            right = False
        if not right:
            raise InputError(
                "{folder}: the model {name!r} does not predict the {size} {label_unit} of the "
                "blend, or its files are damaged",
                self.folder / BLEND,
                member.name,
                size,
                task.label_unit,
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
                Message(
                    "note: {folder} was written by an earlier version of ownbert fit: its "
                    "probabilities favour rare labels; fit again for calibrated ones",
                    self.folder,
                )
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
