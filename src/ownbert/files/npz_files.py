"""Reads .npz files with one clear error."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.text_files import refuse_unreadable

# zipfile raises RuntimeError for encrypted files and unknown compression methods; values of wrong
# types and sizes raise the others.
_NPZ_ERRORS = (
    *(ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error),
    *(TypeError, LookupError, OverflowError),
)


class _RealArrays(Mapping[str, np.ndarray]):
    """Arrays of a file; complex ones are rejected instead of losing their imaginary parts."""

    def __init__(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        self.arrays, self.path = arrays, path

    def __getitem__(self, name: str) -> np.ndarray:
        array = self.arrays[name]
        if np.iscomplexobj(array):
            raise InputError(
                "{path}: {name} contains complex numbers; real ones are needed", self.path, name
            )
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


@contextlib.contextmanager
def open_npz(path: Path, needed: str) -> Iterator[Mapping[str, np.ndarray]]:
    """Open an .npz file as a mapping of arrays by name, each read on access.

    Raises:
        InputError: the file is not an .npz file, is damaged, or contains objects or complex
            numbers; also for errors inside the block, which should only read. The message ends with
            ``needed``, the expected content.
    """
    refuse_unreadable(path)
    try:
        # np.load would also accept a single array.
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile
        with np.load(path, allow_pickle=False) as arrays:
            yield _RealArrays(arrays, path)
    except InputError:
        raise
    except _NPZ_ERRORS as error:
        objects = "Object arrays" in str(error)
        reason = "it contains objects" if objects else "it is damaged, or no npz file"
        raise InputError(
            "{path} cannot be read ({reason}); {needed}", path, reason, needed
        ) from None
