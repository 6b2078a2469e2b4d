"""Output folders: one process writes at a time, and files of other programs are kept."""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ownbert.checks import whole_in_environment
from ownbert.exceptions import InputError
from ownbert.files.json_files import parse_yaml
from ownbert.files.writing import (
    lock_file,
    make_folder,
    missing_folders,
    refuse_unwritable,
    remove_empty,
)

# Keys that identify our JSON files, by file name.
_KEYS = {
    "fit.json": {"format", "identity", "candidates"},
    "blend.json": {"format", "members", "labels"},
    "ensemble.json": {"format", "identity", "members"},
    "search.json": {"format", "identity", "runs"},
    "parity.json": {"to", "file"},
    "quantization.json": {"least_cosine", "bytes_after"},
    "vocabulary_report.json": {"running_tokens", "sentence_ends"},
    "store.json": {"format", "settings", "files"},
    "report.json": {"leaderboard", "task"},
    "index.json": {"format", "checksums", "texts"},
}
# Files that other programs write as well are ours only with these keys: a config.json with keys of
# this prefix, the manifest of a part, and metrics with curves.
_OWN_KEY = "ownbert_"
_SOME_KEYS = ({"shard", "input_digest", "sha256"}, {"labels", "confusion"})
_RECIPES = ({"seed", "data", "optim", "run"}, {"seed", "minutes", "labels_per_class"})
CARD_SIGN = "<!-- Written by ownbert"
_REPORT = (b">OwnBERT report: ", ">OwnBERT 报告：".encode())
# Metadata of our pictures; pictures of earlier versions have matplotlib's default.
PICTURE_METADATA = {"Software": "ownbert"}
_OUR_PICTURE, _MATPLOTLIB_PICTURE = b"Software\0ownbert", b"Software\0Matplotlib"
# Files that identify a folder of ours.
SIGNS = ("recipe.yaml", "config.json", "README.md", *_KEYS)
# The text report cannot be identified by its content, but is written after the page.
_BESIDE = {"report.txt": ("report.html", "report.json")}
_MOST_BYTES = 1 << 26
_descriptors: set[int] = set()


def refuse_both(*, resume: bool, overwrite: bool) -> None:
    """Raise ``InputError`` if an earlier run is to be both resumed and overwritten."""
    if resume and overwrite:
        raise InputError("{--resume} continues, {--overwrite} starts over; give only one of them")


@contextlib.contextmanager
def writing(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a folder for this process while the block writes to it.

    The folder is created, and removed again if the block leaves it empty. The lock is a system lock
    on the folder itself: it leaves no file, and ends with the process. Under torchrun the first
    process holds it for all.

    Raises:
        InputError: another process is writing to the folder, or it cannot be created.
    """
    path = Path(folder)
    others = whole_in_environment("WORLD_SIZE", 1) > 1 and whole_in_environment("RANK", 0) > 0
    if others or (path.exists() and not path.is_dir()):
        yield  # a file is refused when it is written
        return
    created = missing_folders(path)
    descriptor = _locked(path)
    try:
        yield
    finally:
        remove_empty(created)
        if descriptor is not None:
            _descriptors.discard(descriptor)
            os.close(descriptor)


def _locked(path: Path) -> int | None:
    """Lock a folder, and return its descriptor; None if folders cannot be locked."""
    while True:
        make_folder(path)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process removed it
        except OSError:
            return None
        lock_file(descriptor, path)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(path), os.fstat(descriptor)):
                _descriptors.add(descriptor)
                return descriptor
        os.close(descriptor)  # removed meanwhile, and perhaps recreated


def _release_in_fork() -> None:
    # Otherwise workers that outlive a killed process would keep its lock.
    for descriptor in _descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_fork)


def refuse_foreign(
    folder: str | os.PathLike[str], names: Iterable[str], *, signs: Iterable[str] = SIGNS
) -> None:
    """Check that only files of ownbert would be replaced.

    Files are identified by their content. Where the content is not conclusive (weights, a
    vocabulary, a picture of an earlier version, a subfolder), another file of the folder must be
    ours.

    Args:
        names: names of files and subfolders that may be replaced.
        signs: names of files that identify a folder of ours.

    Raises:
        InputError: one of the files is not ours, or is an input of the command.
    """
    place, ours = Path(folder), None
    for name in names:
        path = place / name
        if not os.path.lexists(path) or (path.is_dir() and not _visible(path)):
            continue
        if not path.is_dir():
            refuse_unwritable(path)
        written_by_us = is_ours(path)
        if written_by_us is None and name in _BESIDE:
            written_by_us = any(is_ours(place / other) for other in _BESIDE[name])
        if written_by_us is None:
            ours = any(is_ours(place / sign) for sign in signs) if ours is None else ours
            written_by_us = ours
        if not written_by_us:
            raise InputError(
                "{path} was not written by ownbert and would be replaced; choose another folder",
                path,
            )


def has_sign(folder: Path, signs: Iterable[str]) -> bool:
    """Whether a folder has one of the files ``signs``, unless all are from other programs."""
    return any((folder / sign).exists() and is_ours(folder / sign) is not False for sign in signs)


def is_ours(path: Path) -> bool | None:
    """Whether ownbert wrote a file, judged by its content; None if that is not conclusive."""
    kind = _KINDS.get(path.suffix)
    try:
        if kind is None or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return None
        return kind(path.read_bytes(), path.name)
    except (OSError, ValueError, RecursionError, InputError):
        return None  # corrupt


def _visible(folder: Path) -> bool:
    """Whether a folder contains more than unfinished files."""
    return any(not path.name.startswith(".") for path in folder.iterdir())


def _is_json(data: bytes, name: str) -> bool | None:
    value = json.loads(data)
    keys = {*value} if isinstance(value, dict) else set()
    if name in _KEYS:
        return _KEYS[name] <= keys
    own = any(wanted <= keys for wanted in _SOME_KEYS)
    return True if own or any(key.startswith(_OWN_KEY) for key in keys) else None


def _is_recipe(data: bytes, name: str) -> bool:
    value = parse_yaml(data.decode(), name)
    return isinstance(value, dict) and any(keys <= value.keys() for keys in _RECIPES)


def _is_log(data: bytes, name: str) -> bool | None:
    first = data.split(b"\n", 1)[0]
    value = json.loads(first) if first else None
    if value is None:  # an empty log
        return None
    keys = value.keys() if isinstance(value, dict) else ()
    if "step" not in keys:
        return False
    return True if "seconds" in keys else None  # logs of other programs have steps as well


def _is_picture(data: bytes, name: str) -> bool | None:
    if _OUR_PICTURE in data[:1024]:
        return True
    return None if _MATPLOTLIB_PICTURE in data[:1024] else False


_KINDS: dict[str, Callable[[bytes, str], bool | None]] = {
    ".json": _is_json,
    ".jsonl": _is_log,
    ".yaml": _is_recipe,
    ".html": lambda data, name: any(sign in data for sign in _REPORT),
    ".md": lambda data, name: CARD_SIGN.encode() in data,
    ".png": _is_picture,
}


def inside(folder: Path, name: str, source: str | os.PathLike[str]) -> Path:
    """Resolve a path that the file ``source`` in ``folder`` contains; it must be below the folder.

    Raises:
        InputError: the path is outside the folder.
    """
    if Path(name).is_absolute() or ".." in Path(name).parts or "\0" in name:
        raise InputError("{source} names {name!r}, which is outside its folder", source, name)
    return folder / name
