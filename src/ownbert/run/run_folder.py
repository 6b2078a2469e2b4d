"""Output folders: the checks of a run before it writes, the state to resume from, and a folder that
is written completely or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.model_files import WEIGHTS
from ownbert.exceptions import InputError
from ownbert.files.folders import SIGNS, has_sign, is_ours, refuse_both, refuse_foreign
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import (
    explained,
    make_folder,
    missing_folders,
    remove_empty,
    uninterrupted,
)
from ownbert.language.messages import Message, Option
from ownbert.run.file_names import BLEND, CARD, ENSEMBLE, RECIPE, REPORT
from ownbert.settings import resolve, settings_of
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import TOKENIZER_FILES, has_tokenizer
from ownbert.train.log import BOARD, CURVES, LOG
from ownbert.train.state import (
    STATES,
    SavedState,
    find_state,
    newest_state,
    require_same_identity,
)

T = TypeVar("T")


def nothing_to_resume(folder: Path) -> str:
    """A note for a run that starts although it was to be resumed."""
    return Message("note: {folder} has no run to resume; a new one starts", folder)


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
        state = find_state(self.path, resume_step) if self.resume else None
        self.saved = None if state is None else SavedState.read(state)

    def notes(self) -> Iterator[str]:
        """A note if there is nothing to resume, for example because of a wrong name."""
        if self.resume and self.saved is None:
            yield nothing_to_resume(self.path)

    def resolve(self, kind: type[T], **given: Any) -> T:
        """Resolve the recipe of the run, of class ``kind`` (see ``ownbert.settings.resolve``); a
        resumed run starts from the recipe in the folder, and must keep most of its settings."""
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
        """Check that a run may write to the folder: with the training data of the saved state,
        replacing only files that ownbert wrote, and unless the folder is overwritten, with one of
        ``vocabularies`` if it has a tokenizer."""
        if self.saved is not None:
            require_same_identity(self.saved.path, self.saved.metadata["identity"], identity)
        reusable = False
        if vocabularies and has_tokenizer(self.path):
            fingerprints = {vocabulary.fingerprint() for vocabulary in vocabularies}
            reusable = Tokenizer.load(self.path).fingerprint() in fingerprints
        refuse_foreign(self.path, [*self.written(), *([] if reusable else TOKENIZER_FILES)])
        if vocabularies and not self.overwrite and not reusable and has_tokenizer(self.path):
            raise InputError(
                "{path} has a different vocabulary than the token store; prepare the store "
                "again with {tokenizer}, or choose another folder",
                self.path,
                Option("--tokenizer", self.path),
            )

    def reserve(self, identity: Mapping[str, str], vocabularies: Sequence[Tokenizer] = ()) -> None:
        """Create the folder, or prepare it for writing, after ``check``; only the first call has an
        effect."""
        if self._reserved:
            return
        self.check(identity, vocabularies)
        if self.overwrite and not self.resume:
            self._clear()
        make_folder(self.path)
        self._reserved = True

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


def refuse_taken(
    target: Path,
    source: Path,
    data: Any,
    *,
    overwrite: bool,
    to: str = "",
    looked_in: str | Path | None = None,
    beside: bool = False,
    signs: Iterable[str] = SIGNS,
) -> None:
    """Check that a folder may be used for new files.

    Args:
        target: folder to write.
        source: model folder.
        data: input file, if any.
        overwrite: whether the folder may contain files.
        to: format of an export.
        looked_in: folder inside the model folder where engines look for this format, if any.
        beside: whether the target is that folder.
        signs: names of files that identify folders written by ownbert.

    Raises:
        InputError: the folder has files that must not be replaced, or is inside the model folder.
    """
    refuse_same([source, *([] if data is None else [Path(data)])], target)
    inside = Path(os.path.realpath(source)) in Path(os.path.realpath(target)).parents
    if inside and not beside:
        if looked_in is not None:
            raise InputError(
                "{target} is inside the folder of the model; write to another folder, or to "
                "{source}, where {engine} looks for the file",
                target,
                source / looked_in,
                Option("--engine", to),
            )
        raise InputError(
            "{target} is inside the folder of the model; write to another folder", target
        )
    if target.exists() and not target.is_dir():
        raise InputError("{target} is a file; {-o} must name a folder", target)
    if not overwrite and target.is_dir() and any(target.iterdir()):
        raise InputError(
            "{target} already contains files; choose another folder, or replace them with "
            "{--overwrite}",
            target,
        )
    if target.is_dir() and any(target.iterdir()) and not beside and not has_sign(target, signs):
        raise InputError(
            "{target} contains files that ownbert has not written; choose another folder", target
        )


@contextmanager
def complete_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder beside ``target`` that replaces it when the block succeeds.

    In an existing folder, files of the same names are replaced, and a blend or an ensemble is
    removed. Others are kept, as is a card written by the user.
    """
    target = Path(os.path.realpath(target))  # "." has no name, and links may lead to other disks
    created = missing_folders(target.parent)
    make_folder(target.parent)
    new = target.with_name(f".{target.name[:100]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with explained(target):
            new.mkdir()
            yield new
            with uninterrupted():
                _move(new, target)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        remove_empty(created)


def _move(new: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        remove_empty([target])
        os.replace(new, target)
        return
    for name in (BLEND, ENSEMBLE):  # would be used instead of the new model
        (target / name).unlink(missing_ok=True)
    for path in sorted(new.rglob("*")):
        place = target / path.relative_to(new)
        if path.is_dir():
            make_folder(place)
        elif place.is_dir():
            raise InputError("cannot write {place}: it is a folder, a file name is needed", place)
        elif path.name != CARD or not place.exists() or is_ours(place):
            os.replace(path, place)
