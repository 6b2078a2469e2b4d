"""Opened folders: fine-tuned networks, single or averaged, that predict rows."""

import copy
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG, Description, describe
from ownbert.checkpoint.model_files import model_checksums, no_network
from ownbert.checks import list_of, maybe, record, text
from ownbert.config.head_spec import HEADS
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json
from ownbert.files.text_files import refuse_unreadable
from ownbert.inference.engines import Choice, Compute, Progress, choose_engine
from ownbert.inference.exported_network import HIDDEN, network_of
from ownbert.language.messages import Message
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import BLEND, ENSEMBLE, RECIPE
from ownbert.tables.columns import ColumnNames
from ownbert.tables.memory import MemoryTable
from ownbert.tasks.row_network import blocks, forward_rows
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task, task_of
from ownbert.tasks.text_input import EncodedRows, UnknownWords, truncation_warning
from ownbert.train.device import pick_device, pick_precision

_MEMBER = record({"folder": text}, required=("folder",))
_ENSEMBLE_KEYS = record({"members": maybe(list_of(_MEMBER, most=1000))})


class Opened(ABC):
    """A folder opened by ``open_folder``, ready to predict rows of its task.

    Attributes:
        members: folders of all models.
        engines: engines of each network.
        precision: precision of torch.
        tokenizer: tokenizer of the first network; None without one.
        held_out: calibration data, once they have been read (``held_out_of``).
    """

    folder: Path
    task: Task
    compute: Compute
    members: list[Path]
    engines: list[Choice]
    precision: str
    tokenizer: Any
    held_out: Any = None

    @in_float32
    def __call__(self, rows: Sequence[Row]) -> list[Any]:
        """The task's decision for each row."""
        return self.answered(rows)[1]

    def answered(self, rows: Sequence[Row]) -> tuple[Sequence[np.ndarray], list[Any]]:
        """The raw outputs of each row (``Task.raw``), and the task's decisions."""
        raws, notes = self.raws(rows)
        return raws, self.task.decide_each(raws, rows, notes)

    @abstractmethod
    def raws(self, rows: Sequence[Row]) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
        """The raw outputs of each row, and the task's notes for its decisions."""

    @cached_property
    def checksums(self) -> list[tuple[str, str, Any]]:
        """The model files: member relative to the folder, name and checksum."""
        members = ((os.path.relpath(path, self.folder), path) for path in self.members)
        return [(name, *file) for name, member in members for file in model_checksums(member)]

    @property
    def models(self) -> list[Any]:
        """The torch models; empty for a blend."""
        return []

    def packed(self, device: str) -> "Opened":
        """The same folder with packed copies of ``models`` on a device, if they are not packed
        yet."""
        return self

    def notes(self) -> Iterator[str]:
        """Yield notes on automatic choices (precision and engine), only once."""
        chosen = (self.compute.note, *(choice.note for choice in self.engines))
        yield from dict.fromkeys(filter(None, chosen))

    @abstractmethod
    def warnings(self) -> Iterator[str]:
        """Warnings about truncated rows and unknown words, if there were any."""


