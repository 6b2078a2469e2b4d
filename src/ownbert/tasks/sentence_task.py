"""Tasks with one prediction per text or pair of texts: reading, pooling, long documents."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.batches.word_features import cut_words, word_table
from ownbert.checkpoint import Description
from ownbert.config.head_spec import HeadSpec
from ownbert.exceptions import InputError, warn_of_input
from ownbert.files.text_files import open_text
from ownbert.hub import model_folder
from ownbert.language.messages import Message, Option, join
from ownbert.tables.columns import ColumnNames, find_columns
from ownbert.tables.feature_cells import refuse_plain_text
from ownbert.tables.labels import LabelCells
from ownbert.tables.memory import MemoryTable
from ownbert.tables.missing_values import is_missing
from ownbert.tables.name_lists import split_names
from ownbert.tables.tables import Source, at_least_one, columns, kind_of, shown_columns
from ownbert.tasks.embedding_config import read_pooling
from ownbert.tasks.finetune_recipe import FinetuneModel, FinetuneRecipe, TaskSettings
from ownbert.tasks.row_network import RowNetwork, mean_per_row
from ownbert.tasks.rows import Row, TableRow, read_table
from ownbert.tasks.tag_rows import encode_words
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows

# Code in the model card: logits of one text with Transformers.
LOGITS = 'logits = model(**tokenizer(TEXTS, truncation=True, return_tensors="pt")).logits'

# Settings of these tasks for windows; ``long`` "auto" fills them in.
_WINDOWS = ("long", "window", "stride", "max_windows", "train_windows", "window_mean")

# With ``long`` "auto", documents are truncated if at most this share of the training rows is
# affected. Otherwise they are split into windows of the length most frequent in pretraining, up to
# a maximum number of tokens, and an epoch trains on fewer windows (docs/lab/long-documents.md).
_FEW_LONG = 0.05
_WINDOW = 128
_DOCUMENT_TOKENS = 32_768
_TRAINING_TOKENS = 512


class SentenceTask(Task):
    """One prediction per text or pair of texts, by the classification head on the pooled text. Long
    documents may be split into windows."""

    head = "classification"
    hidden_settings = frozenset(_WINDOWS)
    saved_attributes = (*Task.saved_attributes, "pair")
    pair: bool | None = None  # whether rows are pairs of texts; None before the first file
    pooling_note = ""  # for the user, if the pooling of the base model is used
    long_note = ""  # on the choice of ``long`` "auto", unless documents are truncated
    label_note = ""  # on how ambiguous labels were read
    label_warnings: Sequence[str] = ()  # about the labels of the training rows
    is_missing = staticmethod(is_missing)  # whether a cell has no target
    # Labels in the first rows read, which determine how other files are read.
    _seen: frozenset[str] = frozenset()

    def find_columns(
        self, path: Source, named: ColumnNames | None = None, *, labelled: bool = True
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """The columns of the texts, of the targets if ``labelled``, and of word features; ``named``
        are those named by the user, by default ``columns``."""
        columns_by_role = find_columns(
            path, self.column_specs, named or self.columns, labelled=labelled, pair=self.pair
        )
        texts = (*columns_by_role["text"], *columns_by_role.get("second", ()))
        return texts, columns_by_role.get("label", ()), columns_by_role.get("features", ())

    def read_table(self, path: Source) -> tuple[tuple[str, ...], list[TableRow]]:
        """The target columns, and at least one row with these as cells."""
        texts, labels, features = self.find_columns(path)
        if features and len(texts) == 2:
            raise InputError(
                "{path}: feature columns belong to single texts, but the rows have two; name "
                "one column with {--text-column}",
                path,
            )
        rows = list(read_table(path, texts, labels, features=features))
        if self.settings.skip_unlabelled:
            labelled = [row for row in rows if not any(map(self.is_missing, row.cells))]
            if not labelled:
                raise InputError("{path}: no row has a label", path)
            if skipped := len(rows) - len(labelled):
                total = f"{skipped:,} of {len(rows):,}"
                warn_of_input("{path}: rows without a label, left out: {total}", path, total)
            rows = labelled
        self.pair = len(texts) == 2
        return labels, rows

    def label_cells(self, rows: Sequence[TableRow], column: str) -> LabelCells:
        """The first cell of each row, which contains its labels."""
        return LabelCells([row.cells[0] for row in rows], [row.where for row in rows], column)

    @property
    def known_labels(self) -> frozenset[str]:
        """The learnt labels, or those of the first rows read; empty before."""
        return frozenset(self.labels) or self._seen

    @property
    def vector_names(self) -> list[str]:
        """The label names that the user gave for vectors of 0 and 1."""
        names = self.settings.label_names
        return [] if names is None else split_names(names)

    def stream(self, path: Source) -> Iterator[Row]:
        if isinstance(path, MemoryTable) or kind_of(path) != "txt":
            texts, _, features = self.find_columns(path, labelled=False)
            rows = read_table(path, texts, id=self.columns.id, features=features)
            return (Row(row.line, row.texts, id=row.id, features=row.features) for row in rows)
        refuse_plain_text(path, self.columns.features)
        if self.pair:
            raise InputError("{path} is plain text; two texts per row need a table", path)
        return (Row(line, (text,)) for line, text in at_least_one(open_text(path), path))

    def unused_columns(self, path: Source) -> list[str]:
        used = {name for names in self.find_columns(path) for name in names}
        return [name for name in columns(path) if name not in used]

    def describe_columns(self, path: Source, others: Collection[str] = ()) -> str:
        texts, labels, _ = self.find_columns(path)
        inputs, targets = join(map(repr, texts), " and "), ", ".join(map(repr, labels))
        description = Message("{inputs} as input, {targets} as target", inputs, targets)
        unused = [name for name in self.unused_columns(path) if name not in others]
        rest = Message(" (not used: {columns})", shown_columns(unused))
        return description + rest if unused else description

    def describe_base(self, model: FinetuneModel) -> Description | None:
        description = super().describe_base(model)
        if self.settings.pooling is not None or description is None:
            return description
        if (pooling := read_pooling(model_folder(model.folder))) is not None:
            usual = self.head_spec(description).pooling
            # Stored for the other models of an ensemble.
            self.settings = replace(self.settings, pooling=pooling)
            if pooling != usual:
                self.pooling_note = Message(
                    "{pooling} pooling, as in {folder} for embeddings; Transformers has no such "
                    "classifier (with {usual} it can load the folder)",
                    *(pooling, model.folder, Option("--pooling", usual)),
                )
        return description

    def complete_recipe(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        recipe, own = super().complete_recipe(recipe, builder), self.settings
        filled_in = {name: getattr(own, name) for name in ("pooling", *_WINDOWS)}
        return replace(recipe, task=replace(recipe.task, **filled_in))

    def notes(self) -> list[str]:
        return [note for note in (self.label_note, self.pooling_note, self.long_note) if note]

    def warnings(self) -> list[str]:
        return [*super().warnings(), *self.label_warnings]

    def head_spec(self, description: Description) -> HeadSpec:
        spec, settings = super().head_spec(description), self.settings
        if spec.features is None:
            spec = replace(spec, pooling=settings.pooling or spec.pooling)
        # The first word is [CLS], which has no features. "first" adds a layer, as in SemBERT.
        elif settings.pooling in ("pooler", "first"):
            spec = replace(spec, pooling="first", dense="tanh", dropout_first=False)
        else:
            spec = replace(spec, pooling=settings.pooling or "mean", dense=None)
        if settings.long == "segments":
            spec = replace(spec, segments="attention")
        if settings.ngrams is not None:
            spec = replace(spec, ngrams=settings.ngrams)
        return spec

    def length_limit(self, max_length: int) -> str:
        if not self.reads_windows:
            return super().length_limit(max_length)
        return Message(
            "{max_windows} windows of {window} tokens",
            self.settings.max_windows,
            self._window(max_length),
        )

    def target(self, row: Row) -> Any:
        """The label of a row as expected by the objective."""
        raise NotImplementedError

    @property
    def reads_windows(self) -> bool:
        """Whether long documents are split into windows; before training they are truncated."""
        return self.settings.long in ("windows", "segments")

    def _window(self, max_length: int) -> int:
        return min(self.settings.window or max_length, max_length)

    def _room(self, builder: Any) -> int:
        """Tokens of a window without special tokens."""
        return builder.room - (builder.max_length - self._window(builder.max_length))

    def targets(self, rows: Sequence[Row]) -> list[Any]:
        """``target`` of each row, None for rows without one."""
        return [None if row.target is None else self.target(row) for row in rows]

    def encode(self, rows: Sequence[Row], builder: Any, *, training: bool) -> EncodedRows:
        pairs = any(len(row.texts) > 1 for row in rows)
        if training and self.pair is None:
            self.pair = pairs
        if self.features and self.reads_windows:
            raise InputError(
                "task.long {long} cannot be combined with feature columns; use task.long cut",
                self.settings.long,
            )
        tables: Sequence[np.ndarray | None] = [None] * len(rows)
        if self.features:
            ids_by_row, tables = self._ids_of_words(rows, builder)
        else:
            most = None  # for training all ids; truncating a pair depends on both lengths
            if not training and not pairs:  # one more, to detect longer texts
                most, stride = builder.room + 1, self.settings.stride
                if self.reads_windows:
                    most = self.settings.max_windows * (self._room(builder) - stride) + stride + 1
            ids_by_row = list(builder.ids_by_row(rows, most))
        if training and self.settings.long == "auto":
            self._choose_long(ids_by_row, builder)
        if training and self.settings.long == "windows":
            mean = self.settings.window_mean or "logits"
            self.settings = replace(self.settings, window_mean=mean)
        settings, examples, truncated = self.settings, [], 0
        room = self._room(builder)
        if self.reads_windows and room <= settings.stride:
            raise InputError(
                "task.stride is {stride}; with windows of {window} tokens it must be below {room}",
                settings.stride,
                self._window(builder.max_length),
                room,
            )
        if self.reads_windows and pairs:
            raise InputError(
                "task.long {long} is for single texts, but the rows have two; use task.long cut",
                settings.long,
            )
        weighted = any(row.weight != 1 for row in rows)
        columns = zip(rows, self.targets(rows), ids_by_row, tables, strict=True)
        for row, target, texts, table in columns:
            fields: dict[str, Any] = {} if target is None else {"label": target}
            if table is not None:
                fields["words"] = table
            if weighted:
                fields["weight"] = np.float32(row.weight)
            if self.reads_windows:
                stride, most = settings.stride, settings.max_windows
                example, cut = builder.windows(
                    texts[0], room=room, stride=stride, most=most, **fields
                )
            else:
                example, cut = builder.example(texts, **fields)
            examples.append(example)
            truncated += cut
        windows = settings.train_windows if training else None
        return EncodedRows(examples, truncated, windows=windows, seed=self.seed)

    def _ids_of_words(
        self, rows: Sequence[Row], builder: Any
    ) -> tuple[list[list[list[int]]], list[np.ndarray]]:
        """The ids of each text, encoded word by word, and its words with their features."""
        words = [row.texts[0].split() for row in rows]
        ids = encode_words([word for text_words in words for word in text_words], builder)
        texts, tables, special = [], [], (builder.format.before, builder.format.behind)
        for row, text_words in zip(rows, words, strict=True):
            text, sizes = cut_words([ids[word] for word in text_words], builder.room)
            texts.append([text])
            tables.append(word_table(sizes, row.features, self.features, special))
        return texts, tables

    def _choose_long(self, ids_by_row: Sequence[Sequence[Sequence[int]]], builder: Any) -> None:
        """Replace ``long`` "auto" in the settings by the choice that suits the training rows."""
        settings = self.settings
        long = sum(len(text_ids[0]) > builder.room for text_ids in ids_by_row)
        if self.pair or self.features or long <= _FEW_LONG * len(ids_by_row):
            self.settings = replace(settings, long="cut")
            return
        window = min(settings.window or _WINDOW, builder.max_length)
        most = settings.max_windows
        if most == TaskSettings.max_windows:
            most = max(most, _DOCUMENT_TOKENS // window)
        self.settings = replace(
            settings,
            long="windows",
            window=window,
            # Windows advance by at least about half of their length.
            stride=min(settings.stride, window // 2 - 1),
            max_windows=most,
            train_windows=settings.train_windows or max(1, _TRAINING_TOKENS // window),
        )
        self.long_note = Message(
            "{count:,} of {rows:,} training {unit!t} are longer than the model's {length} tokens: "
            "all are read in windows of {window}",
            *(long, len(ids_by_row), self.unit, builder.max_length, window),
        )

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """(B, C) -> (B, C): probabilities or values."""
        raise NotImplementedError

    @property
    def averages_logits(self) -> bool:
        """Whether the mean over the windows of a document is that of logits, not probabilities."""
        return self.settings.window_mean == "logits"

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        if self.averages_logits:
            return list(self.probabilities(mean_per_row(logits, examples)))
        return list(mean_per_row(self.probabilities(logits), examples))
