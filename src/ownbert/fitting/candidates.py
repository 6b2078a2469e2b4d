"""The candidates of ``fit``: ``CANDIDATES`` has one entry for each model that can be fitted.

``Fit`` runs, previews, resumes and reports from this list. An entry fits its model in a folder and
scores the held-out rows.
"""

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.writing import make_folder
from ownbert.finetuning.default_settings import FEW, is_small_and_own
from ownbert.fitting.comparison import (
    DISTILLED,
    JOINED,
    NGRAMS,
    SELF_TRAINED,
    ComparedModel,
    Comparison,
)
from ownbert.fitting.findings import TIMED
from ownbert.fitting.joined_network import Start, TokenScores, imitate, join, start_of
from ownbert.fitting.linear_candidates import (
    PROBE_VECTORS,
    fit_probe,
    fit_view,
    self_train,
    view_helps,
)
from ownbert.fitting.networks import (
    copy_network,
    finetune_on,
    rate_after_start,
    start_on,
    teach,
)
from ownbert.fitting.progress import Budget
from ownbert.fitting.rows.fit_input import FitInput
from ownbert.inference.engines import Compute
from ownbert.inference.opened import Networks, characters, describe_members
from ownbert.inference.opened_blend import score_all
from ownbert.run.file_names import ENCODER
from ownbert.tasks.embedding_config import read_embedding_config
from ownbert.tasks.rows import Row
from ownbert.time_limit import OutOfTime, clock_seconds, seconds_left, time_limit
from ownbert.views.view_features import VIEWS

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
# Shares of the total time. Fine-tuning gets all of the time left if no later candidate needs it,
# and a larger share if the user gives a network, because there is no pretraining.
_FINETUNING, _FINETUNING_OF_GIVEN, _NGRAM_SHARE, _JOINING = 0.2, 0.3, 0.15, 0.1
_PROBING, _PROBING_OF_GIVEN = 0.1, 0.2
# Linear models are self-trained if unlabelled texts outnumber labelled ones by this factor.
_SELF_TRAINING_FROM = 2
# Size of the n-gram table.
_NGRAMS = 1 << 18


class Made(NamedTuple):
    """What a candidate has fitted; for the fields, see ``ComparedModel``."""

    folders: Sequence[str]
    scores: np.ndarray
    first: Sequence[str] = ()
    partial: bool = False
    share: float = 0.0
    unknown: Sequence[int] = ()


