"""Predict and evaluate with a fine-tuned folder, or with several that are averaged."""

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG, Description, describe
from ownbert.checkpoint.model_files import no_network
from ownbert.data.readers.columns import ColumnNames
from ownbert.errors import InputError
from ownbert.files import inside, read_json
from ownbert.hub import model_folder
from ownbert.inference.engines import Choice, choose_engine
from ownbert.inference.exported_network import ExportedNetwork, RoutedNetwork, outputs_of
from ownbert.run.file_names import BLEND, ENSEMBLE, RECIPE
from ownbert.schema import list_of, maybe, record, text
from ownbert.tasks.batched_forward import blocks, forward_rows
from ownbert.tasks.network import RowNetwork
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_of
from ownbert.tasks.text_input import EncodedRows, UnknownWords, truncation_warning
from ownbert.train.device import pick_device, pick_precision

_MOST_MEMBERS = 1000
_ENSEMBLE_KEYS = record(
    {"members": maybe(list_of(record({"folder": text}, required=("folder",)), most=_MOST_MEMBERS))}
)

Progress = Callable[[int], None]
Say = Callable[[str], None]


class NetworkPredictor:
    """A fine-tuned folder, or an ensemble of such folders, ready to answer rows of its task.

    The scores of an ensemble's members are averaged, and so are their thresholds; everything else
    of the task is that of the first member.

    Args:
        folder: of the model or the ensemble.
        columns: named by the user; others are as in training.
        task: for a folder that was not fine-tuned for one.
        device: auto, cpu or cuda.
        precision: with float32, the default, an answer does not depend on the other rows of the
            batch.
        engine: torch, onnx, openvino or auto (``choose_engine``).

    Attributes:
        precision_note: for the user, where the folder has chosen the precision.
        engines: what computes, for each member.
        seen: how many rows there were.
        cut: how many of them were truncated.

    Raises:
        InputError: the folder cannot be used.
    """

    precision_note = ""

    def __init__(
        self,
        folder: str | Path,
        *,
        columns: ColumnNames | None = None,
        device: str = "auto",
        precision: str = "float32",
        task: Task | None = None,
        engine: str | None = None,
    ) -> None:
        self.folder = model_folder(folder)
        self.members = list_members(self.folder)
        described = [(folder, describe(folder, with_decoder=True)) for folder in self.members]
        self.task = task or combine_tasks(
            [task_of(about, folder, columns) for folder, about in described]
        )
        outputs = outputs_of(self.task.head)
        self.engines = [
            choose_engine(
                *each,
                engine,
                device=device,
                precision=precision,
                outputs=outputs,
            )
            for each in described
        ]
        packed = any(choice.packed for choice in self.engines)
        self.precision = pick_precision(precision, device) if packed else "float32"
        self.networks = [
            self._open(*each, choice, device)
            for each, choice in zip(described, self.engines, strict=True)
        ]
        self.builder = self.task.input_builder(
            self.members[0], described[0][1].config, self.task.max_length
        )
        self.tokenizer, self.max_length = self.builder.tokenizer, self.builder.max_length
        self.seen = self.cut = 0
        self.unknown = UnknownWords(self.tokenizer)

    def _open(self, folder: Path, about: Description, choice: Choice, device: str) -> RowNetwork:
        packed = partial(_packed_network, self.task, folder, about, device, self.precision)
        if choice.exported is None:
            return packed()
        pooling = self.task.head_spec(about).pooling
        exported = ExportedNetwork(choice.exported, about.config, pooling)
        return RoutedNetwork(exported, packed) if choice.packed else exported

    @property
    def models(self) -> list[Any]:
        """The models that torch computes."""
        networks: list[Any] = list(self.networks)
        return [network.model for network in networks if hasattr(network, "model")]

    def __call__(self, rows: Sequence[Row]) -> list[Any]:
        """The answer of the task to each row."""
        raws, notes = self.raws(rows)
        return [self.task.decide(*each) for each in zip(raws, rows, notes, strict=True)]

    def raws(self, rows: Sequence[Row]) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
        """The scores of each row, from which the task decides, and its note for that."""
        data = self.encoded(rows)
        return self.raws_of(data), data.notes

    def encoded(self, rows: Sequence[Row]) -> EncodedRows:
        """Rows as the networks read them."""
        data = self.task.encode(rows, self.builder, training=False)
        self.seen += len(rows)
        self.cut += data.truncated
        self.unknown.count(data.examples, self.task.texts_of(rows))
        return data

    def raws_of(self, data: EncodedRows) -> Sequence[np.ndarray]:
        """The scores of each row, the mean of all networks'."""
        scores = [forward_rows(network, self.task, data.examples) for network in self.networks]
        raws = scores[0]
        if len(scores) > 1:
            raws = [np.mean(of_row, axis=0) for of_row in zip(*scores, strict=True)]
        return raws

    def logits(self, rows: Sequence[Row]) -> Sequence[np.ndarray]:
        """The mean logits (C) of each row, of a task with one answer per text."""
        task: Any = copy.copy(self.task)
        task.probabilities = lambda logits: logits
        plain = copy.copy(self)
        plain.task = task
        return plain.raws(rows)[0]

    def notes(self) -> Iterator[str]:
        """The precision that the folder has chosen, and the engine of ``auto``, once."""
        chosen = (self.precision_note, *(choice.note for choice in self.engines))
        yield from dict.fromkeys(filter(None, chosen))

    def warnings(self) -> Iterator[str]:
        """Warnings about truncated rows and unknown words, if there were any."""
        if self.cut:
            limit = self.task.length_limit(self.max_length)
            yield truncation_warning(self.cut, self.seen, limit, self.task.unit)
        if warning := self.unknown.warning():
            yield warning


