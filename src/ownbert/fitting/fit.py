"""``fit``: from labelled and unlabelled text to the best model of so many minutes."""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert import schema
from ownbert.checkpoint import CONFIG, describe, load_tokenizer
from ownbert.data.corpus.documents import find_files, fingerprint
from ownbert.data.readers.columns import ColumnNames
from ownbert.data.readers.texts_or_files import corpus_files, rows_by_other_names
from ownbert.errors import InputError
from ownbert.files import (
    atomic_path,
    inside,
    make_folder,
    missing_folders,
    read_json,
    refuse_same,
    remove_empty,
    write_json,
    write_text,
)
from ownbert.finetuning.preview import label_shares
from ownbert.finetuning.run import peak_rate
from ownbert.fitting.candidates import (
    ComparedModel,
    Comparison,
    fit_probe,
    fit_view,
    view_names,
)
from ownbert.fitting.findings import TIMED, make_report
from ownbert.fitting.fit_card import write_fit_card
from ownbert.fitting.labelled_rows import find_task, read_labelled, write_rows
from ownbert.fitting.minutes_curve import Checkpoints, Points
from ownbert.fitting.networks import (
    Corpus,
    add_offsets,
    copy_encoder,
    copy_network,
    finetune_on,
    pretrain_on,
    taught_rows,
    tokens_per_second,
    tokens_per_text,
)
from ownbert.fitting.progress import Progress, found_in_files
from ownbert.fitting.recipe import FitRecipe
from ownbert.fitting.report.report import write_report
from ownbert.fitting.self_training import self_train
from ownbert.fitting.taught_texts import mixed_texts, pieces_of
from ownbert.hub import model_folder
from ownbert.inference.any_predictor import open_predictor
from ownbert.inference.blend import KINDS, Blend, BlendMember
from ownbert.inference.blend_predictor import BlendPredictor, network_scores, score_all
from ownbert.inference.frozen_probe import ENCODER
from ownbert.inference.pipeline import Predictor
from ownbert.inference.predictor import NetworkPredictor, characters
from ownbert.run.file_names import BLEND, RECIPE
from ownbert.settings import dump, resolve
from ownbert.tasks.rows import Row
from ownbert.tasks.task import Task
from ownbert.tasks.text_input import EncodedRows
from ownbert.train.distributed import under_torchrun
from ownbert.views.blending import from_scores
from ownbert.views.features import VIEWS, Texts
from ownbert.views.linear import TooSlow
from ownbert.views.tokens import text_kind

# Titles of candidates; those of the linear models are their views' own.
_SELF_TRAINED = "linear models, self-trained"
_PROBE = "linear on the frozen network"
_NETWORK, _NGRAM_NETWORK = "network, fine-tuned", "network with n-grams, fine-tuned"
_STUDENT = "network taught by the blend"

