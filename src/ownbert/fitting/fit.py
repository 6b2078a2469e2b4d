"""``fit``: find the best model for labelled and unlabelled text within a time budget."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert.checkpoint import CONFIG, describe, load_tokenizer
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.corpus.documents import find_files, fingerprint
from ownbert.errors import InputError, in_short
from ownbert.files.encodings import reads_encoding
from ownbert.files.folders import inside, refuse_both, refuse_foreign, writing
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import atomic_path, make_folder, uninterrupted, write_text
from ownbert.finetuning.default_settings import FEW
from ownbert.finetuning.preview import label_shares
from ownbert.fitting.added_rows import with_added
from ownbert.fitting.attempts import Attempts
from ownbert.fitting.budget import Budget
from ownbert.fitting.candidates import (
    PROBE_VECTORS,
    ComparedModel,
    Comparison,
    best_network,
    check_metric,
    fit_probe,
    fit_view,
    view_names,
)
from ownbert.fitting.findings import TIMED, make_report
from ownbert.fitting.fit_card import write_fit_card
from ownbert.fitting.fit_progress import Progress, found_in_files
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.fitting.fit_state import STATE, FitState, saved_scores
from ownbert.fitting.held_out_rows import keep_held_out
from ownbert.fitting.labelled_rows import find_task, read_labelled
from ownbert.fitting.minutes_curve import Checkpoints, Points
from ownbert.fitting.networks import (
    Corpus,
    calibrate_network,
    copy_network,
    finetune_on,
    is_pretrained,
    pretrain_on,
    start_on,
)
from ownbert.fitting.report.report import write_report
from ownbert.fitting.teaching.joined_network import TokenScores, imitate, join, start_of
from ownbert.fitting.teaching.self_training import self_train
from ownbert.fitting.teaching.student import teach
from ownbert.hub import model_folder
from ownbert.inference.blend import Blend, BlendMember
from ownbert.inference.compute import Compute
from ownbert.inference.finished_files import (
    BESIDE_WEIGHTS,
    REPORTS,
    network_files,
    require_inside,
)
from ownbert.inference.frozen_probe import ENCODER
from ownbert.inference.opened import Networks, characters, describe_members
from ownbert.inference.opened_blend import score_all
from ownbert.inference.pipeline import Predictor
from ownbert.run.file_names import BLEND, HELD_OUT, HELD_OUT_NETWORK, RECIPE
from ownbert.settings import dump, resolve
from ownbert.tables.columns import ColumnNames, with_label_columns
from ownbert.tables.memory import table_of
from ownbert.tables.tables import Source, columns, kind_of
from ownbert.tables.texts_or_files import are_names, corpus_files, rows_by_other_names
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.train.device import pick_device
from ownbert.train.distributed import under_torchrun
from ownbert.views.tokens import text_kind
from ownbert.views.view_features import VIEWS, Texts

# Titles of candidates; linear models use the titles of their views.
_SELF_TRAINED = "linear models, self-trained"
_PROBE = "linear on the frozen network"
_START = "network, only its head trained"
_JOINED = "network, linear models built in"
_NETWORK, _NGRAM_NETWORK = "network, fine-tuned", "network with n-grams, fine-tuned"
_STUDENT = "distilled network"
# Names of other steps in messages about skipped steps.
_PRETRAINED, _MINUTES = "pretraining a network", "gain from pretraining time"

# Folder for intermediate files.
WORK = "work"
# Everything that a run may write into the output folder.
_WRITTEN = (
    *(RECIPE, STATE, BLEND, HELD_OUT, HELD_OUT_NETWORK, WORK, "members", WEIGHTS),
    *(*REPORTS, *BESIDE_WEIGHTS),
)
# Settings that may change when a run is resumed, and files, which are compared by content.
_NOT_SETTINGS = ("minutes", "device", "dev", "test", "unlabelled", "add")
# Share of the time left by the linear models; the smaller one applies with many labelled rows,
# which teach more than unlabelled text. No network is pretrained if the user gives one.
_PRETRAINING, _PRETRAINING_FOR_MANY = 0.45, 0.3
# Shares of the total time; the distilled network gets what is left.
_FINETUNING, _NGRAM_SHARE, _FINETUNING_GIVEN, _PROBING = 0.2, 0.15, 0.45, 0.1
_JOINING = 0.1
# Minimum lead of a linear model over the fine-tuned network, in the metric, from which building the
# linear models into the distilled network helps (docs/lab/distilled-network.md).
_FAR_BETTER = 0.05
# Another fold is trained if the remaining time is at least the expected time divided by this.
_SHORTENED = 1.5
# Linear models are self-trained if unlabelled texts outnumber labelled ones by this factor.
_SELF_TRAINING_FROM = 2
# Number of labelled rows from which labels teach more than unlabelled text; size of the n-gram
# table.
_MANY, _NGRAMS = 3000, 1 << 18
# Seconds; shorter pretraining does not produce a useful network.
_SHORTEST_PRETRAINING = 10.0
# Texts compared per kind, and the share of unknown words from which a warning is shown.
_COMPARED, _OTHER_TEXTS = 5_000, 0.5
_VECTORS = "vectors of the labelled texts"
_OWN_NETWORK = "the network that Transformers loads"
# No further step is started with less time than this, in seconds.
_SHORTEST = 5.0
# Maximum numbers of unlabelled texts and characters for the views and the distilled network;
# characters per minute, so that fitting the views takes a small share of the time.
_MOST_TEXTS, _MOST_CHARACTERS, _CHARACTERS_PER_MINUTE = 100_000, 20_000_000, 2_000_000
# Words are shorter by about this factor in scripts without spaces.
_UNSPACED_FACTOR = 4


def fit(
    train: Any = None,
    labels: Any = None,
    *,
    output: str | Path | None = None,
    dev: Any = None,
    test: Any = None,
    unlabelled: Any = (),
    add: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    debug: bool = False,
    **options: Any,
) -> Predictor:
    """Find the best model for labelled and unlabelled text within a time budget.

    Linear models, networks and their blend are compared on held-out rows; the network distilled
    from the blend is saved as an ordinary Hugging Face folder. If time runs out or the run is
    interrupted, the finished models are used.

    Args:
        train: labelled rows: a file, a DataFrame, (texts, labels), or a list of {text, label}.
        labels: labels of the rows if ``train`` contains only texts.
        output: folder to write; by default a temporary one.
        dev: rows for model selection, in the same form; by default a part of ``train``.
        test: rows not used for selection, in the same form; the report shows their scores.
        unlabelled: one file, several files, or a list of texts.
        add: rows labelled later, for example those of ``to_label``: files or rows in memory. Rows
            without a label are skipped; an added label replaces the label of the same text.
        resume: continue a run that was stopped.
        overwrite: replace the contents of ``output``.
        quiet: print nothing.
        debug: show the traceback of a step that fails; the run continues without it.
        options: settings of ``FitRecipe`` by name, such as ``minutes`` and ``model``.

    Returns:
        The predictor: ``predictor("text")``.

    Raises:
        InputError: files, labels or settings cannot be used; nothing has been written.
    """
    options["dev"] = dev
    train, labels = rows_by_other_names(train, labels, options)
    dev = options.pop("dev")
    if train is None:
        raise InputError("labelled rows are needed: fit(texts, labels), or fit(file or table)")
    return Predictor(
        fit_folder(
            train if labels is None else (train, labels),
            output=output,
            dev=dev,
            test=test,
            unlabelled=unlabelled,
            add=add,
            resume=resume,
            overwrite=overwrite,
            quiet=quiet,
            debug=debug,
            **options,
        )
    )


@reads_encoding
def fit_folder(
    train: Any,
    *,
    output: str | Path | None = None,
    dev: Any = None,
    test: Any = None,
    unlabelled: Any = (),
    add: Any = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    debug: bool = False,
    started: float | None = None,
    **options: Any,
) -> Path:
    """Like ``fit``, but return the output folder without loading the models.

    Args:
        started: start of the time budget by ``time.monotonic``; by default now.
    """
    started = time.monotonic() if started is None else started
    refuse_both(resume=resume, overwrite=overwrite)
    if under_torchrun():
        raise InputError("fit runs in one process; start it without torchrun")
    folder = Path(tempfile.mkdtemp(prefix="ownbert-fit-") if output is None else output)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; -o must name a folder")
    resolve(FitRecipe, options=with_label_columns(options))  # report wrong settings first
    taken = any((folder / name).exists() for name in (STATE, BLEND, CONFIG))
    if taken and not (resume or overwrite):
        raise InputError(
            f"{folder} already contains a model; continue with --resume, start over with "
            "--overwrite, or choose another folder"
        )
    refuse_foreign(folder, _WRITTEN)
    given = (train, folder, dev, test, unlabelled, add, options)
    with (
        writing(folder),
        _checked(*given, quiet=quiet, debug=debug, started=started) as run,
    ):
        if overwrite:
            model = run.recipe.model
            if model and folder.resolve() in Path(model).resolve().parents:
                raise InputError(f"{model} is in {folder}, which would be overwritten")
            _clear(folder)
        empty = not any(folder.glob("*"))
        try:
            run.run(resume=resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.stopped()) from None
        finally:
            if empty and not run.candidates:  # the disk was full: nothing to resume
                for name in ("members", WORK):
                    shutil.rmtree(folder / name, ignore_errors=True)
                (folder / RECIPE).unlink(missing_ok=True)
    return folder


@reads_encoding
def preview_fit(
    train: Any,
    *,
    dev: Any = None,
    test: Any = None,
    unlabelled: Any = (),
    add: Any = None,
    **options: Any,
) -> str:
    """Describe what ``fit`` would do with the same arguments, without writing anything."""
    given = (train, Path("own-bert"), dev, test, unlabelled, add, options)
    with _checked(*given, quiet=True) as run:
        return "\n".join(run.preview())


@contextlib.contextmanager
def _checked(
    train: Any,
    folder: Path,
    dev: Any,
    test: Any,
    unlabelled: Any,
    add: Any,
    options: dict[str, Any],
    *,
    quiet: bool,
    debug: bool = False,
    started: float | None = None,
) -> "Iterator[Fit]":
    """Yield a run with checked files and settings; rows in memory are kept in temporary files."""
    unlabelled = () if unlabelled is None else unlabelled
    with (
        tempfile.TemporaryDirectory(prefix="ownbert-rows-") as scratch,
        corpus_files(unlabelled) as texts,
    ):
        rows = {
            name: _LabelledSource.of(data, name, Path(scratch))
            for name, data in (("train", train), ("dev", dev), ("test", test))
            if data is not None
        }
        options = with_label_columns(options)
        named = {name: str(source.rows) for name, source in rows.items() if source.is_file}
        options |= {name: named.get(name) for name in ("dev", "test")}
        # The saved recipe must not name temporary files.
        options["unlabelled"] = tuple(texts) if are_names(unlabelled) else ()
        options["add"] = _names(add)
        recipe = resolve(FitRecipe, options=options)
        notes: list[str] = []
        if add is not None:
            named = ColumnNames(recipe.text_column, recipe.second_column, recipe.label_column)
            every, notes = with_added(rows["train"].rows, add, named, recipe.task)
            rows["train"] = _LabelledSource.of(every, "train", Path(scratch))
        yield Fit(
            recipe, rows, texts, folder, notes=notes, quiet=quiet, debug=debug, started=started
        )


class _LabelledSource(NamedTuple):
    """Labelled rows as given by the user.

    Args:
        rows: input for the task: a file, or a table in memory with a name for messages.
        file: file with the same rows; its content identifies them when a run is resumed.
    """

    rows: Source
    file: Path

    @property
    def is_file(self) -> bool:
        return self.rows is self.file

    @classmethod
    def of(cls, data: Any, name: str, scratch: Path) -> "_LabelledSource":
        """Wrap rows passed to ``fit`` as the argument ``name``."""
        if isinstance(data, str | os.PathLike):
            path = Path(data)
            return cls(path, path)
        path, table = scratch / f"{name}.jsonl", table_of(data, name=f"the {name} data")
        table.write(path)
        return cls(table, path)


def _names(given: Any) -> tuple[str, ...]:
    """File names for the recipe; empty for rows in memory."""
    if given is None or not are_names(given):
        return ()
    return (str(given),) if isinstance(given, str | os.PathLike) else tuple(map(str, given))


def _column_in(names: Sequence[str], column: str | None) -> str | None:
    """The column named for the labelled rows if tables of unlabelled texts have it too; otherwise
    None, which means the usual names."""
    tables = [name for name in names if kind_of(name) != "txt"]
    return column if tables and all(column in columns(name) for name in tables) else None


def _check_model(folder: str, task: Task) -> None:
    """Reject an unsuitable model before anything is fitted."""
    description = describe(folder)
    task.check_modality(description, folder)
    load_tokenizer(description)
    place = model_folder(folder)
    require_inside(place, network_files(place))
    if not any(any(place.glob(name)) for name in ("*.safetensors", "pytorch_model*.bin")):
        raise InputError(f"{folder} has no weights (model.safetensors)")


def _clear(folder: Path) -> None:
    """Remove only what an earlier run has written."""
    if not any((folder / name).exists() for name in (STATE, BLEND)):
        return
    for name in (WORK, "members"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (STATE, BLEND, HELD_OUT, HELD_OUT_NETWORK, RECIPE, CONFIG, "model.safetensors"):
        (folder / name).unlink(missing_ok=True)


def _without_unset(identity: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without settings that are None: earlier versions had fewer settings, and tiny as
    the default size."""
    settings = identity.get("settings") or {}
    unset = {"size": "tiny"}
    kept = {k: v for k, v in settings.items() if v is not None and v != unset.get(k)}
    return {**identity, "settings": kept}


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first difference between two identities, with the earlier run's value."""
    old, new = before["settings"], now["settings"]
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            option = f"--{name.replace('_', '-')}"
            return f"{option} {in_short(old[name])}" if name in old else f"no {option}"
    return "other files"


