"""The output folder of a run: checks before writing, and the state to resume from."""

import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.exceptions import InputError
from ownbert.files.folders import refuse_both, refuse_foreign
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import make_folder
from ownbert.language.messages import Option
from ownbert.run.file_names import BLEND, ENSEMBLE, RECIPE, REPORT
from ownbert.settings import resolve, settings_of
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import TOKENIZER_FILES, has_tokenizer
from ownbert.train.state_files import (
    STATES,
    SavedState,
    find_state,
    newest_state,
    require_same_identity,
)
from ownbert.train.watch.log import BOARD, CURVES, LOG

T = TypeVar("T")


def nothing_to_resume(folder: Path) -> str:
    """A note for a run that starts although it was to be resumed."""
    return f"note: {folder} has no run to resume; a new one starts"


class RunFolder:
    """The output folder of a run; nothing is written before ``reserve``.

    Args:
        path: path of the folder, which need not exist.
        resume: continue from its newest saved state, or start if there is none.
        overwrite: replace the model in it.
        resume_step: continue from the saved state of this step instead.

    Attributes:
        saved: state to resume from, or None.

    Raises:
        InputError: ``path`` is a file, or contains a model and neither ``resume`` nor ``overwrite``
            is given, or a state is damaged or missing.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        resume: bool = False,
        overwrite: bool = False,
        resume_step: int | None = None,
    ) -> None:
        self.path, self.overwrite = Path(path), overwrite
        self.resume = resume or resume_step is not None
        refuse_both(resume=self.resume, overwrite=overwrite)
        self._reserved = False
        if self.path.exists() and not self.path.is_dir():
            raise InputError("{path} is a file; {-o} must name a folder", path)
        self._refuse_taken()
        state = find_state(self.path, resume_step) if self.resume else None
        self.saved = None if state is None else SavedState.read(state)

    def notes(self) -> Iterator[str]:
        """A note if there is nothing to resume, for example because of a wrong name."""
        if self.resume and self.saved is None:
            yield nothing_to_resume(self.path)

    def _refuse_taken(self) -> None:
        trained = (self.path / WEIGHTS).exists() or newest_state(self.path) is not None
        if trained and not (self.resume or self.overwrite):
            raise InputError(
                "{path} already contains a model; continue with {--resume}, start over with "
                "{--overwrite}, or choose another folder",
                self.path,
            )
        if (self.path / BLEND).exists() and not self.overwrite:  # ``predict`` would use the blend
            raise InputError(
                "{path} already contains a model; replace it with {--overwrite}", self.path
            )

    def resolve(self, kind: type[T], **given: Any) -> T:
        """Resolve the recipe of the run; a resumed run starts from the recipe in the folder.

        Args:
            kind: class of the recipe.
            given: settings, see ``ownbert.settings.resolve``.

        Raises:
            InputError: a setting that a resumed run must keep was changed.
        """
        return self._resolve(kind, resumes=self.saved is not None, **given)[0]

    def _resolve(self, kind: type[T], *, resumes: bool, **given: Any) -> tuple[T, T | None]:
        """The recipe, and the saved one if the run ``resumes``."""
        path = self.path / RECIPE
        before = resolve(kind, config=path) if resumes and path.exists() else None
        now = resolve(kind, base=before, **given)
        if before is not None:
            changeable = {name for name, setting in settings_of(kind).items() if setting.resumable}
            for name, old, new in _differences(asdict(before), asdict(now), changeable):  # pyright: ignore
                raise InputError(
                    "cannot resume {path}: {name} was {old!r} and is now {new!r}; keep it as it "
                    "was, or start over with {--overwrite}",
                    self.path,
                    name,
                    old,
                    new,
                )
        self._refuse_inputs(now)
        return now, before

    def check(self, identity: Mapping[str, str], vocabularies: Sequence[Tokenizer] = ()) -> None:
        """Check that a run may write to the folder.

        Args:
            identity: identity of the training data, which must match that of the saved state.
            vocabularies: vocabularies of the run, one of which must equal that of a tokenizer in
                the folder, unless the folder is overwritten.

        Raises:
            InputError: one of them differs, or a file to be replaced was not written by ownbert.
        """
        if self.saved is not None:
            require_same_identity(self.saved.path, self.saved.metadata["identity"], identity)
        reusable = vocabularies and self._has_vocabulary_of(vocabularies)
        refuse_foreign(self.path, [*self.written(), *([] if reusable else TOKENIZER_FILES)])
        if vocabularies and not self.overwrite and not reusable and has_tokenizer(self.path):
            raise InputError(
                "{path} has a different vocabulary than the token store; prepare the store "
                "again with {tokenizer}, or choose another folder",
                self.path,
                Option("--tokenizer", self.path),
            )

    def reserve(self, identity: Mapping[str, str], vocabularies: Sequence[Tokenizer] = ()) -> None:
        """Create the folder, or prepare it for writing; only the first call has an effect.

        Args:
            identity, vocabularies: see ``check``.

        Raises:
            InputError: see ``check``, or the folder cannot be created.
        """
        if self._reserved:
            return
        self.check(identity, vocabularies)
        if self.overwrite and not self.resume:
            self._clear()
        make_folder(self.path)
        self._reserved = True

    def _has_vocabulary_of(self, vocabularies: Sequence[Tokenizer]) -> bool:
        """Whether the tokenizer in the folder has one of these vocabularies."""
        if not has_tokenizer(self.path):
            return False
        known = {vocabulary.fingerprint() for vocabulary in vocabularies}
        return Tokenizer.load(self.path).fingerprint() in known

    def written(self) -> list[str]:
        """Names of files that a run may write into the folder, besides a tokenizer and the card."""
        return [WEIGHTS, CONFIG, LOG, CURVES, RECIPE, STATES, BOARD, BLEND, ENSEMBLE]

    def replaced(self) -> list[Path]:
        """Files and folders that ``reserve`` removes if the folder is overwritten."""
        names = (WEIGHTS, CONFIG, LOG, CURVES, RECIPE, STATES, BLEND, ENSEMBLE)
        report = [REPORT] if (self.path / BLEND).exists() else []  # of ``fit``, for ``label``
        return [self.path / name for name in (*names, *report)]

    def _clear(self) -> None:
        for path in self.replaced():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _refuse_inputs(self, recipe: Any) -> None:
        """Check that no input that the recipe names is among the files to be replaced."""
        names = [name for name, setting in settings_of(type(recipe)).items() if setting.path]
        inputs = [value for name in names if (value := attrgetter(name)(recipe))]
        refuse_same(inputs, self.path)
        if not self.overwrite or self.resume:
            return
        replaced = [path.resolve() for path in self.replaced()]
        for value in inputs:
            input_path = Path(value).resolve()
            if any(path == input_path or path in input_path.parents for path in replaced):
                raise InputError(
                    "{value} is in {path}, which would be overwritten", value, self.path
                )


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], changeable: Set[str], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of each differing setting, except those in ``changeable``."""
    for name, value in old.items():
        if prefix + name in changeable:
            continue
        if isinstance(value, Mapping):
            yield from _differences(value, new[name], changeable, f"{prefix}{name}.")
        elif value != new[name] and new[name] not in (None, "auto"):  # keep the old value
            yield prefix + name, value, new[name]