class Steps:
    """What the candidates of a run are made from, and how.

    Attributes:
        pretrained: folder of the network that candidates start from; None if there is none.
        base: the folder to fine-tune, which differs if the text vectors of ``pretrained`` are means
            (see ``with_means``).
        per_character: seconds per character of the last network.
    """

    def __init__(
        self, inputs: FitInput, folder: Path, candidates: list[ComparedModel], budget: Budget
    ) -> None:
        self.inputs, self.rows, self.recipe = inputs, inputs.rows, inputs.recipe
        self.folder, self.candidates, self.budget = folder, candidates, budget
        files = ("token-scores.npz", "token-scores-of-all-rows.npz")
        self._scores_file, self._final_scores_file = (folder / WORK / name for name in files)
        self._training: Any = {"device": self.recipe.device, "seed": self.recipe.seed}
        self.pretrained: Path | None = None
        self.base = Path()
        self.per_character = 0.0

    def compared(self, candidates: Sequence[ComparedModel] | None = None) -> Comparison:
        """Compare some of the candidates, by default all."""
        chosen = self.candidates if candidates is None else candidates
        has_texts = len(self.inputs.unlabelled) > 0
        return Comparison(self.rows, chosen, self.inputs.metric, has_texts=has_texts)

    def first_fold_folder(self, name: str) -> Path:
        """The folder of a linear candidate's first-fold models."""
        subfolder = "first-fold-self-trained" if name == "self-trained" else f"first-fold/{name}"
        return self.folder / "members" / subfolder

    def _relative(self, *folders: Path) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in folders]

    def _linear(
        self,
        path: Path,
        fit: Callable[..., tuple[np.ndarray, np.ndarray]],
        names: Sequence[str] = ("",),
    ) -> Made:
        """A linear candidate of one or several models, with separate first-fold models if there is
        more than one fold; ``fit`` returns (N, C) logits and (N) which rows have no feature."""
        first = self.first_fold_folder(path.name) if self.rows.refit else None
        scores, unknown = fit(path, first=first)
        of_first = [] if first is None else self._relative(*(first / name for name in names))
        folders = self._relative(*(path / name for name in names))
        return Made(folders, scores, of_first, unknown=np.flatnonzero(unknown).tolist())

    def view(self, path: Path) -> Made:
        """A linear model on the view that the folder is named after."""
        texts = (self.inputs.labelled, self.inputs.learnt, self.inputs.unlabelled)
        fit = partial(fit_view, path.name, self.rows, *texts, seconds=self.budget.linear)
        return self._linear(path, fit)

    def self_trained(self, path: Path) -> Made:
        # A resumed run may already have networks.
        linear = [c for c in self.candidates if c.kind == "linear" and c.role != SELF_TRAINED]
        compared = self.compared(linear)
        names = [c.name for c in compared.measured]
        texts = (self.inputs.labelled, self.inputs.unlabelled)
        fit = partial(self_train, names, compared.fitted.weights, self.rows, *texts)
        return self._linear(path, fit, names)

    def probe(self, path: Path) -> Made:
        assert self.pretrained is not None
        read_embedding_config(self.pretrained)  # errors name the user's file, not the copy
        copy_network(self.pretrained, path / ENCODER)
        keep, device = make_folder(self.folder / WORK) / PROBE_VECTORS, self.recipe.device
        fit = partial(fit_probe, path / ENCODER, self.rows, device=device, keep=keep)
        return self._linear(path, fit)

    def start(self, path: Path) -> Made:
        """The network that fine-tuning starts from, for the first fold, with zero blend weight.

        It becomes the folder's network where fine-tuning on few rows loses pretrained features.
        """
        learn, held_out = self.rows.first_fold
        settings = _LINEAR if self._public else {}
        if not start_on(self.rows, learn, self.base, path, **self._training, settings=settings):
            raise InputError("fine-tuning would not start from it")
        return Made(self._relative(path), self._scores_of(path, held_out), partial=True)

    @cached_property
    def _public(self) -> bool:
        """Whether the user has given a network that is not a small one of their own."""
        base = self.inputs.base
        return base is not None and not is_small_and_own(str(base.folder), base.config.hidden_size)

    @property
    def _started(self) -> Path:
        """``base``, with a head for the first fold if there was time to fit it."""
        start = self.find("start")
        return self.base if start is None else self.folder / start.folders[0]

    def join_linear_models(self, path: Path) -> Made:
        """The network before fine-tuning with the linear models built in, with zero blend weight:
        those of the first fold to be measured, and those of all rows."""
        compared, refit, seconds = self.compared(), self.rows.refit, self.budget.share(_JOINING)
        start = start_of(compared, self._started, **self._training)
        options = (compared, self.inputs, self.folder, start, seconds / 2 if refit else seconds)
        scores = imitate(*options)
        make_folder(self.folder / WORK)
        scores.write(self._scores_file)
        self.token_scores, self.final_scores = scores, None
        if refit:
            with suppress(OutOfTime), time_limit(seconds_left() / 2):
                final = imitate(*options, like=scores)
                final.write(self._final_scores_file)
                self.final_scores = final
        return self._joined(compared, scores, start, path)

    @cached_property
    def token_scores(self) -> TokenScores | None:
        """The scores of tokens that imitate the linear models, read from the file if the run is
        resumed; None if there are none."""
        return None if self.find("joined") is None else TokenScores.read(self._scores_file)

    @cached_property
    def final_scores(self) -> TokenScores | None:
        """Likewise, of the linear models of all rows."""
        return TokenScores.read(self._final_scores_file)

    def can_join(self, name: str) -> bool:
        """Whether there are a network of this name and linear models to build in."""
        return self.find(name) is not None and self.token_scores is not None

    def join_to(self, name: str, path: Path) -> Made:
        """A trained network with the linear models built in, for the first fold, with zero blend
        weight."""
        compared, tokens = self.compared(), self.token_scores
        assert tokens is not None  # see ``can_join``
        network = self.folder / self.fitted(name).first[0]
        return self._joined(compared, tokens, start_of(compared, network, **self._training), path)

    def _joined(self, compared: Comparison, tokens: TokenScores, start: Start, path: Path) -> Made:
        final = self.final_scores
        first = path if final is None else path / "first-fold"
        weights = join(compared, tokens, start, first)
        scores = self._scores_of(first, self.rows.first_fold[1])
        if final is not None:
            join(compared, final, start, path, weights)
        return Made(self._relative(path), scores, self._relative(first), partial=True)

    def find(self, name: str) -> ComparedModel | None:
        """The fitted candidate of this name."""
        return next((c for c in self.candidates if c.name == name), None)

    def fitted(self, name: str) -> ComparedModel:
        """Like ``find``, for a candidate that has been fitted."""
        return next(c for c in self.candidates if c.name == name)

    def network(self, path: Path) -> Made:
        """A network for each fold; see ``finetune``."""
        inputs = self.inputs
        share = _FINETUNING if inputs.can_teach else 2 * _FINETUNING if inputs.ngrams_help else 1.0
        if not inputs.pretrains:
            share = max(share, _FINETUNING_OF_GIVEN)
        most, rest = self.budget.share(share), self.budget.left - self.joining_seconds
        return self.finetune(path, max(most / 2, min(most, rest)))

    def finetune(self, path: Path, seconds: float, **settings: Any) -> Made:
        """Fine-tune one network per fold, and repeat with other seeds while there is time.

        If there is not enough time for all folds, only the first fold's network is trained, with
        all epochs: one fully trained network is better than five that stopped early.
        """
        rows, recipe, base, started = self.rows, self.recipe, self.base, clock_seconds()
        if self._public and not settings:
            settings, start = _LINEAR, self._started
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
                    return Made(self._relative(of_seed[0]), fold_scores[0], partial=True)
                break
            folders += of_seed
            scores.append(np.concatenate(fold_scores))
        first = self._relative(*folders[:: len(rows.folds)])
        return Made(self._relative(*folders), np.mean(scores, axis=0), first)

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
        joined, tuned = self.find("joined-finetuned"), self.find("network")
        if joined is None or tuned is None:
            return False
        return self.compared().best_on_first_fold([joined, tuned]) is joined

    def student(self, path: Path) -> Made:
        """Distil the blend into a network, using its predictions for many texts."""
        held_out, compared = self.rows.first_fold[1], self.compared()
        start, joined = self.fitted("network"), self.find("joined-finetuned")
        worth, linear = (
            compared.worth_on_first_fold,
            [c for c in self.candidates if c.kind == "linear"],
        )
        if joined is not None and worth(start) < max(map(worth, linear)) - _FAR_BETTER:
            # Distilled on mixed texts only, the network is worse than the one with built-in linear
            # models (docs/lab/distilled-network.md).
            if not len(self.inputs.unlabelled):
                raise InputError("there are no texts without labels for it")
            start = joined
        # Time for its own predictions and for the report.
        self.budget.reported += (
            self.per_character * 2 * sum(map(characters, [*held_out, *self.inputs.test]))
        )
        # Time to build the linear models in.
        reserved = self.joining_seconds if self.joining_helps else 0.0
        seconds = self.budget.left - reserved
        if seconds < _DISTILLING * self.budget.total:
            raise OutOfTime
        # An interrupted distillation cannot continue: its texts depended on the time left then.
        shutil.rmtree(path, ignore_errors=True)
        base, options = self.folder / start.first[0], {"public": self._public, "seconds": seconds}
        teach(compared, self.inputs, self.folder, base, path, **options)
        scores, partial = self._scores_of(path, held_out), len(self.rows.folds) > 1
        share = compared.share_of(scores) if partial else 0.0
        return Made(self._relative(path), scores, partial=partial, share=share)

    def _scores_of(self, folder: Path, rows: Sequence[Row]) -> np.ndarray:
        """A network's logits on held-out rows; the elapsed time predicts how long the report will
        take."""
        network = Networks(folder, describe_members(folder), Compute(self.recipe.device))
        start = clock_seconds()
        scores = score_all(network.scores, rows)
        self.per_character = (clock_seconds() - start) / max(1, sum(map(characters, rows)))
        # The report times a network twice: alone and as a member of the blend.
        timed = 2 * sum(map(characters, rows[:TIMED])) + sum(map(characters, self.inputs.test))
        self.budget.reported += self.per_character * timed
        return scores