class Networks(Opened):
    """A fine-tuned network, or several networks whose raw outputs are averaged.

    Thresholds are averaged too; everything else about the task comes from the first network.

    Args:
        columns: columns named by the user; by default those used in training.
        task: task of networks that were not fine-tuned for one.

    Attributes:
        seen, cut: numbers of rows, and of truncated rows, so far.
    """

    def __init__(
        self,
        folder: Path,
        described: Sequence[Description],
        compute: Compute,
        *,
        columns: ColumnNames | None = None,
        task: Task | None = None,
    ) -> None:
        self.folder, self.described, self.compute = folder, described, compute
        self.members = [member.folder for member in described if member.folder is not None]
        self.task = task or combine_tasks([task_of(member, columns) for member in described])
        head = self.task.head
        outputs = (HIDDEN,) if head == "embedding" else HEADS[head].exported
        self.engines = [choose_engine(member, compute, outputs) for member in described]
        packed = any(choice.packed for choice in self.engines)
        self.precision = "float32"
        if packed:
            self.precision = pick_precision(compute.precision or "float32", compute.device)
        self.networks: list[Any] = []
        for member, choice in zip(described, self.engines, strict=True):
            load = partial(self._torch_network, member)
            pooling = self.task.head_spec(member).pooling
            self.networks.append(network_of(choice, member.config, load, pooling=pooling))
        self.builder = self.task.input_builder(described[0], self.task.max_length)
        self.tokenizer, self.max_length = self.builder.tokenizer, self.builder.max_length
        self.seen = self.cut = 0
        self.unknown = UnknownWords(self.tokenizer)

    def _torch_network(self, description: Description) -> Any:
        """The model of a folder as run by torch."""
        from ownbert.tasks.packed_network import PackedNetwork

        model = self.task.load(description).to(pick_device(self.compute.device))
        if self.compute.packed:
            return _packed_network(model, self.precision)
        return PackedNetwork(model, self.precision)

    @property
    def models(self) -> list[Any]:
        return [network.model for network in self.networks if hasattr(network, "model")]

    def models_with_gradients(self) -> list[Any]:
        """The models without packed matrices; loaded separately if ``compute`` uses packed ones."""
        if not self.compute.packed:
            return self.models
        device = self.models[0].device
        return [self.task.load(each).to(device) for each in self.described]

    def packed(self, device: str) -> "Networks":
        if self.compute.packed or not self.models:
            return self
        packed_copy = copy.copy(self)
        packed_copy.compute = replace(self.compute, device=device, packed=True)
        target = pick_device(device)
        models = self.models
        if target.type != "cpu":  # A copy keeps the originals on the CPU.
            models = [copy.deepcopy(model).to(target) for model in models]
        packed_copy.networks = [_packed_network(model, self.precision) for model in models]
        return packed_copy

    def raws(self, rows: Sequence[Row]) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
        data = self.encoded(rows)
        return self.raws_of(data), data.notes

    def scores(self, rows: Sequence[Row]) -> np.ndarray:
        """(N, C) logits of N rows, as used by blends."""
        from ownbert.views.blending import to_scores

        return to_scores(self.task.name, np.stack(self.raws(rows)[0]))

    def encoded(self, rows: Sequence[Row]) -> EncodedRows:
        """Rows encoded as inputs of the networks."""
        data = self.task.encode(rows, self.builder, training=False)
        self.seen += len(rows)
        self.cut += data.truncated
        self.unknown.count([e.token_ids for e in data.examples], self.task.texts_of(rows))
        return data

    def raws_of(self, data: EncodedRows) -> Sequence[np.ndarray]:
        """The raw outputs of each row, averaged over the networks."""
        raws = [forward_rows(network, self.task, data.examples) for network in self.networks]
        if len(raws) == 1:
            return raws[0]
        return [np.mean(of_row, axis=0) for of_row in zip(*raws, strict=True)]

    def logits(self, rows: Sequence[Row]) -> Sequence[np.ndarray]:
        """The mean logits (C) of each row, for tasks with one prediction per text."""
        task: Any = copy.copy(self.task)
        task.probabilities = lambda logits: logits
        plain = copy.copy(self)
        plain.task = task
        return plain.raws(rows)[0]

    def warnings(self) -> Iterator[str]:
        if self.cut:
            limit = self.task.length_limit(self.max_length)
            yield truncation_warning(self.cut, self.seen, limit, self.task.unit)
        if warning := self.unknown.warning():
            yield warning


def _packed_network(model: Any, precision: str) -> Any:
    from ownbert.nn.prepack import prepack_for_heads
    from ownbert.tasks.packed_network import PackedNetwork

    if model.device.type != "cpu" and precision != "float32":
        return PackedNetwork(model, precision)
    return PackedNetwork(prepack_for_heads(model, precision))


def average(opened: Sequence[Networks]) -> Networks:
    """Average the networks of several folders, reusing the loaded models."""
    together = copy.copy(opened[0])
    together.task = combine_tasks([folder.task for folder in opened])
    for name in ("members", "described", "networks", "engines"):
        setattr(together, name, [item for folder in opened for item in getattr(folder, name)])
    return together


