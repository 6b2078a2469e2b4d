"""NumPy .npz files, read with one clear error."""

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ownbert.errors import InputError
from ownbert.files import refuse_unreadable

# zipfile raises RuntimeError for encrypted files and unknown kinds of compression.
_NPZ_ERRORS = (
    *(ValueError, OSError, EOFError, KeyError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


class _RealArrays(Mapping[str, np.ndarray]):
    """Arrays of a file; complex ones are refused instead of losing their imaginary parts."""

    def __init__(self, arrays: Mapping[str, np.ndarray], path: Path) -> None:
        self.arrays, self.path = arrays, path

    def __getitem__(self, name: str) -> np.ndarray:
        found = self.arrays[name]
        if np.iscomplexobj(found):
            raise InputError(f"{self.path}: {name} holds complex numbers; real ones are needed")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


@contextlib.contextmanager
def open_npz(path: Path, needed: str) -> Iterator[Mapping[str, np.ndarray]]:
    """The arrays of an .npz file by their names, each read when it is accessed.

    Args:
        path: the file.
        needed: what it should hold, for the message.

    Raises:
        InputError: the file is no .npz file, is damaged, or holds objects or complex numbers; also
            for errors inside the block, which should do nothing but read.
    """
    refuse_unreadable(path)
    try:
        # np.load takes a single array, too.
        if not zipfile.is_zipfile(path):
            raise zipfile.BadZipFile
        with np.load(path, allow_pickle=False) as arrays:
            yield _RealArrays(arrays, path)
    except InputError:
        raise
    except _NPZ_ERRORS as error:
        objects = "Object arrays" in str(error)
        reason = "it holds objects" if objects else "it is damaged, or no npz file"
        raise InputError(f"{path} cannot be read ({reason}); {needed}") from None
