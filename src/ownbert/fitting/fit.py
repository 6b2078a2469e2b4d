"""``fit``: find the best model for labelled and unlabelled text within a time budget."""

import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.exceptions import InputError
from ownbert.files.encodings import reads_encoding
from ownbert.files.folders import inside, refuse_both, refuse_foreign, writing
from ownbert.files.writing import (
    atomic_path,
    make_folder,
    temporary_folder,
    uninterrupted,
    write_text,
)
from ownbert.finetuning.finetune import label_shares
from ownbert.fitting.candidates import (
    CANDIDATES,
    SHORTEST,
    WORK,
    FitCandidate,
    Steps,
    candidates_for,
)
from ownbert.fitting.comparison import DISTILLED, ComparedModel, deciding, missed_thresholds
from ownbert.fitting.findings import Checkpoints, Points, make_report
from ownbert.fitting.finished_folder import (
    gains_of_all_rows,
    keep_held_out,
    restore_network,
    save_network,
    write_fit_card,
)
from ownbert.fitting.fit_recipe import FitRecipe
from ownbert.fitting.fit_state import STATE, FitState, ReplayedRun, RunClock
from ownbert.fitting.linear_candidates import PROBE_VECTORS
from ownbert.fitting.networks import is_pretrained, pretrain_on, warnings_of, with_means
from ownbert.fitting.progress import Attempts, Budget, Progress
from ownbert.fitting.report.report import write_report
from ownbert.fitting.rows.fit_input import MANY, FitInput, checked_input
from ownbert.inference.blend import ROOT, Blend, BlendMember
from ownbert.inference.finished_files import BESIDE_WEIGHTS, REPORTS
from ownbert.inference.pipeline import Predictor
from ownbert.language.messages import Message, Option, join
from ownbert.nn.default_dtype import in_float32
from ownbert.run.file_names import BLEND, ENSEMBLE, HELD_OUT, HELD_OUT_NETWORK, RECIPE
from ownbert.run.run_folder import nothing_to_resume
from ownbert.settings import accepts_settings, dump, resolve
from ownbert.tables.columns import with_label_columns
from ownbert.tables.texts_or_files import rows_by_other_names
from ownbert.threads import sharing_the_machine
from ownbert.time_limit import clock_seconds
from ownbert.train.distributed import under_torchrun

# Names of other steps in messages about skipped steps.
_PRETRAINED, _MINUTES = "pretraining a network", "gain from pretraining time"
_VECTORS, _MEANS = "vectors of the labelled texts", "a classifier of mean vectors"
_GAINS, _OWN_NETWORK = "the gain of final models for label sets", "the network of the folder"
_VOCABULARY = "words missing in the vocabulary of the network"
# Files of a folder with a model, and everything that a run may write into the output folder.
_SIGNS = (STATE, BLEND, ENSEMBLE, CONFIG)
_WRITTEN = (*_SIGNS, RECIPE, HELD_OUT, HELD_OUT_NETWORK, WEIGHTS, *REPORTS)
_FOLDERS = (WORK, "members")
# Share of the time left by the linear models; the smaller one applies with many labelled rows,
# which teach more than unlabelled text. No network is pretrained if the user gives one.
_PRETRAINING, _PRETRAINING_FOR_MANY = 0.45, 0.3
# Minimum seconds of pretraining; folder for the copy of a network whose vectors are means.
_SHORTEST_PRETRAINING, _COPY = 10.0, "with-means"


