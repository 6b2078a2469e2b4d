"""IDX files, the format of MNIST: a header and numbers, plain or gzip.

Two zero bytes, the data type, the number of dimensions; then the size of each dimension, a
big-endian 32-bit integer; then the data (yann.lecun.com/exdb/mnist, "The IDX file format").
"""

import gzip
import re
import zlib
from pathlib import Path

import numpy as np

from ownbert.exceptions import InputError
from ownbert.files.text_files import GZIP_MAGIC, refuse_unreadable

_UBYTE = 0x08
# Such as train-images-idx3-ubyte.gz; some copies have a dot before idx.
_NAME = re.compile(r"[-.]idx(\d)(-ubyte)?(\.gz)?$")


def is_idx(path: Path) -> bool:
    """Whether a file is an IDX file, by its name."""
    return _NAME.search(path.name) is not None


def is_idx_of_images(path: Path) -> bool:
    """Whether a file is an IDX file with three dimensions or more, by its name."""
    match = _NAME.search(path.name)
    return match is not None and int(match[1]) >= 3


def read_idx(path: Path) -> np.ndarray:
    """Read the data of a file, uint8 with its dimensions.

    Raises:
        InputError: the file is not an IDX file, has a wrong length, or contains another type than
            bytes.
    """
    refuse_unreadable(path)
    data = path.read_bytes()
    if data[:2] == GZIP_MAGIC:
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise InputError(f"{path}: the gzip data is damaged or cut short") from None
    if len(data) < 4 or data[:2] != b"\0\0" or not data[3]:
        raise InputError(
            f"{path} is not an IDX file: it begins with {data[:4].hex(' ') or 'nothing'}, but "
            "must begin with 00 00"
        )
    if data[2] != _UBYTE:
        raise InputError(
            f"{path} contains numbers of type 0x{data[2]:02x}; only 0x08 (bytes) is supported"
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise InputError(f"{path} is cut off in its header")
    shape = tuple(np.frombuffer(data, ">u4", count=data[3], offset=4).tolist())
    expected, actual = int(np.prod(shape, dtype=object)), len(data) - start
    if actual != expected:
        wrong = "cut off" if actual < expected else "too long"
        raise InputError(
            f"{path} is {wrong}: its header says {' x '.join(map(str, shape))}, which is "
            f"{expected:,} bytes, but {actual:,} follow"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def labels_beside(path: Path) -> Path:
    """The file of labels that belongs to a file of images, by its name.

    For train-images-idx3-ubyte.gz this is train-labels-idx1-ubyte.gz, plain or gzip.

    Raises:
        InputError: there is no such file.
    """
    name = _NAME.sub(lambda m: m[0].replace(f"idx{m[1]}", "idx1"), path.name)
    name = name.replace("images", "labels")
    labels_path = path.with_name(name)
    plain = labels_path.with_name(name.removesuffix(".gz"))
    existing = [p for p in (labels_path, plain, plain.with_name(f"{plain.name}.gz")) if p.exists()]
    if not existing or existing[0] == path:
        raise InputError(f"{path} has no labels: {labels_path} is missing")
    return existing[0]
