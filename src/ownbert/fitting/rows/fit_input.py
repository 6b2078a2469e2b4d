"""What ``fit`` reads: labelled rows, unlabelled texts, and what follows from them."""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ownbert.checkpoint import Description, describe, load_tokenizer, require_float
from ownbert.corpus.documents import find_files, fingerprint
from ownbert.exceptions import InputError
from ownbert.files.input_files import read_once, refuse_same
from ownbert.finetuning.row_checks import LabelledSplit, empty_texts
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.fitting.rows.added_rows import with_added
from ownbert.fitting.rows.labelled_rows import (
    LOG_LOSS,
    find_task,
    known_in_test,
    read_labelled,
    split_notices,
)
from ownbert.fitting.rows.unlabelled_texts import Corpus, UnlabelledTexts, characters_to_read
from ownbert.hub import model_folder
from ownbert.inference.finished_files import network_files, require_inside
from ownbert.language.messages import Message
from ownbert.settings import resolve
from ownbert.tables.columns import ColumnNames, with_label_columns
from ownbert.tables.memory import MemoryTable, table_of
from ownbert.tables.tables import columns, kind_of
from ownbert.tables.texts_or_files import are_names, corpus_files
from ownbert.tasks.embedding_config import read_pooling
from ownbert.tasks.related_rows import SplitColumns, row_key
from ownbert.tasks.task import Task
from ownbert.train.device import pick_device
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import Texts

# Number of labelled rows from which labels teach more than unlabelled text.
MANY = 3000
# Texts compared per kind, and the share of unknown words from which a warning is shown.
_COMPARED, _OTHER_TEXTS = 5_000, 0.5
# Maximum numbers of unlabelled texts and characters for the views and the distilled network;
# characters per minute, so that fitting the views takes a small share of the time.
_MOST_TEXTS, _MOST_CHARACTERS, _CHARACTERS_PER_MINUTE = 100_000, 20_000_000, 2_000_000
# Minimum number of characters per minute that a network is pretrained on; if the texts like the
# labelled ones are fewer, others are added. One core reads them about forty times.
_FEWEST_PER_MINUTE = 25_000
# Share of texts like the labelled ones below which a warning is shown.
_SIMILAR_SHARE = 0.05
# Words are shorter by about this factor in scripts without spaces.
_UNSPACED_FACTOR = 4
_LABEL_OPTIONS = ("label_names", "positive", "threshold", "skip_unlabelled")
# Settings that may change when a run is resumed, and files, which are compared by content.
_NOT_SETTINGS = ("minutes", "device", "dev", "test", "unlabelled", "add")