@accepts_settings(FitRecipe)
@in_float32
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
    replay: str | Path | None = None,
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
        replay: folder of a finished run, whose steps are repeated: the same result, to the bit.
        options: settings of ``FitRecipe`` by name, such as ``minutes`` and ``model``.

    Returns:
        The predictor: ``predictor("text")``.

    Raises:
        InputError: files, labels or settings cannot be used; nothing has been written.
    """
    options["dev"] = dev
    train, labels = rows_by_other_names(train, labels, options)
    if train is None:
        raise InputError("labelled rows are needed: fit(texts, labels), or fit(file or table)")
    options |= {"test": test, "unlabelled": unlabelled, "add": add, "replay": replay}
    options |= {"resume": resume, "overwrite": overwrite, "quiet": quiet, "debug": debug}
    with nullcontext(output) if output is not None else temporary_folder("ownbert-fit-") as folder:
        rows = train if labels is None else (train, labels)
        return Predictor(fit_folder(rows, output=folder, **options))


@reads_encoding
@sharing_the_machine()
def fit_folder(
    train: Any,
    *,
    output: str | Path,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    debug: bool = False,
    replay: str | Path | None = None,
    started: float | None = None,
    **options: Any,
) -> Path:
    """Like ``fit``, but return the output folder without loading the models; ``started`` is the
    start of the time budget by ``time.monotonic``, by default now."""
    started, folder = time.monotonic() if started is None else started, Path(output)
    refuse_both(resume=resume, overwrite=overwrite)
    replayed = None if replay is None else ReplayedRun(Path(replay), folder, resume=resume)
    options = options if replayed is None else replayed.options(options)
    if under_torchrun():
        raise InputError("fit runs in one process; start it without torchrun")
    if folder.exists() and not folder.is_dir():
        raise InputError("{folder} is a file; {-o} must name a folder", folder)
    files = ("dev", "test", "unlabelled", "add")
    settings = {name: value for name, value in options.items() if name not in files}
    resolve(FitRecipe, options=with_label_columns(settings))  # report wrong settings first
    if any((folder / name).exists() for name in _SIGNS) and not (resume or overwrite):
        raise InputError(
            "{folder} already contains a model; continue with {--resume}, start over with "
            "{--overwrite}, or choose another folder",
            folder,
        )
    refuse_foreign(folder, (*_WRITTEN, *_FOLDERS, *BESIDE_WEIGHTS))
    with writing(folder), checked_input(train, folder, options) as checked:
        run = Fit(checked, folder, quiet=quiet, debug=debug, started=started, replayed=replayed)
        if overwrite:
            model = checked.recipe.model
            if model and folder.resolve() in Path(model).resolve().parents:
                raise InputError(
                    "{model} is in {folder}, which would be overwritten", model, folder
                )
            clear(folder)
        empty = not any(folder.glob("*"))
        try:
            run.run(resume=resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(run.stopped()) from None
        finally:
            if empty and not run.candidates:  # the disk was full: nothing to resume
                for name in _FOLDERS:
                    shutil.rmtree(folder / name, ignore_errors=True)
                (folder / RECIPE).unlink(missing_ok=True)
    return folder


@reads_encoding
def preview_fit(train: Any, *, replay: str | Path | None = None, **options: Any) -> str:
    """Describe what ``fit`` would do with the same arguments, without writing anything."""
    folder = Path("own-bert")
    replayed = None if replay is None else ReplayedRun(Path(replay), folder)
    options = options if replayed is None else replayed.options(options)
    with checked_input(train, folder, options) as checked:
        return join(Fit(checked, folder, quiet=True, replayed=replayed).preview(), "\n")


def clear(folder: Path) -> None:
    """Remove only what an earlier run has written."""
    if any((folder / name).exists() for name in _SIGNS):
        for name in _FOLDERS:
            shutil.rmtree(folder / name, ignore_errors=True)
        for name in _WRITTEN:
            (folder / name).unlink(missing_ok=True)


class Fit:
    """A run of ``fit``: the order of the steps and the clock.

    ``started`` is the start of the time budget by ``time.monotonic``, by default now; ``replayed``
    is the run to repeat.
    """

    def __init__(
        self,
        inputs: FitInput,
        folder: Path,
        *,
        quiet: bool = False,
        debug: bool = False,
        started: float | None = None,
        replayed: ReplayedRun | None = None,
    ) -> None:
        self.inputs, self.folder, self.rows = inputs, folder, inputs.rows
        self.clock = RunClock(folder / WORK, inputs.identity, replayed)
        self.budget = Budget(inputs.recipe.minutes, self.clock.start(started))
        self.candidates: list[ComparedModel] = []
        self.points: Points = ()  # (minutes of pretraining, score)
        self.progress = Progress(quiet=quiet)
        self.attempt = Attempts(self.progress.say, debug=debug)
        self.steps = Steps(inputs, folder, self.candidates, self.budget)
        self._prepared = False  # whether there was an attempt to have a network

    def preview(self) -> Iterator[str]:
        """Describe the files and the models that would be fitted."""
        yield from (*self.inputs.notices, *self.inputs.test_notices())
        if shares := label_shares(self.rows.task, self.rows.training):
            yield Message("labels: {shares}", shares)
        yield "fits in this order, as far as time allows, and blends:"
        yield from (candidate.title for candidate in candidates_for(self.inputs))

    def run(self, *, resume: bool) -> None:
        """Fit and compare models until the time is up, then write the report."""
        make_folder(self.folder)
        if resume:
            self._resume()
        with self.clock.running(self.candidates, self.progress.say, resumed=resume):
            write_text(self.folder / RECIPE, dump(self.inputs.recipe))
            with self.progress.showing(self.budget.left_on_clock):
                for line in self.inputs.notices:
                    self.progress.say(line)
                for candidate in candidates_for(self.inputs):
                    if self._has_network(candidate) and candidate.needs(self.steps):
                        self._add(candidate)
            if not self.candidates:
                reasons = "; ".join(f"{k}: {v}" for k, v in self.attempt.left_out.items())
                raise InputError("no model could be fitted ({reasons})", reasons)
            self._report()

    def _has_network(self, candidate: FitCandidate) -> bool:
        """Whether there is the network that a candidate starts from, which is prepared for the
        first one."""
        steps = self.steps
        if candidate.kind == "linear":
            return True
        if not self._prepared:
            self._prepared, steps.pretrained = True, self._base()
        if steps.pretrained is None:
            return False
        if candidate.kind == "network" and steps.base == Path():
            steps.base = steps.pretrained
            if not self.inputs.pretrains:
                means = partial(with_means, steps.base, self.folder / WORK / _COPY)
                steps.base = self.attempt(_MEANS, means) or steps.base
        return True

    def _base(self) -> Path | None:
        """The folder of the network to start from; None if there is none."""
        if (base := self.inputs.base) is not None:
            for warning in self.attempt(_VOCABULARY, partial(warnings_of, self.rows, base)) or ():
                self.progress.say(warning)
            return base.folder
        share = _PRETRAINING_FOR_MANY if len(self.rows.learnt) >= MANY else _PRETRAINING
        seconds, work = share * self.budget.left, self.folder / WORK
        if seconds < _SHORTEST_PRETRAINING and not is_pretrained(work):
            self.attempt.left_out[_PRETRAINED] = "there was no time for one"
            least = self.budget.minutes_for(_SHORTEST_PRETRAINING / share)
            self.progress.say(
                "no time for a network; one needs {minutes} or more", Option("--minutes", least)
            )
            return None
        checkpoints = Checkpoints(work / "checkpoints", seconds / 60)
        options: Any = {"seconds": seconds, "speed": self.budget.speed, "on_save": checkpoints}
        with self.progress.step("pretraining on the texts"):
            network = self.attempt(_PRETRAINED, lambda: pretrain_on(self.inputs, work, **options))
        if network is not None and checkpoints.taken:
            with self.progress.step(_MINUTES):
                measure = partial(checkpoints.measure, self.rows, self.inputs.metric)
                self.points = self.attempt(_MINUTES, measure) or self.points
        return network

    def _add(self, candidate: FitCandidate) -> None:
        """Fit a candidate, unless an earlier run has, and add it to the comparison.

        The first candidate has no time limit, because a run without candidates is useless.
        """
        name, title = candidate.name, candidate.title
        if self.steps.find(name) is not None:
            return
        if self.candidates and self.budget.left < SHORTEST:
            self.attempt.skip(title, "there was no time")
            return
        start, path = clock_seconds(), self.folder / "members" / name
        with self.progress.step(title):
            limit = candidate.seconds(self.steps) if self.candidates else float("inf")
            make = partial(candidate.make, self.steps, path)
            made = self.attempt(title, make, seconds=limit)
        if made is None:
            for candidate_folder in (path, self.steps.first_fold_folder(name)):
                shutil.rmtree(candidate_folder, ignore_errors=True)
            return
        results = {**made._asdict(), "seconds": clock_seconds() - start, "role": candidate.role}
        results |= {"folders": tuple(made.folders), "unknown": tuple(made.unknown)}
        results |= {"first": tuple(made.first or made.folders)}
        self.candidates.append(ComparedModel(name, title, candidate.kind, **results))
        self._save()

    # Writing the results.

    def _save(self) -> None:
        """Write the models so far, the blend, and the state for resuming."""
        if all(candidate.partial for candidate in self.candidates):
            return
        compared = self.steps.compared()
        chosen, fitted, judged = compared.used
        members = tuple(BlendMember(c.name, c.kind, c.folders, w) for c, w in chosen)
        task = deciding(judged.task, fitted.decision)
        work = make_folder(self.folder / WORK)
        for candidate in self.candidates:
            with atomic_path(work / f"{candidate.name}.npy") as path, open(path, "wb") as file:
                np.save(file, candidate.scores)
        with uninterrupted():  # keeps the folder consistent
            network = self.attempt(_OWN_NETWORK, partial(save_network, compared, self.folder))
            self._write(Blend(members, task, tuple(map(float, fitted.offsets)), network))
        self.progress.show(compared)

    def _write(self, blend: Blend) -> None:
        """Write the blend and the state for resuming."""
        blend.write(self.folder)
        about = [c.about() for c in self.candidates]
        FitState(self.inputs.identity, self.budget.spent, self.points, about).write(self.folder)

    def _keep_once(self) -> None:
        """Store the weights of a network that predicts alone only once, in the folder, where the
        last layer has the weight and the offsets of the blend."""
        blend = Blend.read(self.folder)
        if not blend.is_network or blend.is_root:
            return
        (member,) = blend.members
        network = self.steps.fitted(member.name)
        network.folders = network.first = (ROOT,)
        with uninterrupted():
            own = replace(member, folders=(ROOT,), weight=1.0)
            self._write(replace(blend, members=(own,), offsets=(0.0,) * len(blend.offsets)))
            shutil.rmtree(self.folder / "members" / member.name, ignore_errors=True)

    def _report(self) -> None:
        """Write the report and show its leaderboard."""
        inputs, folder, work = self.inputs, self.folder, self.folder / WORK
        compared = self.steps.compared()
        _, fitted, judged = compared.used
        seconds = self.budget.left_for_report / 2
        make = partial(gains_of_all_rows, self.rows, fitted.decision)
        gains = self.attempt(_GAINS, make, seconds=seconds)
        report = self.attempt(
            "the report",
            lambda: make_report(compared, inputs, folder, self.points, self.attempt),
            seconds=self.budget.left_for_report,
        )
        self.attempt(_OWN_NETWORK, self._keep_once)
        keep = partial(keep_held_out, compared, folder, inputs.recipe.device, gains)
        self.attempt(HELD_OUT, keep)
        if inputs.recipe.model is not None and not (work / PROBE_VECTORS).exists():
            seconds = self.budget.left_for_report
            self.attempt(_VECTORS, partial(keep, embed=True), seconds=seconds)
        leftovers = [work / name for name in ("tokens", "checkpoints", _COPY)]
        if not inputs.can_teach or any(c.role == DISTILLED for c in self.candidates):
            leftovers += (folder / "members").rglob("first-fold*")
        for path in leftovers:
            shutil.rmtree(path, ignore_errors=True)
        if report is None:
            self.progress.say("saved {output}", folder)
            return
        self.attempt("report.html", lambda: write_report(report, folder))
        for line in missed_thresholds(judged):
            self.progress.say(Message("warning: {line!t}", line))
        if warning := self.attempt("README.md", lambda: write_fit_card(folder, report)):
            self.progress.say(warning)
        self.progress.finish(report, folder)

    def stopped(self) -> str:
        """The message for a user who has stopped the run."""
        if not self.candidates:
            return Message(
                "stopped before any model was fitted; continue with {--resume} {-o} {folder}",
                self.folder,
            )
        return Message(
            "stopped; {folder} has the best model so far ({count} fitted); continue with "
            "the same command and {--resume}",
            self.folder,
            len(self.candidates),
        )

    def _resume(self) -> None:
        if (state := FitState.read(self.folder)) is None:
            self.progress.say(nothing_to_resume(self.folder))
            return
        if difference := state.difference(self.inputs.identity):
            raise InputError(
                "{folder} was made with {difference}; use the same, or start over with "
                "{--overwrite}",
                self.folder,
                difference,
            )
        self.budget.used, self.points = state.seconds, state.points
        rows, size = self.rows, self.rows.targets.size
        full, fold = (len(rows.held_out), size), (len(rows.folds[0][1]), size)
        roles = {candidate.name: candidate.role for candidate in CANDIDATES}
        for saved in state.candidates:
            scores = _saved_scores(self.folder / WORK / f"{saved['name']}.npy")
            if scores is None or scores.shape not in (full, fold):
                continue  # deleted or damaged: fit it again
            if saved["folders"] == [ROOT]:
                restored = restore_network(self.folder, rows.task, saved["name"])
                saved["folders"] = saved["first"] = restored
            folders = [inside(self.folder, path, STATE) for path in saved["folders"]]
            if not folders or not all(path.is_dir() for path in folders):
                continue
            saved |= {key: tuple(saved.get(key, ())) for key in ("folders", "first", "unknown")}
            saved["partial"] = saved.get("partial", False) or scores.shape != full
            role = roles[saved["name"]]
            self.candidates.append(ComparedModel(**saved, scores=scores, role=role))
        self._save()  # the blend must not refer to models that are fitted again


def _saved_scores(path: Path) -> np.ndarray | None:
    """The logits in a file; None if it is missing or damaged."""
    try:
        # Memory-mapped, so that a header cannot request more memory than the file has bytes.
        scores = np.array(np.lib.format.open_memmap(path, mode="r"))
    except (OSError, ValueError):
        return None
    return scores if scores.dtype.kind == "f" and np.isfinite(scores).all() else None