def _packed_network(
    task: Task, folder: Path, about: Description, device: str, precision: str
) -> Any:
    """The model of a folder as torch computes it."""
    from ownbert.nn.kernels.prepack import prepack_for_heads
    from ownbert.tasks.packed_network import PackedNetwork

    model = task.load(folder, about).to(pick_device(device))
    if model.device.type != "cpu" and precision != "float32":
        return PackedNetwork(model, precision)
    return PackedNetwork(prepack_for_heads(model, precision))


def average(predictors: Sequence[NetworkPredictor]) -> NetworkPredictor:
    """A predictor that averages the scores of several, the members of an ensemble, with the models
    that these have loaded.

    Raises ``InputError`` for a task whose answers cannot be averaged.
    """
    together = copy.copy(predictors[0])
    together.task = combine_tasks([predictor.task for predictor in predictors])
    together.members = [member for predictor in predictors for member in predictor.members]
    together.networks = [network for predictor in predictors for network in predictor.networks]
    together.engines = [choice for predictor in predictors for choice in predictor.engines]
    return together


def list_members(folder: Path) -> list[Path]:
    """The folders whose answers are averaged: those of an ensemble, or ``folder`` alone.

    Raises:
        InputError: the folder does not exist, or its training is unfinished.
    """
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    if not (folder / ENSEMBLE).exists():
        if (folder / BLEND).exists() and not (folder / CONFIG).exists():
            raise InputError(no_network(folder))
        if (folder / RECIPE).exists() and not (folder / CONFIG).exists():
            raise InputError(
                f"{folder}: its training is not finished; continue with the same command and "
                "--resume"
            )
        return [folder]
    path = folder / ENSEMBLE
    members = read_json(path, check=_ENSEMBLE_KEYS).get("members") or []
    folders = [inside(folder, member["folder"], path) for member in members]
    if not folders or not all((member / CONFIG).exists() for member in folders):
        raise InputError(f"{folder} is an ensemble that is not finished; train it with --resume")
    return folders


def combine_tasks(tasks: Sequence[Task]) -> Task:
    """The task of an ensemble: that of the first member, with the mean of all thresholds.

    Raises:
        InputError: the answers of this task cannot be averaged.
    """
    task = tasks[0]
    if len(tasks) > 1:
        if not task.averageable:
            raise InputError(
                f"answers of several models cannot be averaged for {task.name}; use one of them"
            )
        thresholds = [
            t for t in (getattr(task, "threshold", None) for task in tasks) if t is not None
        ]
        if thresholds:
            task.threshold = float(np.mean(thresholds))  # type: ignore[attr-defined]
    return task


def decide_all(
    predictor: Callable[[Sequence[Row]], list[Any]],
    rows: Sequence[Row],
    progress: Progress | None = None,
) -> list[Any]:
    """The answers to any number of rows.

    Args:
        predictor: of their task.
        rows: as the task reads them.
        progress: called with the number of rows so far.
    """
    decided: list[Any] = []
    for block in blocks(rows, size=characters):
        decided += predictor(block)
        if progress is not None:
            progress(len(decided))
    return decided


def characters(row: Row) -> int:
    """The number of characters in the texts of a row."""
    return sum(map(len, row.texts))
