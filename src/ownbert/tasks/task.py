"""The base class of tasks, and the task of a folder."""

import os
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ownbert.batches.example import Example
from ownbert.batches.word_features import Features, feature_names, learn_features
from ownbert.checkpoint import (
    CONFIG,
    FEATURES,
    Description,
    describe,
    load_tokenizer,
    require_float,
    require_tables,
)
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError
from ownbert.language.messages import Message, Option
from ownbert.tables.columns import ColumnNames, ColumnSpec, positional_names
from ownbert.tables.memory import is_list, is_table, table_of
from ownbert.tables.tables import Source
from ownbert.tasks.embedding_config import read_embedding_config
from ownbert.tasks.finetune_recipe import FinetuneModel, FinetuneRecipe, TaskSettings, Vit
from ownbert.tasks.kinds import KINDS, task_kind
from ownbert.tasks.metrics import Scores
from ownbert.tasks.related_rows import text_key
from ownbert.tasks.row_network import RowNetwork
from ownbert.tasks.rows import PLAIN_OUTPUT, OutputOptions, Row
from ownbert.tasks.text_input import EncodedRows, TextInputBuilder
from ownbert.tasks.thresholds import Aim, read_thresholds

if TYPE_CHECKING:
    from ownbert.nn.model import Model
    from ownbert.objectives.objective import Objective

KEY = "ownbert_task"  # the key of config.json with the task that a folder was fine-tuned for
DEFAULT: Any = ...  # default of ``top_k``; not None, which means all
_DROPOUT = 0.1


class NoTaskHead(InputError):
    """The folder, given by its ``description``, was not fine-tuned for a task."""

    def __init__(self, description: Description) -> None:
        super().__init__(
            "{folder} has no task head; fine-tune it: ownbert finetune TASK", description.folder
        )
        self.description = description