class FitInput:
    """The checked input of a run of ``fit`` that writes into ``folder``.

    Args:
        sources: labelled rows, files or tables in memory, by name: train and, optionally, dev and
            test.
        texts: files of unlabelled texts.
        notes: notes for the user on how the rows were read.
        original: the training rows without those that were added, if there are any.
    """

    def __init__(
        self,
        recipe: FitRecipe,
        sources: Mapping[str, Path | MemoryTable],
        texts: Sequence[str],
        folder: Path,
        notes: Sequence[str],
        original: Path | MemoryTable | None = None,
    ) -> None:
        self.recipe, self.notes, self.original = recipe, notes, original or sources["train"]
        pick_device(recipe.device)
        named = ColumnNames(recipe.text_column, recipe.second_column, recipe.label_column)
        self.train = train = sources["train"]
        label_options = {
            "separator": recipe.label_separator,
            **{name: getattr(recipe, name) for name in _LABEL_OPTIONS},
        }
        task = find_task(train, named, recipe.task, label_options)
        for name in ("positive", "threshold"):
            if getattr(recipe, name) is not None and name not in task.uses():
                raise InputError("--{name} does not apply to {task_name}", name, task.name)
        self.base: Description | None = None  # of the network to start from, if one is given
        if recipe.model is not None:
            refuse_same(recipe.model, folder)
            self.base = _checked_model(recipe.model, task)
        # A threshold that the user wants need not be good for F1.
        named = recipe.threshold is not None and not isinstance(recipe.threshold, float)
        self.metric = recipe.metric or ("average_precision" if named else task.metrics[0])
        others = () if task.name == "regress" else ("weighted_f1", LOG_LOSS)
        if self.metric not in (known := (*task.metrics, *others)):
            raise InputError(
                "metric is {metric!r}; {name} has {options}",
                self.metric,
                task.name,
                ", ".join(known),
            )
        self.split = SplitColumns(recipe.group, recipe.time_column)
        self.dev = sources.get("dev")
        options: Any = {"seed": recipe.seed, "per_label": recipe.labels_per_class}
        self.rows = read_labelled(task, train, self.dev, split=self.split, **options)
        if self.metric != LOG_LOSS:
            task.monitor(self.metric)
        self.test = []
        if (test := sources.get("test")) is not None:
            # Test rows need no groups: without them, only shared texts are found.
            split = self.split if self.split.group in columns(test) else SplitColumns()
            self.test = split.with_groups(task.read(test), test)
            task.check(self.test, test, "the training data")
        names = [str(path) for path in find_files(list(texts))] if texts else []
        self.corpus = Corpus(names, _column_in(names, recipe.text_column))
        self.kind = text_kind(text for row in self.rows.texts() for text in row)
        self.labelled = Texts(self.rows.texts(), self.kind)
        self.learnt = Texts(self.rows.texts(self.rows.learnt), self.kind)
        most = self._characters(_CHARACTERS_PER_MINUTE)
        self.read = self._read_unlabelled(characters_to_read(most))
        # Unlabelled texts are not pairs.
        similar, others = self.read.some(0 if self._has_pairs else most, _MOST_TEXTS, recipe.seed)
        self.unlabelled = Texts([(text,) for text in (*similar, *others)], self.kind)
        # The texts that a network is pretrained and taught on.
        self.similar = (
            Texts([(text,) for text in similar], self.kind) if others else self.unlabelled
        )
        settings = {k: v for k, v in asdict(recipe).items() if k not in _NOT_SETTINGS}
        named_rows = {source: f"{name}.jsonl" for name, source in sources.items()}
        several = dict.fromkeys((*named_rows, *map(Path, names)))
        files = [_content(source, named_rows.get(source, "")) for source in several]
        self.identity = {"files": files, "settings": settings}

    @property
    def learnt_from_test(self) -> int:
        """Number of test rows whose texts are also in the training data."""
        keys = {row_key(row) for row in self.rows.training} if self.test else set()
        return sum(row_key(row) in keys for row in self.test)

    @property
    def known_groups_in_test(self) -> int:
        """Number of test rows whose group is also in the training data."""
        groups = {row.group for row in self.rows.training} - {None}
        return sum(row.group in groups for row in self.test)

    @property
    def _has_pairs(self) -> bool:
        return len(self.rows.rows[0].texts) > 1

    def _read_unlabelled(self, characters: int) -> UnlabelledTexts:
        """The unlabelled texts up to a number of characters; if some are unlike the labelled texts,
        the corpus is restricted to the others."""
        # Test rows must not be trained on at all, and dev rows may only be used for selection.
        rows = (*self.rows.rows, *self.test) if self.corpus.files else ()
        known = {text for row in rows for text in row.texts}
        unlabelled = UnlabelledTexts.read(
            self.corpus.texts(characters),
            [" ".join(row) for row in self.learnt.rows],
            known,
            self.kind,
            characters=characters,
            fewest=self._characters(_FEWEST_PER_MINUTE),
        )
        self.corpus = replace(
            self.corpus, similar=unlabelled.similar, restricted=len(unlabelled.others) > 0
        )
        return unlabelled

    def _characters(self, per_minute: int) -> int:
        """A number of characters per minute, up to a maximum, for the whole run."""
        factor = _UNSPACED_FACTOR if self.kind == "chinese" else 1
        return min(_MOST_CHARACTERS, int(per_minute * max(1.0, self.recipe.minutes))) // factor

    def _mismatch_warning(self) -> str | None:
        """A warning if the unlabelled texts seem to be of another kind."""
        count, alike = len(self.read), self.read.alike
        if self.corpus.restricted and alike < _SIMILAR_SHARE * count:
            return Message(
                "warning: only {alike:,} of the {count:,} unlabelled texts are like the "
                "labelled ones: are they of the same kind?",
                alike,
                count,
            )
        if not len(self.unlabelled):
            return None
        some = Texts(self.unlabelled.rows[:_COMPARED], self.kind)
        words = {token for text in some.tokens for token in text}
        tokens = [token for text in self.labelled.tokens[:_COMPARED] for token in text]
        share = sum(token not in words for token in tokens) / max(1, len(tokens))
        if share <= _OTHER_TEXTS:
            return None
        return Message(
            "warning: {share:.0%} of the words in the labelled texts do not occur in the "
            "unlabelled texts: are these of the same kind?",
            share,
        )

    @cached_property
    def notices(self) -> list[str]:
        """What was found in the files, one line each."""
        return list(self._notices())

    def _notices(self) -> Iterator[str]:
        rows, task = self.rows, self.rows.task
        labels = ""
        if task.name != "regress":
            labels = Message(", {count} {unit!t}", len(task.labels), "labels")
        words = {"ids": "ids", "chinese": "a script without spaces"}.get(self.kind, "words")
        yield (
            Message(
                "{task}: {count:,} labelled texts of {words!t}{labels}; {unlabelled:,} "
                "unlabelled texts; compared on {rows}; {minutes:g} min",
                *(
                    task.name,
                    len(rows.learnt),
                    words,
                    labels,
                    len(self.read),
                    rows.source,
                    self.recipe.minutes,
                ),
            )
        )
        yield from self._unlabelled_notices()
        used = self.split.named(self.train).values()
        if described := task.describe_columns(self.train, used):
            yield Message("columns: {columns}", described)
        yield from self.notes
        yield from task.notes()
        yield from (Message("warning: {line!t}", line) for line in task.warnings())
        yield from split_notices(rows, self.split, self.original, self.dev)
        split = LabelledSplit("training", rows.training, str(self.train), task.unit)
        for empty in empty_texts(split):
            yield Message("warning: {line!t}", empty.line)

    def _unlabelled_notices(self) -> Iterator[str]:
        """Messages about how the unlabelled texts are used."""
        count, used = len(self.read), len(self.unlabelled)
        if self.corpus.files and not count:
            yield Message("warning: the unlabelled texts are all labelled or test texts too")
        elif count and self._has_pairs:
            yield "the rows are pairs of texts: unlabelled texts are only used for pretraining"
        elif used < count:
            yield Message(
                "linear models learn from {used:,} of the unlabelled texts, for lack of time", used
            )
        if self.corpus.restricted:
            yield Message(
                "the network learns from the {count:,} unlabelled texts that are most like the "
                "labelled ones",
                len(self.read.similar),
            )
        if warning := self._mismatch_warning():
            yield warning

    def test_notices(self) -> Iterator[str]:
        """Lines for a preview; a run reports this beside the score."""
        known = (self.learnt_from_test, self.known_groups_in_test, len(self.test))
        yield from (Message("warning: {line!t}", sentence) for sentence in known_in_test(*known))

    @property
    def pretrains(self) -> bool:
        """Whether a network is pretrained, because the user gives none."""
        return self.recipe.model is None

    @property
    def can_teach(self) -> bool:
        """Whether there are, or can be generated, texts for distillation: impossible for sentence
        pairs; a network given by the user only uses unlabelled texts, not generated ones."""
        return not self._has_pairs and (len(self.unlabelled) > 0 or self.pretrains)

    @property
    def ngrams_help(self) -> bool:
        """Whether to fit a network with n-gram embeddings.

        It requires many rows, and is only useful where no network can be distilled
        (docs/lab/distilled-network.md). In a blend with a sentence model it got zero weight.
        """
        model = self.recipe.model
        sentence_model = model is not None and (model_folder(model) / "modules.json").exists()
        many = len(self.rows.learnt) >= MANY
        return many and not self.can_teach and not sentence_model