# What is made on the way, and what is finished of it.
WORK, STATE = "work", "fit.json"
_FORMAT = 1
_SECONDS = schema.number(0, 1e9)
_POINT = schema.list_of(schema.number(-1e9, 1e9), least=2, most=2)
_KEYS_OF_CANDIDATE = {
    # A name becomes that of a file.
    "name": schema.one_of(*VIEWS, "self-trained", "probe", "network", "ngrams", "student"),
    "title": schema.text,
    "kind": schema.one_of(*KINDS),
    "folders": schema.list_of(schema.text, least=1, most=1000),
    "seconds": _SECONDS,
}
_CANDIDATE = schema.record(
    {**_KEYS_OF_CANDIDATE, "share": schema.number(0, 1)},
    required=tuple(_KEYS_OF_CANDIDATE),
    closed=True,
)
_KEYS_OF_STATE = schema.record(
    {
        "format": schema.one_of(_FORMAT),
        "identity": schema.object_,
        "seconds": _SECONDS,
        "points": schema.list_of(_POINT, most=1000),
        "candidates": schema.list_of(_CANDIDATE),
    },
    required=("format", "identity", "candidates"),
)
# What of the recipe a resumed run may have otherwise, and files, which are known by their content.
_NOT_SETTINGS = ("minutes", "device", "dev", "test", "unlabelled")
# Share of what the linear models leave; the smaller one where many labelled rows teach more than
# texts, and two networks are fine-tuned. Where a network is given none is pretrained.
_PRETRAINING, _PRETRAINING_FOR_MANY = 0.45, 0.3
# Shares of the minutes; what is left then is for the network that the blend teaches.
_FINETUNING, _NGRAM_SHARE, _FINETUNING_GIVEN = 0.2, 0.15, 0.45
# Of the minutes, that each linear model may take at most.
_LINEAR = 0.1
# Linear models are self-trained where there are so many times as many texts without labels.
_SELF_TRAINING_FROM = 2
# From so many rows on a network with embeddings of n-grams beside its vector is worth its time.
_NGRAMS_FROM, _NGRAMS = 3000, 1 << 18
# Pretraining for fewer seconds makes no network worth having.
_SHORTEST_PRETRAINING = 10.0
# Passes through the texts that a student needs at least, and a third for the teacher's answers.
_STUDENT_PASSES = 2.4
# Share of the tokens that it does not see of texts without labels, where it was pretrained on such
# texts: a student that has it harder than its teacher becomes better than it (Xie et al. 2020). A
# sentence model lost by it, and so did mixed texts (docs/benchmarks.md).
_STUDENT_MASKED = 0.3
# Mixed texts for each labelled one, at most.
_MIXED = 8
# Its share in the blend, at most, where its teachers have learnt from the rows that it is measured
# on, which flatters it (docs/benchmarks.md).
_STUDENT_SHARE = 0.3
# Texts of each kind that are compared, and the share of unknown words that is said.
_COMPARED, _OTHER_TEXTS = 5_000, 0.5
# Seconds with which no further step is begun.
_SHORTEST = 5.0
# Seconds that the report needs, and their share of short runs.
_REST, _REST_SHARE = 15.0, 0.15
# Unlabelled texts and characters that views learn from and a network is taught on, at most; and
# characters for each minute, so that the views take a small part of the time.
_MOST_TEXTS, _MOST_CHARACTERS, _CHARACTERS_PER_MINUTE = 100_000, 20_000_000, 2_000_000
# A word in a script without blanks has fewer characters, by about this factor.
_UNSPACED_FACTOR = 4


def fit(
    train: Any = None,
    labels: Any = None,
    *,
    output: str | Path | None = None,
    dev: Any = None,
    test: Any = None,
    unlabelled: Any = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Predictor:
    """Find the best model that labelled and unlabelled text give in so many minutes.

    Linear models, networks and their blend are compared on held-out rows; a network that has learnt
    from the blend is the ordinary Hugging Face folder. What is finished when time is up, or when it
    is interrupted, is used.

    Args:
        train: labelled rows: a file, a DataFrame, (texts, labels), or a list of {text, label}.
        labels: of the rows, if ``train`` is texts alone.
        output: the folder to write; by default a temporary one.
        dev: rows to compare models on, in the same form; by default some of ``train``.
        test: rows that nothing is chosen on, in the same form: the report has the scores on them.
        unlabelled: a file, several, or a list of texts.
        resume: continue what was stopped; overwrite: replace what is in ``output``.
        options: settings of ``FitRecipe`` by name, such as ``minutes`` and ``model``.

    Returns:
        What answers new rows: ``predictor("text")``.

    Raises:
        InputError: files, labels or settings cannot be used; nothing has been written then.
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
            resume=resume,
            overwrite=overwrite,
            quiet=quiet,
            **options,
        )
    )


def fit_folder(
    train: Any,
    *,
    output: str | Path | None = None,
    dev: Any = None,
    test: Any = None,
    unlabelled: Any = (),
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Path:
    """As ``fit``, for those who do not use the models at once: the folder, without loading them."""
    if under_torchrun():
        raise InputError("fit runs in one process; start it without torchrun")
    folder = Path(tempfile.mkdtemp(prefix="ownbert-fit-") if output is None else output)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; -o must name a folder")
    taken = any((folder / name).exists() for name in (STATE, BLEND, CONFIG))
    if taken and not (resume or overwrite):
        raise InputError(
            f"{folder} already holds a model; continue with --resume, start anew with --overwrite, "
            "or choose another folder"
        )
    with _checked(train, folder, dev, test, unlabelled, options, quiet=quiet) as run:
        if overwrite and not resume:
            model = run.recipe.model
            if model and folder.resolve() in Path(model).resolve().parents:
                raise InputError(f"{model} is in {folder}, which would be overwritten")
            _clear(folder)
        new, empty = missing_folders(folder), not any(folder.glob("*"))
        try:
            run.run(resume=resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.stopped()) from None
        finally:
            if empty and not run.candidates:  # a full disk: there is nothing to continue
                shutil.rmtree(folder / "members", ignore_errors=True)
                (folder / RECIPE).unlink(missing_ok=True)
                remove_empty(new)
    return folder


def preview_fit(
    train: Any, *, dev: Any = None, test: Any = None, unlabelled: Any = (), **options: Any
) -> str:
    """What ``fit`` would do, as text; the arguments are the same. Nothing is written."""
    with _checked(train, Path("own-bert"), dev, test, unlabelled, options, quiet=True) as run:
        return "\n".join(run.preview())


@contextlib.contextmanager
def _checked(
    train: Any,
    folder: Path,
    dev: Any,
    test: Any,
    unlabelled: Any,
    options: dict[str, Any],
    *,
    quiet: bool,
) -> "Iterator[Fit]":
    """A run whose files and settings have been checked; rows in memory are in files meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="ownbert-rows-") as scratch,
        corpus_files(() if unlabelled is None else unlabelled) as texts,
    ):
        files = {
            "train": write_rows(train, Path(scratch, "train.jsonl")),
            "dev": None if dev is None else write_rows(dev, Path(scratch, "dev.jsonl")),
            "test": None if test is None else write_rows(test, Path(scratch, "test.jsonl")),
        }
        options["unlabelled"] = tuple(texts)
        recipe = resolve(FitRecipe, options=options | {k: _name(files[k]) for k in ("dev", "test")})
        yield Fit(recipe, files["train"], folder, quiet=quiet)