@dataclass(frozen=True)
class FitCandidate:
    """A model that ``fit`` compares with others.

    Args:
        name: identifier, used in file names.
        title: name shown to the user.
        kind: linear; frozen or network, which start from a network.
        make: fits the model in a folder, scores the held-out rows, and raises ``InputError`` if it
            cannot be fitted.
        suits: whether it suits the input; only such candidates are previewed.
        needs: whether what it is made from has been fitted.
        seconds: time limit, when its turn comes.
        role: what other parts need to know of it, one of ``ROLES``; "" if nothing.
        after: the candidate that it follows if ``fit`` pretrains the network; by default the one
            before it. Vectors of public networks are good, those of short pretraining less so.
    """

    name: str
    title: str
    kind: str
    make: Callable[[Steps, Path], Made]
    suits: Callable[[FitInput], bool] = lambda inputs: True
    needs: Callable[[Steps], bool] = lambda steps: True
    seconds: Callable[[Steps], float] = lambda steps: steps.budget.left_for_report
    role: str = ""
    after: str = ""


CANDIDATES: tuple[FitCandidate, ...] = (
    *(
        FitCandidate(
            view.name,
            view.title,
            "linear",
            Steps.view,
            suits=lambda inputs, name=view.name: view_helps(name, inputs.rows, inputs.kind),
            seconds=lambda steps: steps.budget.linear,
        )
        for view in VIEWS.values()
    ),
    FitCandidate(
        "self-trained",
        "linear models, self-trained",
        "linear",
        Steps.self_trained,
        # With many more unlabelled than labelled texts.
        suits=lambda inputs: (
            inputs.rows.task.name == "classify"
            and len(inputs.unlabelled) >= _SELF_TRAINING_FROM * len(inputs.rows.learnt)
        ),
        needs=lambda steps: any(c.kind == "linear" for c in steps.candidates),
        seconds=lambda steps: steps.budget.linear,
        role=SELF_TRAINED,
    ),
    FitCandidate(  # predict --unknown uses its vectors
        "probe",
        "linear on the frozen network",
        "frozen",
        Steps.probe,
        seconds=lambda steps: steps.budget.share(
            _PROBING if steps.inputs.pretrains else _PROBING_OF_GIVEN
        ),
        after="ngrams",
    ),
    FitCandidate(
        "start",
        "network, only its head trained",
        "network",
        Steps.start,
        # With few rows fine-tuning can lose pretrained features.
        suits=lambda inputs: len(inputs.rows.learnt) < FEW or not inputs.pretrains,
        seconds=lambda steps: steps.budget.share(_FINETUNING),
        after="joined",
    ),
    FitCandidate(
        "joined",
        "network, linear models built in",
        "network",
        Steps.join_linear_models,
        seconds=lambda steps: steps.budget.share(2 * _JOINING),
        role=JOINED,
    ),
    FitCandidate("network", "network, fine-tuned", "network", Steps.network),
    FitCandidate(
        "joined-finetuned",
        "fine-tuned + linear models",
        "network",
        lambda steps, path: steps.join_to("network", path),
        needs=lambda steps: steps.can_join("network"),
        role=JOINED,
    ),
    FitCandidate(
        "ngrams",
        "network with n-grams, fine-tuned",
        "network",
        lambda steps, path: steps.finetune(path, steps.budget.share(_NGRAM_SHARE), ngrams=_NGRAMS),
        suits=lambda inputs: inputs.ngrams_help,
        role=NGRAMS,
    ),
    FitCandidate(
        "student",
        "distilled network",
        "network",
        Steps.student,
        suits=lambda inputs: inputs.can_teach,
        needs=lambda steps: steps.find("network") is not None,
        role=DISTILLED,
    ),
    FitCandidate(
        "joined-student",
        "distilled + linear models",
        "network",
        lambda steps, path: steps.join_to("student", path),
        suits=lambda inputs: inputs.can_teach,
        needs=lambda steps: steps.can_join("student") and steps.joining_helps,
        role=JOINED,
    ),
)


def candidates_for(inputs: FitInput) -> list[FitCandidate]:
    """The candidates that suit an input, in the order in which they are fitted."""
    ordered = list(CANDIDATES)
    if inputs.pretrains:
        for candidate in CANDIDATES:
            if candidate.after:
                ordered.remove(candidate)
                names = [other.name for other in ordered]
                ordered.insert(names.index(candidate.after) + 1, candidate)
    return [candidate for candidate in ordered if candidate.suits(inputs)]