class Made(NamedTuple):
    """The result of a step of ``fit``; for the fields, see ``ComparedModel``."""

    folders: Sequence[str]
    scores: np.ndarray | None = None
    first: Sequence[str] = ()
    partial: np.ndarray | None = None
    share: float = 0.0


class Fit:
    """A run of ``fit``. The constructor reads and checks its input; ``run`` writes.

    Args:
        recipe: settings of the run.
        given: labelled rows by name: train and, optionally, dev and test.
        texts: files of unlabelled texts.
        folder: folder to write.
        notes: notes for the user on how the rows were read.
        quiet: print nothing.
        debug: whether to show the traceback of a step that fails.
        started: start of the time budget by ``time.monotonic``; by default now.
    """

    def __init__(
        self,
        recipe: FitRecipe,
        given: Mapping[str, _LabelledSource],
        texts: Sequence[str],
        folder: Path,
        *,
        notes: Sequence[str] = (),
        quiet: bool = False,
        debug: bool = False,
        started: float | None = None,
    ) -> None:
        self.recipe, self.folder, self.notes = recipe, folder, notes
        pick_device(recipe.device)
        self.budget = Budget(recipe.minutes, time.monotonic() if started is None else started)
        named = ColumnNames(recipe.text_column, recipe.second_column, recipe.label_column)
        sources = {name: source.rows for name, source in given.items()}
        train = sources["train"]
        label_options = {"separator": recipe.label_separator, "label_names": recipe.label_names}
        task = find_task(train, named, recipe.task, label_options)
        if recipe.model is not None:
            refuse_same(recipe.model, folder)
            _check_model(recipe.model, task)
        self.metric = recipe.metric or task.metrics[0]
        check_metric(self.metric, task)
        self.rows = read_labelled(
            task, train, sources.get("dev"), seed=recipe.seed, per_label=recipe.labels_per_class
        )
        self.test = self._read_test(sources.get("test"))
        names = [str(path) for path in find_files(list(texts))] if texts else []
        self.corpus = Corpus(names, _column_in(names, recipe.text_column))
        self.kind = text_kind(text for row in self.rows.texts() for text in row)
        self.labelled = Texts(self.rows.texts(), self.kind)
        self.learnt = Texts(self.rows.texts(self.rows.learnt), self.kind)
        self.unlabelled = Texts(self._select_unlabelled(), self.kind)
        self.candidates: list[ComparedModel] = []
        files = [*(source.file for source in given.values()), *names]
        settings = {k: v for k, v in asdict(recipe).items() if k not in _NOT_SETTINGS}
        # Rows in memory are written again for every run, so modification times do not matter.
        known = [{k: f[k] for k in ("name", "sha256")} for f in fingerprint(files)]
        self.identity = {"files": known, "settings": settings}
        self.token_scores: TokenScores | None = None
        self.points: Points = ()  # (minutes of pretraining, score)
        self.per_character = 0.0  # seconds per character of the last network
        self.progress = Progress(self.rows, recipe, quiet=quiet)
        self.attempt = Attempts(self.progress.say, debug=debug)

    def _read_test(self, source: Source | None) -> list[Row]:
        if source is None:
            return []
        rows = list(self.rows.task.read(source))
        self.rows.task.check(rows, source, "the training data")
        return rows

    @property
    def learnt_from_test(self) -> int:
        """Number of test rows whose texts are also in the training data."""
        known = set(self.rows.texts(self.rows.learnt))
        return sum(row.texts in known for row in self.test)

    def _select_unlabelled(self) -> list[tuple[str, ...]]:
        """Distinct unlabelled texts up to the maximum number, without labelled texts."""
        if len(self.rows.rows[0].texts) > 1:
            return []  # unlabelled text has no pairs
        most = min(_MOST_CHARACTERS, int(_CHARACTERS_PER_MINUTE * max(1.0, self.recipe.minutes)))
        if self.kind == "chinese":
            most //= _UNSPACED_FACTOR
        # Test rows must not be trained on at all, and dev rows may only be used for selection.
        known = [*self.rows.rows, *self.test]
        seen = {text for row in known for text in row.texts}
        found: list[tuple[str, ...]] = []
        characters = 0
        for text in self.corpus.texts():
            if text in seen or not text.strip():
                continue
            seen.add(text)
            found.append((text,))
            characters += len(text)
            if len(found) >= _MOST_TEXTS or characters >= most:
                break
        return found

    def _mismatch_warning(self) -> str | None:
        """A warning if most words of the labelled texts do not occur in the unlabelled texts."""
        if not len(self.unlabelled):
            return None
        some = Texts(self.unlabelled.rows[:_COMPARED], self.kind)
        known = {token for text in some.tokens for token in text}
        tokens = [token for text in self.labelled.tokens[:_COMPARED] for token in text]
        share = sum(token not in known for token in tokens) / max(1, len(tokens))
        if share <= _OTHER_TEXTS:
            return None
        return (
            f"warning: {share:.0%} of the words in the labelled texts do not occur in the "
            "unlabelled texts: are these of the same kind?"
        )

    # Steps of the run.

    def preview(self) -> Iterator[str]:
        """Describe the files and the models that would be fitted."""
        yield from self._found_in_files()
        if shares := label_shares(self.rows.task, self.rows.rows):
            yield f"labels: {shares}"
        titles = [VIEWS[name].title for name in view_names(self.rows, self.kind)]
        if self._self_training_helps():
            titles.append(_SELF_TRAINED)
        titles += [_JOINED, *([_START] if self._has_few_rows else []), _NETWORK]
        if self._ngrams_help():
            titles.append(_NGRAM_NETWORK)
        titles.append(_PROBE)
        if self._can_teach():
            titles.append(_STUDENT)
        yield "fits in this order, as far as time allows, and blends:"
        yield from titles

    def _found_in_files(self) -> Iterator[str]:
        yield found_in_files(self.rows, self.kind, len(self.unlabelled), self.recipe.minutes)
        yield from self.notes
        yield from self.rows.task.notes()
        if warning := self._mismatch_warning():
            yield warning
        if count := self.learnt_from_test:
            yield (
                f"warning: {count:,} of the {len(self.test):,} test rows contain training "
                "texts: their score says nothing about new texts"
            )

    def run(self, *, resume: bool) -> None:
        """Fit and compare models until the time is up."""
        make_folder(self.folder)
        if resume:
            self._resume()
        write_text(self.folder / RECIPE, dump(self.recipe))
        with self.progress.showing(lambda: self.budget.left):
            for line in self._found_in_files():
                self.progress.say(line)
            for name in view_names(self.rows, self.kind):
                make = partial(self._view, name)
                self._add(name, VIEWS[name].title, "linear", make, seconds=self.budget.linear)
            if self._self_training_helps() and any(c.kind == "linear" for c in self.candidates):
                seconds = self.budget.linear
                self._add("self-trained", _SELF_TRAINED, "linear", self._self_trained, seconds)
            base = self._base()
            if base is not None:
                self._networks(base)
        if not self.candidates:
            reasons = "; ".join(f"{k}: {v}" for k, v in self.attempt.left_out.items())
            raise InputError(f"no model could be fitted ({reasons})")
        self._report()

    def _base(self) -> Path | None:
        """The folder of the network to start from; None if there is none."""
        recipe = self.recipe
        if recipe.model is not None:
            return model_folder(recipe.model)
        many = len(self.rows.learnt) >= _MANY
        share = _PRETRAINING_FOR_MANY if many else _PRETRAINING
        seconds = share * self.budget.left
        if seconds < _SHORTEST_PRETRAINING and not is_pretrained(self.folder / WORK):
            self.attempt.left_out[_PRETRAINED] = "there was no time for one"
            self.progress.say("no time for a network; use more --minutes to train one")
            return None
        checkpoints = Checkpoints(self.folder / WORK / "checkpoints", seconds / 60)
        with self.progress.step("pretraining on the texts"):
            network = self.attempt(
                _PRETRAINED,
                lambda: pretrain_on(
                    self.corpus,
                    self.rows,
                    self.folder / WORK,
                    kind=self.kind,
                    size=recipe.size,
                    seconds=seconds,
                    device=recipe.device,
                    seed=recipe.seed,
                    on_save=checkpoints,
                ),
            )
        if network is not None and checkpoints.taken:
            with self.progress.step(_MINUTES):
                measure = partial(checkpoints.measure, self.rows, self.metric)
                self.points = self.attempt(_MINUTES, measure) or self.points
        return network

    def _networks(self, base: Path) -> None:
        """Fit the candidates that start from a network."""
        ngrams = self._ngrams_help()
        # All of the remaining time if no network can be distilled.
        share = _FINETUNING if self._can_teach() else (2 * _FINETUNING if ngrams else 1.0)
        if self.recipe.model is not None:
            share = max(share, _FINETUNING_GIVEN)
        make = partial(self._join_linear_models, base, self.budget.share(_JOINING))
        self._add("joined", _JOINED, "network", make, self.budget.share(2 * _JOINING))
        if self._has_few_rows:
            seconds = self.budget.share(_FINETUNING)
            self._add("start", _START, "network", partial(self._start, base), seconds)
        make = partial(self._finetune, base, self.budget.share(share))
        self._add("network", _NETWORK, "network", make)
        if ngrams:
            make = partial(self._finetune, base, self.budget.share(_NGRAM_SHARE), ngrams=_NGRAMS)
            self._add("ngrams", _NGRAM_NETWORK, "network", make)
        seconds = self.budget.share(_PROBING)
        self._add("probe", _PROBE, "frozen", partial(self._probe, base), seconds)
        if self._can_teach() and any(c.name == "network" for c in self.candidates):
            self._add("student", _STUDENT, "network", self._student)

    @property
    def _has_few_rows(self) -> bool:
        """Whether there are so few rows that fine-tuning can lose pretrained features."""
        return len(self.rows.learnt) < FEW

    def _can_teach(self) -> bool:
        """Whether there are, or can be generated, texts for distillation: impossible for sentence
        pairs; a network given by the user only uses unlabelled texts, not generated ones."""
        single = len(self.rows.rows[0].texts) == 1
        return single and (len(self.unlabelled) > 0 or self.recipe.model is None)

    def _ngrams_help(self) -> bool:
        """Whether to fit a network with n-gram embeddings.

        It requires many rows, and is only useful where no network can be distilled
        (docs/lab/distilled-network.md). In a blend with a sentence model it got zero weight.
        """
        model = self.recipe.model
        sentence_model = model is not None and (model_folder(model) / "modules.json").exists()
        many = len(self.rows.learnt) >= _MANY
        return many and not self._can_teach() and not sentence_model

    def _add(
        self,
        name: str,
        title: str,
        kind: str,
        make: Callable[[Path], Made | None],
        seconds: float | None = None,
    ) -> None:
        """Fit a candidate, or load it from an earlier run, and add it to the comparison.

        Args:
            name: identifier of the candidate.
            title: name shown to the user.
            kind: see ``ComparedModel``.
            make: fits the candidate in a folder; returns None if there is nothing to fit.
            seconds: time limit; by default the end of the run. The first candidate has none,
                because a run without candidates is useless.
        """
        if any(c.name == name for c in self.candidates):
            return
        if self.candidates and self.budget.left < _SHORTEST:
            self.attempt.left_out[title] = "there was no time"
            return
        limit = self.budget.left_for_report if seconds is None else seconds
        began, path = time.monotonic(), self.folder / "members" / name
        with self.progress.step(title):
            limit = limit if self.candidates else float("inf")
            made = self.attempt(title, lambda: make(path), seconds=limit)
        if made is None:
            for candidate_folder in (path, self._first_fold_folder(name)):
                shutil.rmtree(candidate_folder, ignore_errors=True)
            return
        taken = time.monotonic() - began
        about = (name, title, kind, tuple(made.folders), taken, tuple(made.first or made.folders))
        self.candidates.append(ComparedModel(*about, made.scores, made.partial, made.share))
        self._save()

    def _first_fold_folder(self, name: str) -> Path:
        """The folder of a linear candidate's first-fold models."""
        subfolder = "first-fold-self-trained" if name == "self-trained" else f"first-fold/{name}"
        return self.folder / "members" / subfolder

    def _linear(self, name: str, fit: Callable[[Path | None], np.ndarray]) -> Made:
        """A linear candidate, with separate first-fold models if there is more than one fold."""
        first = self._first_fold_folder(name) if self.rows.refit else None
        scores = fit(first)
        return Made(
            [f"members/{name}"],
            scores,
            () if first is None else [str(first.relative_to(self.folder))],
        )

    def _view(self, name: str, path: Path) -> Made:
        texts = (self.labelled, self.learnt, self.unlabelled)
        seconds = self.budget.linear
        return self._linear(
            name,
            lambda first: fit_view(name, self.rows, *texts, path, first=first, seconds=seconds),
        )

    def _self_training_helps(self) -> bool:
        """Whether there are many more unlabelled than labelled texts."""
        several = len(self.unlabelled) >= _SELF_TRAINING_FROM * len(self.rows.learnt)
        return several and self.rows.task.name == "classify"

    def _self_trained(self, path: Path) -> Made:
        # A resumed run may already have networks.
        linear = [c for c in self.candidates if c.kind == "linear" and c.name != "self-trained"]
        compared = Comparison(self.rows, linear, self.metric)
        first = self._first_fold_folder("self-trained") if self.rows.refit else None
        names = [c.name for c in compared.measured]
        folders, scores = self_train(
            names,
            compared.weights,
            self.rows,
            self.labelled,
            self.unlabelled,
            path.parent,
            path,
            first=first,
        )
        of_first = () if first is None else [first / name for name in names]
        return Made(self._relative(folders), scores, self._relative(of_first))

    def _relative(self, folders: Sequence[Path]) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in folders]

    def _probe(self, base: Path, path: Path) -> Made:
        copy_network(base, path / ENCODER)
        keep = make_folder(self.folder / WORK) / PROBE_VECTORS
        options: dict[str, Any] = {"device": self.recipe.device, "keep": keep}
        return self._linear(
            path.name,
            lambda first: fit_probe(path / ENCODER, self.rows, path, first=first, **options),
        )

    def _start(self, base: Path, path: Path) -> Made | None:
        """The network that fine-tuning starts from, for the first fold, with zero blend weight.

        It becomes the folder's network where fine-tuning on few rows loses pretrained features.
        """
        rows, recipe = self.rows, self.recipe
        learn, held = rows.first_fold
        if not start_on(rows, learn, base, path, device=recipe.device, seed=recipe.seed):
            return None
        return Made(self._relative([path]), partial=self._scores_of(path, held))

    def _join_linear_models(self, base: Path, seconds: float, path: Path) -> Made | None:
        """The pretrained network with the linear models built in, for the first fold, with zero
        blend weight."""
        recipe, compared = self.recipe, Comparison(self.rows, self.candidates, self.metric)
        given: Any = {"device": recipe.device, "seed": recipe.seed}
        start = start_of(compared, base, **given)
        if start is None:
            return None
        texts = self.labelled, self.unlabelled
        self.token_scores = imitate(compared, self.folder, start, *texts, seconds=seconds, **given)
        if self.token_scores is None:
            return None
        make = partial(join, compared, self.token_scores, start, path)
        return Made(
            self._relative([path]), partial=self._time_scoring(make, self.rows.first_fold[1])
        )

    def _finetune(self, base: Path, seconds: float, path: Path, **settings: Any) -> Made:
        """Fine-tune one network per fold, and repeat with other seeds while there is time.

        If there is not enough time for all folds, only the first fold's network is trained, with
        all epochs: one fully trained network is better than five that stopped early.
        """
        rows, recipe, began = self.rows, self.recipe, time.monotonic()
        folders: list[Path] = []
        scores: list[np.ndarray] = []
        for seed in range(recipe.seeds):
            fold_scores: list[np.ndarray] = []
            of_seed: list[Path] = []
            for number, (learn, held) in enumerate(rows.folds, start=1):
                done, taken = len(folders) + len(fold_scores), time.monotonic() - began
                to_make = (seed + 1) * len(rows.folds) - done
                left = max(0.0, seconds - taken) / to_make if done else seconds
                if done and taken / done > _SHORTENED * left:
                    break
                folder = path / f"seed-{seed}" / f"fold-{number}"
                finetune_on(
                    rows,
                    [rows.rows[i] for i in learn],
                    base,
                    folder,
                    seconds=left,
                    device=recipe.device,
                    seed=recipe.seed + seed,
                    settings=settings,
                )
                of_seed.append(folder)
                fold_scores.append(self._scores_of(folder, [rows.rows[i] for i in held]))
            if len(fold_scores) < len(rows.folds):
                if not seed:  # only the first fold's rows have logits
                    first = self._relative(of_seed[:1])
                    return Made(first, first=first, partial=fold_scores[0])
                break
            folders += of_seed
            scores.append(np.concatenate(fold_scores))
        first = folders[:: len(rows.folds)]
        return Made(self._relative(folders), np.mean(scores, axis=0), self._relative(first))

    def _student(self, path: Path) -> Made | None:
        """Distil the blend into a network, using its predictions for many texts."""
        rows, recipe = self.rows, self.recipe
        held, compared = rows.first_fold[1], Comparison(rows, self.candidates, self.metric)
        base = self._start_of_student(compared)
        if base is None:
            return None
        # Time for its own predictions and for the report.
        self.budget.reported += self.per_character * 2 * sum(map(characters, [*held, *self.test]))
        # An interrupted distillation cannot continue: its texts depended on the time left then.
        shutil.rmtree(path, ignore_errors=True)
        teach(
            compared,
            self.folder,
            base,
            path,
            self.labelled,
            self.unlabelled,
            given=recipe.model is not None,
            seconds=self.budget.left,
            device=recipe.device,
            seed=recipe.seed,
        )
        folders = self._relative([path])
        scores = self._scores_of(path, held)
        if len(rows.folds) == 1:
            return Made(folders, scores)
        return Made(folders, partial=scores, share=compared.share_of(scores))

    def _scores_of(self, folder: Path, rows: Sequence[Row]) -> np.ndarray:
        """A network's logits on held-out rows."""
        network = Networks(folder, describe_members(folder), Compute(self.recipe.device))
        return self._time_scoring(lambda: score_all(network.scores, rows), rows)

    def _start_of_student(self, compared: Comparison) -> Path | None:
        """The fine-tuned network, with the linear models built in if one of them is far better.

        None if there is no unlabelled text in that case: distilled on mixed texts only, the
        network is worse than the one with built-in linear models (docs/lab/distilled-network.md).
        """
        (tuned,) = (c for c in self.candidates if c.name == "network")
        network, recipe = self.folder / tuned.first[0], self.recipe
        linear = [c for c in self.candidates if c.kind == "linear"]
        worth = compared.worth_on_first_fold
        if self.token_scores is None or worth(tuned) >= max(map(worth, linear)) - _FAR_BETTER:
            return network
        if not len(self.unlabelled):
            self.attempt.left_out[_STUDENT] = "there are no texts without labels for it"
            return None
        start = start_of(compared, network, device=recipe.device, seed=recipe.seed)
        if start is None:
            return network
        path = self.folder / WORK / "joined"
        join(compared, self.token_scores, start, path)
        return path

    def _time_scoring(self, scores_of: Callable[[], np.ndarray], rows: Sequence[Row]) -> np.ndarray:
        """A network's logits of rows; the elapsed time predicts how long the report will take."""
        began = time.monotonic()
        scores = scores_of()
        self.per_character = (time.monotonic() - began) / max(1, sum(map(characters, rows)))
        # The report times a network twice: alone and as a member of the blend.
        timed = 2 * sum(map(characters, rows[:TIMED])) + sum(map(characters, self.test))
        self.budget.reported += self.per_character * timed
        return scores

    # Writing the results.

    def _save(self) -> None:
        """Write the models so far, the blend, and the state for resuming."""
        if not any(c.scores is not None for c in self.candidates):
            return
        compared = Comparison(self.rows, self.candidates, self.metric)
        chosen, offsets, scores = compared.used
        task = self.rows.task
        compared.tune(scores)
        members = tuple(BlendMember(c.name, c.kind, c.folders, w) for c, w in chosen)
        about = (tuple(task.labels), task.values(), tuple(map(float, offsets)))
        work = make_folder(self.folder / WORK)
        for candidate in self.candidates:
            of_rows = candidate.partial if candidate.scores is None else candidate.scores
            assert of_rows is not None
            with atomic_path(work / f"{candidate.name}.npy") as path, open(path, "wb") as file:
                np.save(file, of_rows)
        with uninterrupted():  # keeps the folder consistent
            self.attempt(_OWN_NETWORK, partial(self._save_network, compared))
            Blend(members, *about).write(self.folder)
            FitState(
                self.identity, self.budget.spent, self.points, [c.about() for c in self.candidates]
            ).write(self.folder)
        self.progress.show(compared)

    def _save_network(self, compared: Comparison) -> None:
        """Copy the best network to the top of the folder; the distilled network wins ties within
        chance, because it was trained on more texts."""
        best = best_network(compared)
        if best is not None:
            copy_network(self.folder / best.folders[0], self.folder)
            compared.tune(compared.adjusted(best))
            calibrate_network(self.folder, self.rows.task, *compared.by_itself(best))

    def _report(self) -> None:
        """Write the report and show its leaderboard."""
        rows, recipe = self.rows, self.recipe
        compared = Comparison(rows, self.candidates, self.metric)
        keep = partial(keep_held_out, compared, self.folder, recipe.device)
        self.attempt(HELD_OUT, keep)
        report = self.attempt(
            "the report",
            lambda: make_report(
                compared,
                self.labelled,
                self.unlabelled,
                self.test,
                folder=self.folder,
                device=recipe.device,
                points=self.points,
                settings={k: v for k, v in asdict(recipe).items() if v not in (None, ())},
                data={
                    "labelled texts": len(rows.learnt),
                    "texts without labels": len(self.unlabelled),
                    "kind of text": self.kind,
                    "compared on": rows.source,
                },
                learnt_from_test=self.learnt_from_test,
                attempt=self.attempt,
            ),
            seconds=self.budget.left_for_report,
        )
        if recipe.model is not None and not (self.folder / WORK / PROBE_VECTORS).exists():
            seconds = self.budget.left_for_report
            self.attempt(_VECTORS, partial(keep, embed=True), seconds=seconds)
        self._remove_leftovers()
        if report is None:
            self.progress.say(f"saved {self.folder}")
            return
        self.attempt("report.html", lambda: write_report(report, self.folder))
        if warning := self.attempt("README.md", lambda: write_fit_card(self.folder, report)):
            self.progress.say(warning)
        self.progress.finish(report, self.folder)

    def _remove_leftovers(self) -> None:
        """Remove files that a further run does not need: first-fold models after distillation, and
        tokenised texts after a failed pretraining."""
        if any(c.name == "student" for c in self.candidates) or not self._can_teach():
            for name in ("first-fold", "first-fold-self-trained"):
                shutil.rmtree(self.folder / "members" / name, ignore_errors=True)
        for name in ("tokens", "checkpoints", "joined"):
            shutil.rmtree(self.folder / WORK / name, ignore_errors=True)

    def stopped(self) -> str:
        """The message for a user who has stopped the run."""
        if not self.candidates:
            return f"stopped before any model was fitted; continue with --resume -o {self.folder}"
        return (
            f"stopped; {self.folder} has the best of {len(self.candidates)} models so far: "
            "continue with the same command and --resume"
        )

    def _resume(self) -> None:
        state = FitState.read(self.folder)
        if state is None:
            return
        before, now = (
            _without_unset(state.identity),
            _without_unset(json.loads(json.dumps(self.identity))),
        )
        if before != now:
            raise InputError(
                f"{self.folder} was made with {_difference(before, now)}; use the same, or start "
                "over with --overwrite"
            )
        self.budget.used, self.points = state.seconds, state.points
        rows, size = self.rows, self.rows.targets.size
        whole, part = (len(rows.held_out), size), (len(rows.folds[0][1]), size)
        for about in state.candidates:
            found = saved_scores(self.folder / WORK / f"{about['name']}.npy", (whole, part))
            folders = [inside(self.folder, path, STATE) for path in about["folders"]]
            if found is None or not all(path.is_dir() for path in folders):
                continue  # deleted or damaged: fit it again
            if about["kind"] == "network":  # earlier versions did not record it
                about.setdefault("first", about["folders"][:: len(rows.folds)])
            about |= {key: tuple(about.get(key, ())) for key in ("folders", "first")}
            about["scores" if found.shape == whole else "partial"] = found
            self.candidates.append(ComparedModel(**about))
        self._save()  # the blend must not refer to models that are fitted again
