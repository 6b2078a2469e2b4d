"""The steps of ``fit``: each fits a candidate in a folder and scores the held-out rows."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.writing import make_folder
from ownbert.finetuning.default_settings import is_small_and_own
from ownbert.fitting.budget import Budget
from ownbert.fitting.candidates import PROBE_VECTORS, fit_probe, fit_view
from ownbert.fitting.comparison import ComparedModel, Comparison
from ownbert.fitting.findings import TIMED
from ownbert.fitting.networks import copy_network, finetune_on, rate_after_start, start_on
from ownbert.fitting.rows.fit_input import FitInput
from ownbert.fitting.teaching.joined_network import Start, TokenScores, imitate, join, start_of
from ownbert.fitting.teaching.self_training import self_train
from ownbert.fitting.teaching.student import teach
from ownbert.inference.compute import Compute
from ownbert.inference.frozen_probe import ENCODER
from ownbert.inference.opened import Networks, characters, describe_members
from ownbert.inference.opened_blend import score_all
from ownbert.tasks.rows import Row
from ownbert.tasks.sentence_embedding.embedding_config import read_embedding_config
from ownbert.time_limit import OutOfTime, clock_seconds, seconds_left, time_limit

# Folder for intermediate files.
WORK = "work"
# Minimum lead of a linear model over the fine-tuned network, in the metric, from which building the
# linear models into the distilled network helps (docs/lab/distilled-network.md).
_FAR_BETTER = 0.05
# The head of a public network, whose vectors are good before fine-tuning, is a linear model at
# first, even with many rows.
_LINEAR = {"head_init": "linear"}
# No further step is started with less time than this, in seconds.
SHORTEST = 5.0
# Minimum share of the total time for a distilled network: with less it learns from too few texts.
_DISTILLING = 0.05
# Another fold is trained if the remaining time is at least the expected time divided by this.
_SHORTENED = 1.5


class Made(NamedTuple):
    """The result of a step of ``fit``; for the fields, see ``ComparedModel``."""

    folders: Sequence[str]
    scores: np.ndarray | None = None
    first: Sequence[str] = ()
    partial: np.ndarray | None = None
    share: float = 0.0
    unknown: Sequence[int] = ()


class Steps:
    """The steps of a run, one for each candidate."""

    def __init__(
        self, given: FitInput, folder: Path, candidates: list[ComparedModel], budget: Budget
    ) -> None:
        self.given, self.rows, self.recipe = given, given.rows, given.recipe
        self.folder, self.candidates, self.budget = folder, candidates, budget
        self._scores_file = folder / WORK / "token-scores.npz"
        self._final_scores_file = folder / WORK / "token-scores-of-all-rows.npz"
        self._training: Any = {"device": self.recipe.device, "seed": self.recipe.seed}
        self.per_character = 0.0  # seconds per character of the last network

    def compared(self, candidates: Sequence[ComparedModel] | None = None) -> Comparison:
        """Compare some of the candidates, by default all."""
        chosen = self.candidates if candidates is None else candidates
        has_texts = len(self.given.unlabelled) > 0
        return Comparison(self.rows, chosen, self.given.metric, has_texts=has_texts)

    def first_fold_folder(self, name: str) -> Path:
        """The folder of a linear candidate's first-fold models."""
        subfolder = "first-fold-self-trained" if name == "self-trained" else f"first-fold/{name}"
        return self.folder / "members" / subfolder

    def _linear(
        self, name: str, fit: Callable[[Path | None], tuple[np.ndarray, np.ndarray]]
    ) -> Made:
        """A linear candidate, with separate first-fold models if there is more than one fold."""
        first = self.first_fold_folder(name) if self.rows.refit else None
        scores, unknown = fit(first)
        return Made(
            [f"members/{name}"],
            scores,
            () if first is None else [str(first.relative_to(self.folder))],
            unknown=np.flatnonzero(unknown).tolist(),
        )

    def view(self, name: str, path: Path) -> Made:
        texts = (self.given.labelled, self.given.learnt, self.given.unlabelled)
        seconds = self.budget.linear
        fit = partial(fit_view, name, self.rows, *texts, path, seconds=seconds)
        return self._linear(name, lambda first: fit(first=first))

    def self_trained(self, path: Path) -> Made:
        # A resumed run may already have networks.
        linear = [c for c in self.candidates if c.kind == "linear" and c.name != "self-trained"]
        compared = self.compared(linear)
        first = self.first_fold_folder("self-trained") if self.rows.refit else None
        names = [c.name for c in compared.measured]
        texts = (self.given.labelled, self.given.unlabelled)
        given = (names, compared.fitted.weights, self.rows, *texts, path.parent, path)
        folders, scores, unknown = self_train(*given, first=first)
        of_first = () if first is None else [first / name for name in names]
        paths, of_all = self._relative(of_first), np.flatnonzero(unknown).tolist()
        return Made(self._relative(folders), scores, paths, unknown=of_all)

    def _relative(self, folders: Sequence[Path]) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in folders]

    def probe(self, base: Path, path: Path) -> Made:
        read_embedding_config(base)  # errors name the user's file, not the copy
        copy_network(base, path / ENCODER)
        keep, device = make_folder(self.folder / WORK) / PROBE_VECTORS, self.recipe.device
        fit = partial(fit_probe, path / ENCODER, self.rows, path, device=device, keep=keep)
        return self._linear(path.name, lambda first: (fit(first=first), np.zeros(0)))

    def start(self, base: Path, path: Path) -> Made:
        """The network that fine-tuning starts from, for the first fold, with zero blend weight.

        It becomes the folder's network where fine-tuning on few rows loses pretrained features.
        """
        learn, held_out = self.rows.first_fold
        settings = _LINEAR if self._public else {}
        if not start_on(self.rows, learn, base, path, **self._training, settings=settings):
            raise InputError("fine-tuning would not start from it")
        return Made(self._relative([path]), partial=self._scores_of(path, held_out))

    @cached_property
    def _public(self) -> bool:
        """Whether the user has given a network that is not a small one of their own."""
        base = self.given.base
        return base is not None and not is_small_and_own(str(base.folder), base.config.hidden_size)

    def _started(self, base: Path) -> Path:
        """The network that fine-tuning starts from, for the first fold: ``base``, with a head if
        there was time to fit it."""
        started = (c for c in self.candidates if c.name == "start")
        return next((self.folder / c.folders[0] for c in started), base)

    def join_linear_models(self, base: Path, seconds: float, path: Path) -> Made:
        """The network before fine-tuning with the linear models built in, with zero blend weight:
        those of the first fold to be measured, and those of all rows."""
        compared, refit = self.compared(), self.rows.refit
        start = start_of(compared, self._started(base), **self._training)
        given = (compared, self.given, self.folder, start, seconds / 2 if refit else seconds)
        scores = imitate(*given)
        make_folder(self.folder / WORK)
        scores.write(self._scores_file)
        self.token_scores, self.final_scores = scores, None
        if refit:
            with suppress(OutOfTime), time_limit(seconds_left() / 2):
                final = imitate(*given, like=scores)
                final.write(self._final_scores_file)
                self.final_scores = final
        return self._joined(compared, scores, start, path)

    @cached_property
    def token_scores(self) -> TokenScores | None:
        """The scores of tokens that imitate the linear models, read from the file if the run is
        resumed; None if there are none."""
        joined = any(c.name == "joined" for c in self.candidates)
        return TokenScores.read(self._scores_file) if joined else None

    @cached_property
    def final_scores(self) -> TokenScores | None:
        """Those that imitate the linear models of all rows, read like ``token_scores``; None if
        there are none."""
        return TokenScores.read(self._final_scores_file)

    def can_join(self, name: str) -> bool:
        """Whether there are a network of this name and linear models to build in."""
        return any(c.name == name for c in self.candidates) and self.token_scores is not None

    def join_to(self, name: str, path: Path) -> Made:
        """A trained network with the linear models built in, for the first fold, with zero blend
        weight."""
        compared, scores = self.compared(), self.token_scores
        assert scores is not None  # see ``can_join``
        network = self.folder / self._candidate(name).first[0]
        start = start_of(compared, network, **self._training)
        return self._joined(compared, scores, start, path)

    def _joined(self, compared: Comparison, scores: TokenScores, start: Start, path: Path) -> Made:
        final = self.final_scores
        first = path if final is None else path / "first-fold"
        weights = join(compared, scores, start, first)
        partial = self._scores_of(first, self.rows.first_fold[1])
        if final is not None:
            join(compared, final, start, path, weights)
        return Made(self._relative([path]), first=self._relative([first]), partial=partial)

    def _candidate(self, name: str) -> ComparedModel:
        return next(c for c in self.candidates if c.name == name)

    def finetune(self, base: Path, seconds: float, path: Path, **settings: Any) -> Made:
        """Fine-tune one network per fold, and repeat with other seeds while there is time.

        If there is not enough time for all folds, only the first fold's network is trained, with
        all epochs: one fully trained network is better than five that stopped early.
        """
        rows, recipe, started = self.rows, self.recipe, clock_seconds()
        if self._public and not settings:
            settings, start = _LINEAR, self._started(base)
            if len(rows.folds) == 1 and start != base:
                base, settings = start, {"learning_rate": rate_after_start(rows, start)}
        folders: list[Path] = []
        scores: list[np.ndarray] = []
        for seed in range(recipe.seeds):
            fold_scores: list[np.ndarray] = []
            of_seed: list[Path] = []
            for number, (learn, held_out) in enumerate(rows.folds, start=1):
                done, taken = len(folders) + len(fold_scores), clock_seconds() - started
                to_make = (seed + 1) * len(rows.folds) - done
                left = max(0.0, seconds - taken) / to_make if done else seconds
                if done and taken / done > _SHORTENED * left:
                    break
                folder = path / f"seed-{seed}" / f"fold-{number}"
                options = {**self._training, "seed": recipe.seed + seed, "settings": settings}
                learnt = [rows.rows[i] for i in learn]
                finetune_on(rows, learnt, base, folder, seconds=left, **options)
                of_seed.append(folder)
                fold_scores.append(self._scores_of(folder, [rows.rows[i] for i in held_out]))
            if len(fold_scores) < len(rows.folds):
                if not seed:  # only the first fold's rows have logits
                    first = self._relative(of_seed[:1])
                    return Made(first, first=first, partial=fold_scores[0])
                break
            folders += of_seed
            scores.append(np.concatenate(fold_scores))
        first = folders[:: len(rows.folds)]
        return Made(self._relative(folders), np.mean(scores, axis=0), self._relative(first))

    @property
    def joining_seconds(self) -> float:
        """The time that building in the linear models takes, approximately; 0 if there are none."""
        if self.token_scores is None:
            return 0.0
        times = 2.5 if self.final_scores is None else 5.0
        return SHORTEST + times * self.per_character * sum(map(characters, self.rows.first_fold[1]))

    @property
    def joining_helps(self) -> bool:
        """Whether the fine-tuned network is better with the linear models built in."""
        joined = next((c for c in self.candidates if c.name == "joined-finetuned"), None)
        if joined is None:
            return False
        return self.compared().best_on_first_fold([joined, self._candidate("network")]) is joined

    def student(self, path: Path) -> Made:
        """Distil the blend into a network, using its predictions for many texts."""
        held_out, compared = self.rows.first_fold[1], self.compared()
        base = self._start_of_student(compared)
        # Time for its own predictions and for the report.
        self.budget.reported += (
            self.per_character * 2 * sum(map(characters, [*held_out, *self.given.test]))
        )
        # Time to build the linear models in.
        reserved = self.joining_seconds if self.joining_helps else 0.0
        seconds = self.budget.left - reserved
        if seconds < _DISTILLING * self.budget.total:
            raise OutOfTime
        # An interrupted distillation cannot continue: its texts depended on the time left then.
        shutil.rmtree(path, ignore_errors=True)
        teach(compared, self.given, self.folder, base, path, public=self._public, seconds=seconds)
        folders = self._relative([path])
        scores = self._scores_of(path, held_out)
        if len(self.rows.folds) == 1:
            return Made(folders, scores)
        return Made(folders, partial=scores, share=compared.share_of(scores))

    def _scores_of(self, folder: Path, rows: Sequence[Row]) -> np.ndarray:
        """A network's logits on held-out rows; the elapsed time predicts how long the report will
        take."""
        network = Networks(folder, describe_members(folder), Compute(self.recipe.device))
        start = clock_seconds()
        scores = score_all(network.scores, rows)
        self.per_character = (clock_seconds() - start) / max(1, sum(map(characters, rows)))
        # The report times a network twice: alone and as a member of the blend.
        timed = 2 * sum(map(characters, rows[:TIMED])) + sum(map(characters, self.given.test))
        self.budget.reported += self.per_character * timed
        return scores

    def _start_of_student(self, compared: Comparison) -> Path:
        """The fine-tuned network, with the linear models built in if one of them is far better.

        In that case unlabelled text is needed: distilled on mixed texts only, the network is worse
        than the one with built-in linear models (docs/lab/distilled-network.md).
        """
        tuned = self._candidate("network")
        linear = [c for c in self.candidates if c.kind == "linear"]
        joined = [c for c in self.candidates if c.name == "joined-finetuned"]
        worth = compared.worth_on_first_fold
        if not joined or worth(tuned) >= max(map(worth, linear)) - _FAR_BETTER:
            return self.folder / tuned.first[0]
        if not len(self.given.unlabelled):
            raise InputError("there are no texts without labels for it")
        return self.folder / joined[0].first[0]