def describe_members(folder: Path) -> list[Description]:
    """Describe the members of an ensemble, or the network of ``folder``."""
    return [describe(member, with_decoder=True) for member in list_members(folder)]


def list_members(folder: Path) -> list[Path]:
    """The member folders of an ensemble, or ``folder`` itself.

    Raises:
        InputError: the folder does not exist, or its training is unfinished.
    """
    if not folder.is_dir():
        raise InputError("no such folder: {folder}", folder)
    if not (folder / ENSEMBLE).exists():
        if (folder / BLEND).exists() and not (folder / CONFIG).exists():
            raise InputError(no_network(folder))
        if (folder / RECIPE).exists() and not (folder / CONFIG).exists():
            raise InputError(
                "{folder}: its training is not finished; continue with the same command and "
                "{--resume}",
                folder,
            )
        return [folder]
    path = folder / ENSEMBLE
    members = read_json(path, check=_ENSEMBLE_KEYS).get("members") or []
    folders = [inside(folder, member["folder"], path) for member in members]
    if not folders or not all((member / CONFIG).exists() for member in folders):
        raise InputError(
            "{folder} is an ensemble that is not finished; train it with {--resume}", folder
        )
    return folders


def combine_tasks(tasks: Sequence[Task]) -> Task:
    """The task of an ensemble: the first member's, with the mean of all thresholds and
    decisions."""
    task = tasks[0]
    if len(tasks) > 1:
        if not task.averageable:
            raise InputError(
                "predictions of several models cannot be averaged for {name}; use one of them",
                task.name,
            )
        task = copy.copy(task)
        for name in ("threshold", "decision"):
            values = [getattr(member, name, None) for member in tasks]
            if all(value is None for value in values):
                continue
            # A decision of None is one of zeros.
            values = [0.0 if value is None and name == "decision" else value for value in values]
            arrays = np.broadcast_arrays(*[value for value in values if value is not None])
            mean = np.mean(arrays, axis=0)  # of numbers, or of tuples of numbers
            setattr(task, name, float(mean) if mean.ndim == 0 else tuple(mean.tolist()))
    return task


def decide_all(
    predictor: Callable[[Sequence[Row]], list[Any]],
    rows: Sequence[Row],
    progress: Progress | None = None,
) -> list[Any]:
    """Decide any number of rows."""
    decided: list[Any] = []
    for block in blocks(rows, size=characters):
        decided += predictor(block)
        if progress is not None:
            progress(len(decided))
    return decided


def refuse_missing(path: Path) -> None:
    """Raise ``InputError`` unless there is a folder or a readable file."""
    if not path.is_dir():  # some tasks accept folders
        refuse_unreadable(path)


def given_rows(data: Any, labels: Any = None) -> Any:
    """Labelled rows as a user passes them, for ``read_labelled_rows``: with labels, a pair; a
    missing file is refused before a model is opened."""
    if labels is not None:
        return data, labels
    if isinstance(data, str | os.PathLike):
        refuse_missing(data := Path(data))
    return data


def read_labelled_rows(
    task: Task, data: Any, folder: str | Path, *, skip_unlabelled: bool = False
) -> list[Row]:
    """Read rows whose labels are known to the model.

    ``skip_unlabelled`` leaves out rows without a label or number, here and in what the task reads
    later, with a warning; a task that was trained so does it anyway.
    """
    if skip_unlabelled:
        if "skip_unlabelled" not in task.uses():
            raise InputError("{--skip-unlabelled} does not apply to {name}", task.name)
        task.settings = replace(task.settings, skip_unlabelled=True)
    source = task.source(data, labelled=True)
    rows = task.read(source)
    named = source if isinstance(source, str | os.PathLike | MemoryTable) else ""
    task.check(rows, named, Message("the model {folder}", folder))
    return rows


def characters(row: Row) -> int:
    """The number of characters in the texts of a row."""
    return sum(map(len, row.texts))
