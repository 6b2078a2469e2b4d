"""Output folders that are written completely or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.folders import SIGNS, has_sign, is_ours
from ownbert.files.input_files import refuse_same
from ownbert.files.writing import (
    explained,
    make_folder,
    missing_folders,
    remove_empty,
    uninterrupted,
)
from ownbert.language.messages import Option
from ownbert.run.file_names import BLEND, CARD, ENSEMBLE


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