@contextlib.contextmanager
def checked_input(train: Any, folder: Path, options: Mapping[str, Any]) -> Iterator[FitInput]:
    """Yield the checked input of a run; unlabelled texts in memory are kept in temporary files.

    Args:
        train: labelled rows, as for ``fit``.
        folder: folder to write.
        options: ``dev``, ``test``, ``unlabelled``, ``add`` and settings of ``FitRecipe`` by name.
    """
    options = with_label_columns(options)
    unlabelled, add = options.pop("unlabelled", None), options.pop("add", None)
    unlabelled = () if unlabelled is None else unlabelled
    data = {"train": train, **{name: options.pop(name, None) for name in ("dev", "test")}}
    with corpus_files(unlabelled) as texts:
        rows = {
            name: Path(source)
            if isinstance(source, str | os.PathLike)
            else table_of(source, name=f"the {name} data", trim=True)
            for name, source in data.items()
            if source is not None
        }
        named = {name: str(source) for name, source in rows.items() if isinstance(source, Path)}
        options |= {name: named.get(name) for name in ("dev", "test")}
        # The saved recipe must not name temporary files.
        options["unlabelled"] = tuple(texts) if are_names(unlabelled) else ()
        options["add"] = _names(add)
        recipe = resolve(FitRecipe, options=options)
        notes: list[str] = []
        original = rows["train"]
        files = (*named.values(), *options["add"])
        with read_once(files):
            if add is not None:
                columns_named = ColumnNames(
                    recipe.text_column, recipe.second_column, recipe.label_column
                )
                split = SplitColumns(recipe.group, recipe.time_column)
                merged = with_added(rows["train"], add, columns_named, recipe.task, split)
                rows["train"], notes = merged
            inputs = FitInput(recipe, rows, texts, folder, notes, original)
            _ = inputs.notices  # read from the files too
        yield inputs


