"""A trained folder copied elsewhere, without what only its training needs."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ownbert.errors import InputError
from ownbert.files import explained, make_folder, missing_folders, refuse_same, remove_empty

# Saved states, and what ``fit`` continues from, which has the labelled texts.
_LEFT_OUT = ("checkpoints", "work", "fit.json")


def copy_folder(source: Path, target: str | os.PathLike[str]) -> None:
    """Copy a folder of a model, without saved states of its training and hidden files.

    Links that lead out of the folder are left out.

    Args:
        source: the folder.
        target: a new or an empty folder, which appears complete or not at all; or one that this
            function has written before, whose files are replaced.

    Raises:
        InputError: it is the folder itself, or a file, or cannot be written.
    """
    target = Path(target)
    refuse_same(source, target)
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; a folder is needed")
    new = missing_folders(target)
    make_folder(target.parent)
    temporary = target.with_name(f".{target.name[:100]}.{os.getpid()}.tmp")
    try:
        with explained(target):
            shutil.copytree(source, temporary, ignore=_left_out(source))
            if not target.exists():
                temporary.rename(target)
            else:
                shutil.copytree(temporary, target, dirs_exist_ok=True)
    except shutil.Error as error:
        raise InputError(f"cannot write {target}: {error.args[0][0][2]}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        remove_empty(new)


def _left_out(source: Path) -> Callable[[str, list[str]], set[str]]:
    root = source.resolve()
    if root.parent.name == "snapshots":  # of the hub, whose files are links to blobs beside it
        root = root.parent.parent

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {
            name
            for name in names
            if name in _LEFT_OUT
            or name.startswith(".")
            or not Path(folder, name).resolve().is_relative_to(root)
        }

    return left_out