class Task:
    """A kind of prediction task: reading rows, head, objective, predictions and metrics.

    Training: ``describe_base`` (the model to start from), ``read``, ``learn`` (labels, scale),
    ``input_builder`` (turns rows into sequences), ``encode``, ``objective``, ``finish``, ``write``.
    Inference: ``load``, ``input_builder``, ``stream``, ``encode``, ``raw`` (outputs of a row, which
    can be averaged over models), ``decide``, ``output_row``. Evaluation: ``tune`` (thresholds, on
    dev rows), ``score``.

    Settings of other tasks are refused.
    """

    name: ClassVar[str]  # on the command line, see ``KINDS``
    head: ClassVar[str]  # kind of the head
    # Settings of ``TaskSettings`` used by the task, besides those of its command.
    hidden_settings: ClassVar[frozenset[str]] = frozenset()
    # Metrics of ``score``, the one monitored on dev rows first, and whether these have a loss. Both
    # may depend on the rows.
    metrics: tuple[str, ...]
    has_dev_loss = True
    metric: str | None = None  # metric that determines the best model, if chosen: see ``monitor``
    unit: ClassVar[str] = "documents"  # noun for rows in messages
    label_unit: ClassVar[str] = "labels"  # noun for labels in messages
    # For the model card.
    library: ClassVar[str] = "transformers"  # library_name of the hub
    purpose: ClassVar[str]  # a sentence about the model
    label_heading: ClassVar[str] = ""  # heading of its labels, none if empty
    example_inputs: ClassVar[tuple[str, str]] = ("new.csv", "test.csv")  # to predict, to evaluate
    example_row: ClassVar[str] = '"a text"'  # an argument for a Predictor
    # Python lines that predict with Transformers' ``model`` and ``tokenizer`` (TEXTS is one text or
    # a pair).
    transformers_lines: ClassVar[tuple[str, ...]] = ()
    # Attributes saved in config.json, and Transformers' own key there.
    saved_attributes: ClassVar[tuple[str, ...]] = ("max_length",)
    problem_type: ClassVar[str | None] = None
    gives_probabilities: ClassVar[bool] = False  # raw outputs are those of labels, words or choices
    text_keys: ClassVar[tuple[str, ...]] = ("text", "text_pair")  # of a row in the output
    output_options: ClassVar[frozenset[str]] = frozenset()  # that ``output_row`` supports
    averageable: ClassVar[bool] = True  # whether outputs of several models can be averaged
    discrete: ClassVar[bool] = True  # whether two predictions are either equal or not
    counts_labels: ClassVar[bool] = False  # whether rows can be counted per label
    label_sets: ClassVar[bool] = False  # whether a target is an unordered set of labels
    takes_soft_targets: ClassVar[bool] = False  # whether training targets may be probabilities
    # Whether the loss compares rows of a batch, so that batches must not be split into
    # micro-batches; and the minimum number of rows in a batch.
    needs_full_batch: ClassVar[bool] = False
    min_batch_size = 1
    reads_arrays: ClassVar[bool] = False  # files and arrays of images, not tables with texts
    missed: Sequence[
        str
    ] = ()  # sentences on thresholds that ``tune`` could not choose as asked for
    made: Any = None  # statistics of generated training rows (``MadePairs``)
    seed = 0  # of random draws per row in training
    # Tags of each column of word features: learnt from training rows, and by the base model.
    features: Features = MappingProxyType({})
    pretrained_features: Features = MappingProxyType({})

    def __init__(
        self,
        settings: TaskSettings | None = None,
        columns: ColumnNames | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.settings = settings or TaskSettings(name=self.name)
        self.columns = columns or ColumnNames()
        self.labels = tuple(labels)
        self.max_length: int | None = None  # maximum tokens of a sequence, as in training
        uses = self.uses()
        if others := [name for name in self.settings.changed() if name not in uses]:
            raise InputError(
                "task.{others} does not apply to {task}, which has {options}",
                others[0],
                self.name,
                ", ".join(sorted(uses)),
            )

    @classmethod
    def uses(cls) -> frozenset[str]:
        known = {f.name for f in fields(TaskSettings)}
        return cls.hidden_settings.union(known.intersection(KINDS[cls.name].settings))

    @property
    def column_specs(self) -> Sequence[ColumnSpec]:
        return KINDS[self.name].columns

    # Model and input.

    def describe_base(self, model: FinetuneModel) -> Description | None:
        """The description of the folder that training starts from; None if ``describe_new`` designs
        a model for the rows."""
        if not model.folder:
            raise InputError("{--model} is needed: the folder to start from")
        if model.vit != Vit():
            raise InputError(
                "model.vit does not apply to {name}, whose models read texts", self.name
            )
        description = describe(model.folder, with_decoder=True)
        require_float(description.values, model.folder)
        self.check_modality(description, model.folder)
        try:
            description.spec_of(self.head)
        except InputError as error:
            raise InputError("{folder}: {error}", model.folder, error) from None
        self.pretrained_features = description.values.get(FEATURES) or {}
        # Changes to the encoder (``nn/variants/sesame.py``).
        changes = {"layer_gate": model.layer_gate, "attention_blur": model.attention_blur}
        changes = {name: value for name, value in changes.items() if value is not None}
        if changes and description.decoder is not None:
            raise InputError(
                "model.{iter} is for models without a decoder, but a {architecture} has one",
                next(iter(changes)),
                description.architecture,
            )
        try:
            return replace(description, config=replace(description.config, **changes))
        except InputError as error:
            raise InputError("{folder}: {error}", model.folder, error) from None

    def describe_new(self, recipe: FinetuneRecipe, rows: Sequence[Row]) -> Description:
        """The description of a new model for the training rows, if no folder is given."""
        raise NotImplementedError

    def check_modality(self, description: Description, folder: str | Path) -> None:
        """Raise ``InputError`` if the model reads images and the rows are texts, or vice versa."""
        if description.config.image is not None:
            raise InputError(
                "{folder} reads images, but {name} needs a text model; for images: ownbert "
                "finetune image",
                folder,
                self.name,
            )

    def input_builder(self, description: Description, max_length: int | None = None) -> Any:
        """The converter of rows to model inputs: a ``TextInputBuilder`` or similar."""
        config = description.config
        length = min(max_length or config.longest, config.longest)
        return TextInputBuilder(load_tokenizer(description), config, length)

    def complete_recipe(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        """Fill in settings of the recipe that depend on the kind of model."""
        dropout = _DROPOUT if recipe.model.dropout is None else recipe.model.dropout
        return replace(
            recipe,
            data=replace(recipe.data, max_length=builder.max_length),
            model=replace(recipe.model, dropout=dropout),
        )

    # Reading.

    def is_one_row(self, data: Any) -> bool:
        """Whether data in memory are one row: a text, a tuple of texts, or a mapping that is not of
        columns."""
        if isinstance(data, str):
            return True
        if isinstance(data, tuple):
            return len(data) == 2 and isinstance(data[0], str)
        if not isinstance(data, Mapping) or any(map(is_table, data.values())):
            return False
        return not all(map(is_list, data.values()))

    def source(self, data: Any, *, name: str = "data", labelled: bool) -> Any:
        """The input of ``read`` and ``stream``: a file, or rows in memory as a table (see
        ``table_of``). If ``labelled``, rows without column names end with the target."""
        if isinstance(data, str | os.PathLike):
            return data
        pair = getattr(self, "pair", None)  # for tasks on texts or pairs
        names = positional_names(self.column_specs, self.columns, labelled=labelled, pair=pair)
        return table_of(data, name=name, positional=names, trim=labelled)

    def read(self, path: Source) -> list[Row]:
        """Read labelled rows, at least one."""
        raise NotImplementedError

    def hold_out(
        self, rows: Sequence[Row], source: Source, seed: int
    ) -> tuple[Sequence[Row], Sequence[Row] | None]:
        """Split off dev rows if none are given, by a seed; by default there are none."""
        return rows, None

    def stream(self, path: Source) -> Iterator[Row]:
        """Yield rows to predict, without targets."""
        raise NotImplementedError

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        """Learn labels and scales from the training rows."""

    def learn_features(self, rows: Sequence[Row]) -> None:
        """Learn the tags of word features from the training rows, appended to those of
        pretraining."""
        if self.columns.features is None:
            return
        names = feature_names(self.columns.features, len(rows[0].features))
        features = learn_features((row.features for row in rows), names)
        same = [*features] == [*self.pretrained_features]
        known = self.pretrained_features if same else {}
        self.features = {
            name: [*dict.fromkeys((*known.get(name, ()), *tags))] for name, tags in features.items()
        }

    def check(self, rows: Sequence[Row], source: Source, known: str) -> None:
        """Raise ``InputError`` if a target of labelled rows is unsuitable for training and
        evaluation; ``known`` is the origin of the known labels, for messages."""

    # Model inputs and outputs.

    def head_spec(self, description: Description) -> HeadSpec:
        """The head for a model of this family."""
        spec = description.spec_of(self.head)
        if not self.features:
            return spec
        tables = tuple(len(tags) + 1 for tags in self.features.values())
        known = self.pretrained_head(description) or spec
        size = self.settings.feature_size or known.feature_size
        return replace(spec, features=tables, feature_size=size)

    def pretrained_head(self, description: Description) -> HeadSpec | None:
        """The base model's head, if the task's head takes over its word features; None if it has
        none, or other columns or sizes."""
        if not self.features or [*self.features] != [*self.pretrained_features]:
            return None
        spec = next(spec for spec in description.specs if spec.kind == "mlm")
        return spec if self.settings.feature_size in (None, spec.feature_size) else None

    def has_pooler(self, description: Description) -> bool | None:
        """Whether the model to train has a pooler; None: only if its head needs one."""
        return None

    def encode(self, rows: Sequence[Row], builder: Any, *, training: bool) -> EncodedRows:
        """Encode rows as model inputs, with targets where the rows have them; only in ``training``
        may a row become several examples."""
        raise NotImplementedError

    def objective(self, model: "Model") -> "Objective":
        """The objective to train the head with."""
        raise NotImplementedError

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        """Convert logits of the head, (T, ...) or (B, ...), to raw outputs of each row in a batch;
        ``network`` has other parameters of the head."""
        raise NotImplementedError

    def monitor(self, metric: str) -> None:
        """Choose thresholds and compute metrics for this metric; raise ``InputError`` if it does
        not apply to the labels."""
        self.metric = metric

    def tune(self, raws: Sequence[np.ndarray], encoded: EncodedRows, rows: Sequence[Row]) -> None:
        """Choose thresholds with the best metric on these rows."""

    @property
    def given_thresholds(self) -> Mapping[str, float | Aim]:
        """The thresholds of labels in the settings."""
        given = self.settings.threshold
        by_label = given is not None and not isinstance(given, float)
        return read_thresholds(given, self.labels) if by_label else {}

    def with_thresholds(self, thresholds: Mapping[str, float]) -> "Task":
        """A copy of the task that predicts these labels from these probabilities."""
        raise InputError("thresholds of labels do not apply to {name}", self.name)

    def decide(self, raw: np.ndarray, row: Row, note: Any) -> Any:
        """The prediction for a row, from its raw outputs and its note in ``EncodedRows``."""
        return raw

    def decide_each(
        self, raws: Sequence[np.ndarray], rows: Sequence[Row], notes: Sequence[Any]
    ) -> list[Any]:
        return [self.decide(*each) for each in zip(raws, rows, notes, strict=True)]

    def identity(self, row: Row) -> dict[str, Any]:
        """The columns that identify a row in the output: its id, named as in the input, or its
        texts."""
        if row.id is not None or self.columns.id is not None:
            return {self.columns.id or "id": row.id}
        return dict(zip(self.text_keys, row.texts, strict=False))

    def refuse_output_options(self, options: OutputOptions) -> None:
        """Raise ``InputError`` for an option that the task does not support."""
        if others := sorted(options.given - self.output_options):
            known = [Option(name) for name in sorted(self.output_options)]
            if not known:
                raise InputError("{option} does not apply to {name}", Option(others[0]), self.name)
            raise InputError(
                "{option} does not apply to {name}; it supports {options}",
                Option(others[0]),
                self.name,
                known,
            )

    def output_row(
        self, decided: Any, row: Row, options: OutputOptions = PLAIN_OUTPUT
    ) -> dict[str, Any]:
        """A prediction as a row of the output file, after ``identity``."""
        raise NotImplementedError

    def answer(self, decided: Any, row: Row, top_k: int | None = DEFAULT) -> Any:
        """A prediction in the format of ``transformers.pipeline``.

        Args:
            decided: result of ``decide``.
            row: row of the prediction.
            top_k: number of predictions, most probable first, returned as a list; None: all. By
                default as usual for the task.

        Returns:
            A dict, or a list of dicts.
        """
        raise NotImplementedError

    def plain(self, decided: Any, row: Row) -> Any:
        """The bare prediction: a label, labels, a number, tags, a text."""
        raise NotImplementedError

    def is_right(self, decided: Any, row: Row) -> bool:
        """Whether a prediction is completely right: all labels, all tags, the answer."""
        return self.plain(decided, row) == row.target

    def score(self, rows: Sequence[Row], decided: Sequence[Any]) -> Scores:
        """The metrics of the predictions."""
        raise NotImplementedError

    # Saving.

    def begin(self, model: "Model") -> None:
        """Prepare a saved model, whose head is reused, for training."""

    def finish(self, model: "Model") -> "Model":
        """Convert the trained model for saving."""
        return model

    def write(self, folder: Path, model: "Model") -> None:
        """Write additional files into the folder of the finished model."""

    def follow(self, folder: Path) -> None:
        """Read rows as further files in the model's folder require."""

    def load(self, description: Description) -> "Model":
        """The model of a finished folder, with its head."""
        from ownbert.checkpoint import load

        return load(description)

    def values(self) -> dict[str, Any]:
        """Keys of config.json in addition to those of the model."""
        columns = {name: value for name, value in vars(self.columns).items() if value is not None}
        saved = {
            "name": self.name,
            "settings": self.settings.changed(),
            "columns": columns,
            **{name: getattr(self, name) for name in self.saved_attributes},
            **({"features": dict(self.features)} if self.features else {}),
        }
        return {KEY: saved, **({"problem_type": self.problem_type} if self.problem_type else {})}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the ``saved_attributes`` from the result of ``values`` under ``KEY``."""
        for name in self.saved_attributes:
            if name in saved:
                setattr(self, name, saved[name])
        if saved.get("features"):
            self.features = saved["features"]

    # For the user.

    def warnings(self) -> list[str]:
        """Warnings about unusual rows."""
        return []

    def notes(self) -> list[str]:
        """Notes on what the task has inferred from the base model and the training rows."""
        return []

    def notes_on_rows(self) -> list[str]:
        """Notes on how ``read`` has used labelled files."""
        return []

    def length_limit(self, max_length: int) -> str:
        """The length at which rows are truncated, in words."""
        return Message("the model's {max_length} tokens", max_length)

    def describe_columns(self, path: Source, others: Collection[str] = ()) -> str:
        """The columns read from a file, except ``others``, which are used for something else; empty
        if rows are not texts with labels in a table."""
        return ""

    def readable_target(self, row: Row) -> str:
        """The target of a row, for the user."""
        return str(row.target)

    def label_distribution(self, rows: Sequence[Row]) -> str:
        """The distribution of the targets, for the user."""
        return ""

    # Row properties for other steps of fine-tuning.

    def fold_keys(self, row: Row) -> Sequence[Hashable]:
        """Keys of a row, for its texts and its group; rows that share one must be in the same fold,
        so that answers cannot be memorised. Empty texts, such as missing second ones, do not
        connect rows."""
        keys: list[Hashable] = [key for key in map(text_key, row.texts) if key]
        return keys if row.group is None else [*keys, ("group", row.group)]

    def made_row(self, text: str) -> Any:
        """An input made of a text, to warm up a server; None if inputs are no texts."""
        return {"text": text, "text_pair": "a"} if getattr(self, "pair", False) else text

    def shown_texts(self, row: Row) -> Sequence[str]:
        """The texts of a row for the user."""
        return self.pretraining_texts(row)

    def explained_count(self, tokens: int) -> int:
        """Number of predictions that an explanation of a row of so many tokens may have."""
        return 1

    def pretraining_texts(self, row: Row) -> Sequence[str]:
        """The texts of a row for continued pretraining."""
        return row.texts

    def texts_of(self, rows: Sequence[Row]) -> Iterator[str]:
        return (text for row in rows for text in self.pretraining_texts(row))


def named_probabilities(labels: Sequence[str], probabilities: np.ndarray) -> dict[str, float]:
    """The probability of each label, rounded for output files."""
    return {label: round(p, 6) for label, p in zip(labels, probabilities.tolist(), strict=True)}


def ranked(names: Sequence[Any], scores: np.ndarray) -> list[dict[str, Any]]:
    """Labels with their scores (C), highest first, in the format of ``transformers.pipeline``."""
    order = np.argsort(-scores, kind="stable")
    return [{"label": names[i], "score": float(scores[i])} for i in order]


def task_class(name: str) -> type[Task]:
    """The class of a task, by its name or alias."""
    return resolve_name(task_kind(name)[1].task)


def task_of(description: Description, columns: ColumnNames | None = None) -> Task:
    """The task that a folder was fine-tuned for, from its config.json or its head; ``columns`` are
    those named by the user, by default those used in training."""
    saved, folder = description.values.get(KEY) or {}, description.folder or Path()
    name = saved.get("name") or _task_of_head(description, folder)
    if name == "embed" and not saved:
        return untrained_similarity(folder, columns)
    try:
        task = restored_task(name, saved, description.labels, columns)
    except (InputError, TypeError) as error:
        raise InputError("{folder}: {key}: {error}", folder / CONFIG, KEY, error) from None
    try:
        require_tables(task.features, task.head, description.specs)
    except InputError as error:
        raise InputError("{folder}: {error}", folder / CONFIG, error) from None
    task.follow(folder)
    return task


def restored_task(
    name: str, saved: Mapping[str, Any], labels: Sequence[str], columns: ColumnNames | None = None
) -> Task:
    """The task ``name`` as it was in training, from ``saved``, the result of ``Task.values`` under
    ``KEY``; ``columns`` are those named by the user, by default those used in training."""
    settings = TaskSettings.of(name, saved.get("settings") or {})
    named = {k: v for k, v in vars(columns or ColumnNames()).items() if v is not None}
    all_columns = ColumnNames(**{**(saved.get("columns") or {}), **named})
    task = task_class(name)(settings, all_columns, labels)
    task.restore(saved)
    return task


def load_finetuned(folder: str | Path) -> "tuple[Task, Model]":
    description = describe(folder, with_decoder=True)
    task = task_of(description)
    return task, task.load(description)


def _task_of_head(description: Description, folder: Path) -> str:
    kinds = {spec.kind for spec in description.specs}
    if "classification" in kinds and description.config.image is not None:
        return "image"
    if "classification" in kinds:
        problem = description.values.get("problem_type")
        if len(description.labels) == 1 and problem is None:
            return "regress"
        known = {"multi_label_classification": "multilabel", "regression": "regress"}
        return known.get(str(problem), "classify")
    for name, kind in KINDS.items():
        if kind.head in kinds:
            return name
    if (folder / "modules.json").exists():  # a sentence-transformers folder
        return "embed"
    raise NoTaskHead(description)


def untrained_similarity(folder: str | Path, columns: ColumnNames | None = None) -> Task:
    """The similarity task for the folder of any encoder that was not fine-tuned, by its
    ``Embedder`` vectors."""
    pooling = read_embedding_config(Path(folder)).pooling
    task = task_class("embed")(TaskSettings(name="embed", pooling=pooling), columns)
    task.follow(Path(folder))
    return task