def _content(source: Path | MemoryTable, name: str) -> dict[str, str]:
    """The name of a file and the checksum of its content; for rows in memory those of a file of
    this name."""
    if isinstance(source, MemoryTable):
        digest = hashlib.sha256()
        for line in source.lines():
            digest.update(line.encode())
        return {"name": name, "sha256": digest.hexdigest()}
    (found,) = fingerprint(source)
    return {key: found[key] for key in ("name", "sha256")}


def _names(sources: Any) -> tuple[str, ...]:
    """File names for the recipe; empty for rows in memory."""
    if sources is None or not are_names(sources):
        return ()
    return (str(sources),) if isinstance(sources, str | os.PathLike) else tuple(map(str, sources))


def _column_in(names: Sequence[str], column: str | None) -> str | None:
    """The column named for the labelled rows if tables of unlabelled texts have it too; otherwise
    None, which means the usual names."""
    tables = [name for name in names if kind_of(name) != "txt"]
    return column if tables and all(column in columns(name) for name in tables) else None


def _checked_model(folder: str, task: Task) -> Description:
    """The description of a model; an unsuitable one is rejected before anything is fitted."""
    description = describe(folder)
    require_float(description.values, folder)
    task.check_modality(description, folder)
    load_tokenizer(description)
    place = model_folder(folder)
    read_pooling(place)
    require_inside(place, network_files(place))
    if not any(any(place.glob(name)) for name in ("*.safetensors", "pytorch_model*.bin")):
        raise InputError("{folder} has no weights (model.safetensors)", folder)
    return description