def _name(path: str | Path | None) -> str | None:
    return None if path is None else str(path)


def _check_model(folder: str, task: Task) -> None:
    """Refuse a model before anything is fitted, not minutes later."""
    description = describe(folder)
    task.check_modality(description, folder)
    load_tokenizer(folder, config=description.config)
    if not any(
        any(model_folder(folder).glob(name)) for name in ("*.safetensors", "pytorch_model*.bin")
    ):
        raise InputError(f"{folder} has no weights (model.safetensors)")


def _clear(folder: Path) -> None:
    """Remove what an earlier run made, and nothing else."""
    if not any((folder / name).exists() for name in (STATE, BLEND)):
        return
    for name in (WORK, "members"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (STATE, BLEND, RECIPE, CONFIG, "model.safetensors"):
        (folder / name).unlink(missing_ok=True)


class Made(NamedTuple):
    """What a step of ``fit`` makes.

    Args:
        folders, scores, share: as of ``ComparedModel``.
    """

    folders: Sequence[str]
    scores: np.ndarray | None = None
    share: float = 0.0


class Fit:
    """One run of ``fit``. The constructor reads and checks; ``run`` writes.

    Args:
        recipe: its settings.
        train: the labelled rows.
        folder: to write to.
    """

    def __init__(
        self, recipe: FitRecipe, train: str | Path, folder: Path, *, quiet: bool = False
    ) -> None:
        self.recipe, self.folder = recipe, folder
        columns = ColumnNames(recipe.text_column, recipe.second_column, recipe.label_column)
        task = find_task(train, columns, recipe.task)
        if recipe.model is not None:
            refuse_same(recipe.model, folder)
            _check_model(recipe.model, task)
        self.rows = read_labelled(
            task, train, recipe.dev, seed=recipe.seed, per_label=recipe.labels_per_class
        )
        self.test = self._read_test(recipe.test)
        names = [str(p) for p in find_files(list(recipe.unlabelled))] if recipe.unlabelled else []
        self.corpus = Corpus(names, recipe.text_column)
        self.kind = text_kind(text for row in self.rows.texts() for text in row)
        self.labelled = Texts(self.rows.texts(), self.kind)
        self.learnt = Texts(self.rows.texts(self.rows.learnt), self.kind)
        self.unlabelled = Texts(self._some_unlabelled(), self.kind)
        self.candidates: list[ComparedModel] = []
        files = [train, *(path for path in (recipe.dev, recipe.test) if path), *names]
        settings = {k: v for k, v in asdict(recipe).items() if k not in _NOT_SETTINGS}
        # Rows in memory are written anew for every run, so when is of no account.
        known = [{k: f[k] for k in ("name", "sha256")} for f in fingerprint(files)]
        self.identity = {"files": known, "settings": settings}
        self.used = 0.0  # seconds of earlier runs
        self.per_character = 0.0  # seconds that the last network took
        self.reported = 0.0  # seconds that the report needs for the networks so far
        self.points: Points = ()  # minutes of pretraining and scores
        self.progress = Progress(self.rows, recipe, quiet=quiet)

    def _read_test(self, path: str | None) -> list[Row]:
        if path is None:
            return []
        rows = list(self.rows.task.read(path))
        self.rows.task.check(rows, path, "the training data")
        return rows

    def _some_unlabelled(self) -> list[tuple[str, ...]]:
        """Distinct unlabelled texts, as many as are used, none of them a labelled one."""
        if len(self.rows.rows[0].texts) > 1:
            return []  # pairs would be needed
        most = min(_MOST_CHARACTERS, int(_CHARACTERS_PER_MINUTE * max(1.0, self.recipe.minutes)))
        if self.kind == "chinese":
            most //= _UNSPACED_FACTOR
        # Nothing may be learnt from test rows, nor from dev rows beyond choosing.
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

    def _other_texts(self) -> str | None:
        """A warning if the texts without labels have hardly a word of those with labels."""
        if not len(self.unlabelled):
            return None
        some = Texts(self.unlabelled.rows[:_COMPARED], self.kind)
        known = {token for text in some.tokens for token in text}
        tokens = [token for text in self.labelled.tokens[:_COMPARED] for token in text]
        share = sum(token not in known for token in tokens) / max(1, len(tokens))
        if share <= _OTHER_TEXTS:
            return None
        return (
            f"warning: {share:.0%} of the words of the labelled texts are in no text without "
            "labels: are these of the same kind?"
        )

    # Time.

    @property
    def left(self) -> float:
        """Seconds until the report has to be written."""
        total = 60 * self.recipe.minutes
        rest = min(_REST, _REST_SHARE * total)
        return total - rest - self.reported - self.used - (time.monotonic() - self.started)

    def share(self, of_all: float) -> float:
        """Minutes for a step that may take a share of all time, but not more than is left."""
        return max(0.0, min(of_all * 60 * self.recipe.minutes, self.left)) / 60

    # Steps.

    def preview(self) -> Iterator[str]:
        """What was found in the files, and what would be fitted."""
        yield from self._found_in_files()
        if shares := label_shares(self.rows.task, self.rows.rows):
            yield f"labels: {shares}"
        titles = [VIEWS[name].title for name in view_names(self.rows, self.kind)]
        if self._self_training_helps():
            titles.append(_SELF_TRAINED)
        titles += [_PROBE, _NETWORK]
        if self._ngrams_help():
            titles.append(_NGRAM_NETWORK)
        if self._can_teach():
            titles.append(_STUDENT)
        yield "fits in this order, as far as the minutes suffice, and blends:"
        yield from titles

    def _found_in_files(self) -> Iterator[str]:
        yield found_in_files(self.rows, self.kind, len(self.unlabelled), self.recipe.minutes)
        if warning := self._other_texts():
            yield warning

    def run(self, *, resume: bool) -> None:
        """Fit and compare models until time is up."""
        self.started = time.monotonic()
        make_folder(self.folder)
        if resume:
            self._resume()
        write_text(self.folder / RECIPE, dump(self.recipe))
        with self.progress.showing(lambda: self.left):
            for line in self._found_in_files():
                self.progress.say(line)
            for name in view_names(self.rows, self.kind):
                self._add(name, VIEWS[name].title, "linear", partial(self._view, name))
            if self._self_training_helps():
                self._add("self-trained", _SELF_TRAINED, "linear", self._self_trained)
            try:
                base = self._base()
            except InputError as error:  # too little text; the linear models are there
                self.progress.say(f"no network is pretrained: {error}")
                base = None
            if base is not None:
                self._networks(base)
        self._report()

    def _base(self) -> Path | None:
        """The folder of the network to start from; None if there is no time for one."""
        recipe = self.recipe
        if recipe.model is not None:
            return model_folder(recipe.model)
        share = _PRETRAINING_FOR_MANY if self._ngrams_help() else _PRETRAINING
        minutes = share * self.left / 60
        if 60 * minutes < _SHORTEST_PRETRAINING:
            self.progress.say("no time for a network; more --minutes would train one")
            return None
        checkpoints = Checkpoints(self.folder / WORK / "checkpoints", minutes)
        with self.progress.step("pretraining on the texts"):
            network = pretrain_on(
                self.corpus,
                self.rows,
                self.folder / WORK,
                kind=self.kind,
                size=recipe.size,
                minutes=minutes,
                device=recipe.device,
                seed=recipe.seed,
                on_save=checkpoints,
            )
        with self.progress.step("what minutes of pretraining bring"):
            self.points = checkpoints.measure(self.rows) or self.points
        return network

    def _networks(self, base: Path) -> None:
        """The candidates that need a network to start from."""
        self._add("probe", _PROBE, "frozen", partial(self._probe, base))
        ngrams = self._ngrams_help()
        # All that is left, where a network cannot be taught.
        share = _FINETUNING if self._can_teach() else (2 * _FINETUNING if ngrams else 1.0)
        if self.recipe.model is not None:
            share = max(share, _FINETUNING_GIVEN)
        make = partial(self._finetune, base, self.share(share))
        self._add("network", _NETWORK, "network", make)
        if ngrams:
            make = partial(self._finetune, base, self.share(_NGRAM_SHARE), ngrams=_NGRAMS)
            self._add("ngrams", _NGRAM_NETWORK, "network", make)
        if self._can_teach() and any(c.name == "network" for c in self.candidates):
            self._add("student", _STUDENT, "network", self._student)

    def _can_teach(self) -> bool:
        """Whether there are texts, or can be made some, for a network to be taught on: pairs that
        belong together cannot, and a network that was given sees none but whole ones."""
        single = len(self.rows.rows[0].texts) == 1
        return single and (len(self.unlabelled) > 0 or self.recipe.model is None)

    def _ngrams_help(self) -> bool:
        """Whether there are many rows, and no sentence model: beside one, n-grams took a third of
        the time and got no weight in the blend."""
        model = self.recipe.model
        sentence_model = model is not None and (model_folder(model) / "modules.json").exists()
        return not sentence_model and len(self.rows.learnt) >= _NGRAMS_FROM

    def _add(
        self,
        name: str,
        title: str,
        kind: str,
        make: Callable[[Path], Made],
    ) -> None:
        """Make a candidate, unless an earlier run has, and use it from now on."""
        done = any(c.name == name for c in self.candidates)
        if done or (self.candidates and self.left < _SHORTEST):
            return
        began = time.monotonic()
        try:
            with self.progress.step(title):
                made = make(self.folder / "members" / name)
        except TooSlow:
            self.progress.say(f"{title}: left out, with so many rows and labels it takes too long")
            return
        seconds = time.monotonic() - began
        about = (name, title, kind, tuple(made.folders), seconds)
        self.candidates.append(ComparedModel(*about, made.scores, made.share))
        self._save()

    def _view(self, name: str, path: Path) -> Made:
        texts = (self.labelled, self.learnt, self.unlabelled)
        seconds = 60 * self.share(_LINEAR)
        first = not self.candidates  # without any there would be nothing to use
        scores = fit_view(name, self.rows, *texts, path, seconds=seconds, required=first)
        return Made([f"members/{path.name}"], scores)

    def _self_training_helps(self) -> bool:
        """Whether there are far more texts without labels than with."""
        several = len(self.unlabelled) >= _SELF_TRAINING_FROM * len(self.rows.learnt)
        return several and self.rows.task.name == "classify"

    def _self_trained(self, path: Path) -> Made:
        # A resumed run may have networks already.
        linear = [c for c in self.candidates if c.kind == "linear"]
        compared = Comparison(self.rows, linear)
        folders, scores = self_train(
            [c.name for c in compared.measured],
            compared.weights,
            self.rows,
            self.labelled,
            self.unlabelled,
            path.parent,
            path,
            seconds=60 * self.share(_LINEAR),
        )
        return Made([str(own.relative_to(self.folder)) for own in folders], scores)

    def _probe(self, base: Path, path: Path) -> Made:
        copy_encoder(base, path / ENCODER)
        return Made([f"members/{path.name}"], fit_probe(path / ENCODER, self.rows, path))

    def _finetune(self, base: Path, minutes: float, path: Path, **settings: Any) -> Made:
        """One network for each fold, and the same with other seeds while the minutes last."""
        rows, recipe = self.rows, self.recipe
        folders: list[str] = []
        scores: list[np.ndarray] = []
        began = time.monotonic()
        for seed in range(recipe.seeds):
            taken = (time.monotonic() - began) / 60
            if seed and taken * (seed + 1) / seed > minutes:
                break
            own = []
            for number, (learn, held) in enumerate(rows.folds, start=1):
                folder = path / f"seed-{seed}" / f"fold-{number}"
                finetune_on(
                    rows,
                    [rows.rows[i] for i in learn],
                    base,
                    folder,
                    minutes=minutes / len(rows.folds),
                    device=recipe.device,
                    seed=recipe.seed + seed,
                    settings=settings,
                )
                folders.append(str(folder.relative_to(self.folder)))
                own.append(self._scores_of(folder, [rows.rows[i] for i in held]))
            scores.append(np.concatenate(own))
        return Made(folders, np.mean(scores, axis=0))

    def _student(self, path: Path) -> Made:
        """A network that learns what the blend says of many texts."""
        rows, recipe = self.rows, self.recipe
        # Its own scores, and what the report needs of them.
        held = [rows.rows[i] for i in rows.held_out]
        self.reported += self.per_character * 2 * sum(map(characters, [*held, *self.test]))
        # What was stopped had other texts: these depend on the time that is left.
        shutil.rmtree(path, ignore_errors=True)
        first = self.folder / next(c for c in self.candidates if c.name == "network").folders[0]
        tokens = self.left * tokens_per_second(first) / _STUDENT_PASSES
        count = max(1, int(tokens / tokens_per_text(first)) - len(rows.learnt))
        pieces, mixed = self.taught_texts(count)
        texts = [(text,) for text in (*pieces, *mixed)]
        teacher = open_predictor(self.folder)
        assert isinstance(teacher, BlendPredictor)
        scores = score_all(teacher.scores, [Row(0, own) for own in texts])
        outputs = from_scores(rows.task.name, scores)
        settings: dict[str, Any] = {}
        if recipe.model is None:
            settings["mask_rate"] = _STUDENT_MASKED * len(pieces) / len(texts)
            # What the teacher says holds no mistakes to be learnt by heart.
            settings["learning_rate"] = peak_rate(describe(first).config.hidden_size)
        finetune_on(
            rows,
            taught_rows(rows, texts, outputs),
            first,
            path,
            minutes=max(self.left, _SHORTEST) / 60,
            device=recipe.device,
            seed=recipe.seed,
            settings=settings,
        )
        folders = [f"members/{path.name}"]
        scores = self._scores_of(path, [rows.rows[i] for i in rows.folds[0][1]])
        if not rows.refit:
            return Made(folders, scores)
        share = Comparison(rows, self.candidates).share_of(scores)
        return Made(folders, share=min(share, _STUDENT_SHARE))

    def taught_texts(self, count: int) -> tuple[list[str], list[str]]:
        """``count`` texts for the network that the blend teaches: pieces of unlabelled ones and,
        where these run short and it was not given, mixed labelled ones (docs/benchmarks.md), none
        of them of the first fold's held-out rows."""
        seed = self.recipe.seed
        lengths = [sum(map(len, row)) for row in self.labelled.rows]
        order = np.random.default_rng(seed).permutation(len(self.unlabelled))
        texts = [self.unlabelled.rows[i][0] for i in order]
        learnt = [text for (text,) in self.rows.texts(self.rows.folds[0][0])]
        most = min(_MIXED * len(learnt), _MOST_TEXTS) if self.recipe.model is None else 0
        pieces = pieces_of(texts, int(np.quantile(lengths, 0.9)))[:count]
        return pieces, mixed_texts(learnt, self.kind, min(most, count - len(pieces)), seed)

    def _scores_of(self, folder: Path, rows: Sequence[Row]) -> np.ndarray:
        """A network's scores of held-out rows; the time tells how long the report will need."""
        network = NetworkPredictor(folder, device=self.recipe.device)
        began = time.monotonic()
        scores = network_scores(network, rows)
        self.per_character = (time.monotonic() - began) / max(1, sum(map(characters, rows)))
        # The report times a network alone, and as a part of the blend.
        timed = 2 * sum(map(characters, rows[:TIMED])) + sum(map(characters, self.test))
        self.reported += self.per_character * timed
        return scores

    # What is written.

    def _save(self) -> None:
        """Write the blend of all candidates so far, and what a resumed run needs."""
        if not any(c.scores is not None for c in self.candidates):
            return
        compared = Comparison(self.rows, self.candidates)
        task = self.rows.task
        if task.name == "multilabel":
            held = [self.rows.rows[i] for i in self.rows.held_out]
            task.tune(list(from_scores(task.name, compared.blended)), EncodedRows([]), held)
        members = tuple(BlendMember(c.name, c.kind, c.folders, w) for c, w in compared.members)
        offsets = tuple(map(float, compared.offsets))
        Blend(members, tuple(task.labels), task.values(), offsets).write(self.folder)
        self._save_network(compared)
        work = make_folder(self.folder / WORK)
        for candidate in compared.measured:
            assert candidate.scores is not None
            with atomic_path(work / f"{candidate.name}.npy") as path, open(path, "wb") as file:
                np.save(file, candidate.scores)
        minutes = (self.used + time.monotonic() - self.started) / 60
        state = {
            "format": _FORMAT,
            "identity": self.identity,
            "seconds": 60 * minutes,
            "points": self.points,
            "candidates": [c.about() for c in self.candidates],
        }
        write_json(self.folder / STATE, state)
        self.progress.show(compared)

    def _save_network(self, compared: Comparison) -> None:
        """The best network becomes the folder's own; the taught one where it cannot be measured, or
        is not worse than by chance: it has learnt from more texts than the rows can show."""
        # Transformers knows no n-grams.
        networks = [c for c in self.candidates if c.kind == "network" and c.name != "ngrams"]
        if networks:
            chance = 0.5 / np.sqrt(len(self.rows.held_out))  # one standard error, at most

            def rank(model: ComparedModel) -> float:
                if model.scores is None:
                    return np.inf
                return compared.value(compared.adjusted(model)) + chance * (model.name == "student")

            best = max(networks, key=rank)
            copy_network(self.folder / best.folders[0], self.folder)
            add_offsets(self.folder, compared.offsets_of(best))

    def _report(self) -> None:
        """Write the report, and show its leaderboard."""
        predictor = open_predictor(self.folder)
        assert isinstance(predictor, BlendPredictor)
        rows, recipe = self.rows, self.recipe
        report = make_report(
            Comparison(rows, self.candidates),
            self.labelled,
            self.unlabelled,
            self.test,
            blend=predictor,
            points=self.points,
            settings={k: v for k, v in asdict(recipe).items() if v not in (None, ())},
            data={
                "labelled texts": len(rows.learnt),
                "texts without labels": len(self.unlabelled),
                "kind of text": self.kind,
                "compared on": rows.source,
            },
        )
        write_report(report, self.folder)
        if warning := write_fit_card(self.folder, report):
            self.progress.say(warning)
        self.progress.finish(report, self.folder)

    def stopped(self) -> str:
        """What to tell the user who has stopped it."""
        if not self.candidates:
            return f"stopped before there was a model; continue with --resume -o {self.folder}"
        return (
            f"stopped; {self.folder} has the best of {len(self.candidates)} models so far: "
            "continue with the same command and --resume"
        )

    def _resume(self) -> None:
        path = self.folder / STATE
        if not path.exists():
            return
        try:
            state = read_json(path, check=_KEYS_OF_STATE)
        except InputError as error:
            raise InputError(f"{error}; start anew with --overwrite") from None
        if state["identity"] != json.loads(json.dumps(self.identity)):
            raise InputError(
                f"{self.folder} was made with other files or settings; give the same ones, or "
                "start anew with --overwrite"
            )
        self.used = float(state.get("seconds", 0.0))
        self.points = tuple((float(at), float(score)) for at, score in state.get("points", ()))
        for about in state["candidates"]:
            scores = self._saved_scores(self.folder / WORK / f"{about['name']}.npy")
            there = all(inside(self.folder, own, path).is_dir() for own in about["folders"])
            if not there or (scores is None and about["name"] != "student"):
                continue  # somebody has deleted or damaged it: it is made again
            self.candidates.append(
                ComparedModel(**{**about, "folders": tuple(about["folders"])}, scores=scores)
            )
        self._save()  # so that the blend names no model that is made again

    def _saved_scores(self, path: Path) -> np.ndarray | None:
        """Scores (N, C) of the held-out rows; None if the file is missing or damaged."""
        try:
            # Mapped, so that a header cannot ask for more memory than the file has bytes.
            scores = np.array(np.lib.format.open_memmap(path, mode="r"))
        except (OSError, ValueError):
            return None
        fits = scores.shape == (len(self.rows.held_out), self.rows.targets.size)
        return scores if fits and scores.dtype.kind == "f" and np.isfinite(scores).all() else None
