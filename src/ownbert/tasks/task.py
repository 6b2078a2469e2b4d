"""What a task is, and the table of all tasks.

B sequences of a batch, R answers of it (one per row), C labels.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ownbert.checkpoint import Description, describe, load, load_tokenizer
from ownbert.config import EncoderConfig, HeadSpec
from ownbert.data.batch import Batch
from ownbert.data.readers.columns import ColumnNames, ColumnSpec
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.objectives import Objective
from ownbert.tasks.metrics import Scores
from ownbert.tasks.recipe import FinetuneModel, FinetuneRecipe, TaskSettings, Vit
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder

# The key of config.json that says what a folder was fine-tuned for.
KEY = "ownbert_task"
TASKS: Mapping[str, tuple[str, str]] = {
    "classify": ("classification", "Classify"),
    "multilabel": ("multilabel", "MultiLabel"),
    "regress": ("regression", "Regress"),
    "tag": ("token_classification.tag", "Tag"),
    "answer": ("question_answering.answer", "Answer"),
    "choose": ("multiple_choice", "Choose"),
    "embed": ("sentence_embedding.rank", "Rank"),
    "image": ("image", "ImageTask"),
}
# Another name of the same.
ALIASES = {"rank": "embed"}
_DROPOUT = 0.1


class Task:
    """Reader of files, head, objective, predictions and measures of one kind of question.

    Training: ``origin`` (what the model is made from), ``read``, ``learn`` (what the rows say:
    labels, scale), ``input_builder`` (turns rows into sequences), ``encode``, ``objective``,
    ``finish``, ``write``. Use: ``load``, ``input_builder``, ``stream``, ``encode``, ``raw`` (scores
    of a row, which can be averaged over models), ``decide``, ``shown``. Metrics: ``tune``
    (thresholds, on dev rows), ``score``.

    max_length: of a sequence, in tokens, as in training. seed: of what training draws for single
    rows. name: on the command line. head: kind of the head that answers. column_specs: the
    columns of its files. measures: names of what ``score`` gives; the first is watched on dev rows.
    uses: the settings of ``TaskSettings`` that it knows. unit: what rows are, in messages.
    """

    name: ClassVar[str]
    head: ClassVar[str]
    column_specs: ClassVar[Sequence[ColumnSpec]] = ()
    # Some tasks know theirs when they have seen the training rows.
    measures: tuple[str, ...]
    uses: ClassVar[frozenset[str]] = frozenset()
    unit: ClassVar[str] = "documents"
    label_unit: ClassVar[str] = "labels"
    # What a folder says of the task besides, by the names of attributes; and in Transformers' word.
    keeps: ClassVar[tuple[str, ...]] = ("max_length",)
    problem_type: ClassVar[str | None] = None
    # Whether scores of several models can be averaged.
    averages: ClassVar[bool] = True
    # Whether the labels of a row are a set, whose order has no meaning.
    label_sets: ClassVar[bool] = False
    # Whether rows of a batch are learnt from each other, so that it must not be cut.
    whole_batches: ClassVar[bool] = False
    # Whether ``read`` takes arrays in the place of a file.
    in_memory: ClassVar[bool] = False
    # Rows that a batch must have.
    smallest_batch = 1
    seed = 0

    def __init__(
        self,
        settings: TaskSettings | None = None,
        columns: ColumnNames | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.settings = settings or TaskSettings(name=self.name)
        self.columns = columns or ColumnNames()
        self.labels = tuple(labels)
        self.max_length: int | None = None
        self.settings.refuse_others(self.name, self.uses)

    # The model and what it reads.

    def origin(self, model: FinetuneModel) -> Description | None:
        """What the folder says that a training starts from; None where a model is made for the
        rows (``designed``). ``InputError`` for one that this task cannot start from."""
        if not model.folder:
            raise InputError("--model is needed: the folder to start from")
        if model.vit != Vit():
            raise InputError(f"model.vit is of no use to {self.name}, whose models read texts")
        said = describe(model.folder)
        self.refuse_other_kind(said, model.folder)
        return said

    def designed(self, recipe: FinetuneRecipe, rows: Sequence[Row]) -> Description:
        """The model that is made for training rows where no folder was given."""
        raise NotImplementedError

    def refuse_other_kind(self, said: Description, folder: str | Path) -> None:
        """``InputError`` for a model that does not read what the rows hold."""
        if said.config.image is not None:
            raise InputError(
                f"{folder} reads pictures and {self.name} is about texts; for pictures: ownbert "
                "finetune image"
            )

    def input_builder(
        self, folder: str | Path, config: EncoderConfig, max_length: int | None = None
    ) -> Any:
        """What turns rows into inputs of the folder's model: a ``TextInputBuilder`` or similar."""
        return TextInputBuilder(
            load_tokenizer(folder, config=config), config, max_length or config.longest
        )

    def completed(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        """The recipe with what depends on the kind of model."""
        dropout = _DROPOUT if recipe.model.dropout is None else recipe.model.dropout
        return replace(
            recipe,
            data=replace(recipe.data, max_length=builder.max_length),
            model=replace(recipe.model, dropout=dropout),
        )

    # Reading.

    def read(self, path: str | Path) -> list[Row]:
        """Labelled rows, at least one. Raises ``InputError`` with file and line."""
        raise NotImplementedError

    def stream(self, path: str | Path) -> Iterator[Row]:
        """Rows to predict; what they hold of answers is not looked at."""
        raise NotImplementedError

    def learn(self, rows: Sequence[Row], source: str | Path) -> None:
        """Take labels and scales from the training rows. Raises ``InputError``."""

    def check(self, rows: Sequence[Row], source: str | Path, known: str) -> None:
        """``InputError`` with file and line for an answer that cannot be learnt or measured;
        ``known`` is what the labels were taken from, for messages."""

    # To the model and back.

    def spec(self, said: Description) -> HeadSpec:
        """The head for a model of this family."""
        return said.family.spec_of(self.head, said.values)

    def pooler(self, said: Description) -> bool | None:
        """Whether a model that is trained has a pooler; None: if its head needs one."""
        return None

    def encode(self, rows: Sequence[Row], builder: Any, *, training: bool) -> EncodedRows:
        """Rows as the model reads them, with targets where the rows have them.

        builder: what ``input_builder`` returns. For ``training`` a row may become several examples,
        otherwise it is one.
        """
        raise NotImplementedError

    def objective(self, model: Model) -> Objective:
        """What is learnt."""
        raise NotImplementedError

    def raw(self, logits: Tensor, batch: Batch, model: Model) -> list[np.ndarray]:
        """Scores of each of the R rows of a batch."""
        raise NotImplementedError

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        """Choose thresholds where the rows are answered best."""

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> Any:
        """The answer to a row."""
        raise NotImplementedError

    def shown(self, decided: Any, row: Row) -> dict[str, Any]:
        """An answer as a row of a file."""
        raise NotImplementedError

    def score(self, rows: Sequence[Row], decided: Sequence[Any]) -> Scores:
        """How good the answers are."""
        raise NotImplementedError

    # On disk.

    def finish(self, model: Model) -> Model:
        """The model as it is to be saved."""
        return model

    def write(self, folder: Path, model: Model) -> None:
        """Further files of a folder that holds the finished model."""

    def load(self, folder: str | Path) -> Model:
        """The model of a finished folder, with the head that answers."""
        return load(folder)

    def values(self) -> dict[str, Any]:
        """Keys of config.json besides those of the model."""
        given = {name: value for name, value in vars(self.columns).items() if value is not None}
        said = {"name": self.name, "settings": self.settings.changed(), "columns": given}
        found = {KEY: said | {name: getattr(self, name) for name in self.keeps}}
        return found if self.problem_type is None else found | {"problem_type": self.problem_type}

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take what ``values`` wrote under ``KEY`` beyond settings and columns."""
        for name in self.keeps:
            if name in kept:
                setattr(self, name, kept[name])

    def warnings(self) -> list[str]:
        """What to tell of rows that were odd but could be used."""
        return []

    def limit(self, max_length: int) -> str:
        """What is cut off rows that are longer, for people."""
        return f"the model's {max_length} tokens"

    def kept_together(self, row: Row) -> Sequence[Any]:
        """What of a row must not stand in two folds, or answers could be remembered."""
        return row.texts

    def preview(self, row: Row) -> str:
        """What a row should be answered with, for people."""
        return str(row.target)

    def shares(self, rows: Sequence[Row]) -> str:
        """How the answers are spread over the rows, for people."""
        return ""


def task_class(name: str) -> type[Task]:
    """The class of a task. Raises ``InputError`` for a name that is not known."""
    name = ALIASES.get(name, name)
    if name not in TASKS:
        raise InputError(f"task {name!r} is not known; one of {', '.join([*TASKS, *ALIASES])}")
    module, kind = TASKS[name]
    return getattr(import_module(f"ownbert.tasks.{module}"), kind)


def task_of(said: Description, folder: str | Path, columns: ColumnNames | None = None) -> Task:
    """The task that a folder was fine-tuned for: as it says itself, or by its head.

    columns: what was given now; where nothing was, those of the training. Raises ``InputError``
    for a folder without a head that answers.
    """
    kept = said.values.get(KEY) or {}
    name = kept.get("name") or _by_head(said, folder)
    settings = TaskSettings.of(name, kept.get("settings") or {})
    given = {k: v for k, v in vars(columns or ColumnNames()).items() if v is not None}
    task = task_class(name)(
        settings, ColumnNames(**{**(kept.get("columns") or {}), **given}), said.labels
    )
    task.restore(kept)
    return task


def _by_head(said: Description, folder: str | Path) -> str:
    kinds = {spec.kind for spec in said.specs}
    if "classification" in kinds and said.config.image is not None:
        return "image"
    if "classification" in kinds:
        many = {"multi_label_classification": "multilabel", "regression": "regress"}
        one = len(said.labels) == 1 and said.values.get("problem_type") is None
        return "regress" if one else many.get(str(said.values.get("problem_type")), "classify")
    for kind, name in (("tokens", "tag"), ("span", "answer"), ("choice", "choose")):
        if kind in kinds:
            return name
    raise InputError(f"{folder} answers nothing yet; fine-tune it: ownbert finetune TASK")
