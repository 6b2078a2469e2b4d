"""The folder that a run writes to: whether it may, and what it resumes from."""

import shutil
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from ownbert.checkpoint import CONFIG
from ownbert.checkpoint.weights import WEIGHTS
from ownbert.errors import InputError
from ownbert.settings import resolve, settings_of
from ownbert.text.files import has_tokenizer
from ownbert.text.tokenizer import Tokenizer
from ownbert.train.log import CURVES, LOG
from ownbert.train.state_files import (
    FOLDER,
    SavedState,
    find_state,
    newest,
    refuse_other,
)

RECIPE = "recipe.yaml"
# Which folders an ensemble is made of.
ENSEMBLE = "ensemble.json"
T = TypeVar("T")


class RunFolder:
    """An output folder as a command finds it; nothing is written before ``reserve``.

    path: of the folder, which need not exist. resume: continue from its newest saved state, or
    that of ``resume_step``; without one, start. overwrite: replace the model in it. ``saved`` is
    the state to resume from, or None. Raises ``InputError`` if ``path`` is a file, if it holds a
    model and neither is given, and for a state that is damaged or not there.
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
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{path} is a file; -o must name a folder")
        self._refuse_taken()
        state = find_state(self.path, resume_step) if self.resume else None
        self.saved = None if state is None else SavedState.read(state)

    def _refuse_taken(self) -> None:
        trained = (self.path / WEIGHTS).exists() or newest(self.path) is not None
        if trained and not (self.resume or self.overwrite):
            raise InputError(
                f"{self.path} already holds a model; go on with --resume, start anew with "
                "--overwrite, or choose another folder"
            )

    def resolve(
        self,
        kind: type[T],
        *,
        config: str | Path | None,
        overrides: Sequence[str],
        options: Mapping[str, Any],
    ) -> T:
        """The recipe of the run: resumed, it starts from the recipe in the folder.

        Raises ``InputError`` when the settings then name another corpus, model or seed.
        """
        return self._resolve(
            kind,
            resumes=self.saved is not None,
            config=config,
            overrides=overrides,
            options=options,
        )[0]

    def _resolve(self, kind: type[T], *, resumes: bool, **given: Any) -> tuple[T, T | None]:
        """The recipe, and that of the run that it ``resumes``."""
        there = self.path / RECIPE
        before = resolve(kind, config=there) if resumes and there.exists() else None
        now = resolve(kind, base=before, **given)
        if before is not None:
            free = {name for name, about in settings_of(kind).items() if about.resumable}
            for name, old, new in _differences(asdict(before), asdict(now), free):  # pyright: ignore
                raise InputError(
                    f"cannot resume {self.path}: {name} was {old!r} and is now {new!r}; leave it "
                    "as it was, or start anew with --overwrite"
                )
        return now, before

    def reserve(self, identity: Mapping[str, str], vocabulary: Tokenizer | None = None) -> None:
        """Make the folder ready to be written to.

        identity: what the run learns from; a saved state must have learnt from the same.
        vocabulary: that of the run; a tokenizer in the folder must be the same, unless it is
        overwritten. Raises ``InputError``.
        """
        if self.saved is not None:
            refuse_other(self.saved.path, self.saved.metadata["identity"], identity)
        if vocabulary is not None and not self.overwrite:
            self._refuse_other_tokenizer(vocabulary)
        if self.overwrite and not self.resume:
            self._clear()
        self.path.mkdir(parents=True, exist_ok=True)

    def _refuse_other_tokenizer(self, vocabulary: Tokenizer) -> None:
        if not has_tokenizer(self.path):
            return
        if Tokenizer.load(self.path).fingerprint() != vocabulary.fingerprint():
            raise InputError(
                f"{self.path} has another vocabulary than the token store; prepare the store again "
                f"with --tokenizer {self.path}, or choose another folder"
            )

    def _clear(self) -> None:
        for name in (WEIGHTS, CONFIG, LOG, CURVES, RECIPE):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / FOLDER, ignore_errors=True)


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], free: Set[str], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Settings that differ, with both values, except those in ``free``."""
    for name, value in old.items():
        if prefix + name in free:
            continue
        if isinstance(value, Mapping):
            yield from _differences(value, new[name], free, f"{prefix}{name}.")
        elif value != new[name] and new[name] not in (None, "auto"):  # then it stays as it was
            yield prefix + name, value, new[name]
