"""The output folder of fine-tuning, which may contain several runs of an ensemble or a search."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.exceptions import InputError
from ownbert.run.file_names import CONFUSION, ENSEMBLE, RECIPE, TRAINING_ROWS
from ownbert.run.run_folder import RunFolder
from ownbert.tasks.finetune_recipe import FinetuneRecipe
from ownbert.tasks.kinds import task_files
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.state import newest_state

# Results of a search; its runs are in the folder ``search``.
SEARCH = "search.json"
# Folder for continued pretraining on the texts of the task.
PRETRAINED = "pretrained"


class FinetuneFolder(RunFolder):
    """A ``RunFolder`` that may consist of several runs, so it can be resumed without its own
    state."""

    @property
    def several(self) -> list[str]:
        """Files that show that the folder contains several runs."""
        return [name for name in (ENSEMBLE, SEARCH) if (self.path / name).exists()]

    @property
    def finished(self) -> bool:
        """Whether the run is complete: there is a model, and no state to resume from."""
        complete = (self.path / WEIGHTS).exists() and (self.path / RECIPE).exists()
        return complete and newest_state(self.path) is None

    def member(self, name: str) -> "FinetuneFolder":
        """The folder of a member run, resumed or overwritten like this one."""
        return FinetuneFolder(self.path / name, resume=self.resume, overwrite=not self.resume)

    def resolve_finetuning(self, **given: Any) -> FinetuneRecipe:
        """Like ``resolve``; a resumed run may change its epochs, and hence its number of steps."""
        now, before = self._resolve(FinetuneRecipe, resumes=self.resume, **given)
        if before is None:
            return now
        if now.run.seeds and not before.run.seeds:
            raise InputError(
                "cannot resume {path}: run.seeds was None and is now {seeds}; a single run "
                "cannot become several: choose another folder, or start over with {--overwrite}",
                self.path,
                now.run.seeds,
            )
        if self.several and (now.run.epochs, now.optim.learning_rate) != (
            before.run.epochs,
            before.optim.learning_rate,
        ):
            raise InputError(
                "cannot resume {path} with other epochs or another learning rate: its runs "
                "would no longer be comparable; keep these as they were, or start over with "
                "{--overwrite}",
                self.path,
            )
        if now.run.epochs != before.run.epochs and now.run.max_steps == before.run.max_steps:
            # The recipe's number of steps was computed from the epochs.
            now = replace(now, run=replace(now.run, max_steps=None))
        return now

    def check(self, identity: Mapping[str, str], vocabularies: Sequence[Tokenizer] = ()) -> None:
        several = self.several
        if several and not (self.resume or self.overwrite):
            raise InputError(
                "{path} already contains several runs ({several}); continue with {--resume}, "
                "start over with {--overwrite}, or choose another folder",
                self.path,
                several[0],
            )
        super().check(identity, vocabularies)

    def written(self) -> list[str]:
        names = [
            SEARCH,
            PRETRAINED,
            *task_files(),
            "1_Pooling",
            CONFUSION,
            TRAINING_ROWS,
        ]
        return [*super().written(), *names]

    def replaced(self) -> list[Path]:
        """Files of earlier runs of any kind, which are replaced."""
        several = self.several
        folders = [self.path / "search"] if SEARCH in several else []
        if ENSEMBLE in several:
            folders += [*self.path.glob("fold-[0-9]*"), *self.path.glob("seed-[0-9]*")]
        files = [self.path / name for name in (PRETRAINED, *several, *task_files())]
        return [*super().replaced(), *folders, *files]
