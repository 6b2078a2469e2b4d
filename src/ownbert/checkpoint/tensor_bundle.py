"""Reads TensorFlow's two-file checkpoints without TensorFlow.

``NAME.index`` is a sorted table in LevelDB's format (blocks of keys and values with checksums); its
values locate tensors in ``NAME.data-00000-of-00001``. The files are untrusted: all offsets, sizes
and lengths are verified.

Source: tensorflow/core/protobuf/tensor_bundle.proto; tensorflow/core/util/tensor_bundle;
leveldb/doc/table_format.md.
"""

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ownbert.exceptions import InputError, in_short
from ownbert.files.text_files import refuse_unreadable
from ownbert.protobuf import DamagedError, Reader

INDEX = ".index"
_MAGIC, _FOOTER = 0xDB4775248B80FB57, 48
# Maximum size of an index; one of a thousand tensors has 60 KB.
_LARGEST_INDEX = 1 << 28
_MOST_SHARDS, _MOST_DIMENSIONS = 10_000, 16
# TensorFlow's numbers of element types. Other types (text, resources) contain no weights.
_DTYPES = {
    1: torch.float32,
    2: torch.float64,
    3: torch.int32,
    9: torch.int64,
    14: torch.bfloat16,
    19: torch.float16,
}


@dataclass(frozen=True)
class _Entry:
    """The location of a tensor: a shard, and a byte range of its file."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def read_bundle(prefix: Path, wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by TensorFlow's names.

    Args:
        prefix: path of the files without ``.index`` and ``.data-...``.

    Raises:
        InputError: a file is missing, damaged, or of an unsupported kind.
    """
    path = prefix.with_name(prefix.name + INDEX)
    refuse_unreadable(path)
    try:
        shards, entries = _read_index(path)
    except DamagedError as error:
        raise InputError(
            "{path} is damaged or not a TensorFlow checkpoint: {error}", path, error
        ) from None
    entries = {name: entry for name, entry in entries.items() if wanted(name)}
    tensors = {}
    for shard in sorted({entry.shard for entry in entries.values()}):
        data = prefix.with_name(f"{prefix.name}.data-{shard:05}-of-{shards:05}")
        refuse_unreadable(data)
        in_shard = {name: entry for name, entry in entries.items() if entry.shard == shard}
        try:
            tensors |= _read_data(data, in_shard)
        except DamagedError as error:
            raise InputError(
                "{data} is damaged or does not match its index: {error}", data, error
            ) from None
    return {name: tensors[name] for name in entries}


def _read_data(path: Path, entries: dict[str, _Entry]) -> dict[str, Tensor]:
    """Read tensors of one file. They do not overlap, so their total size is limited by the file."""
    length, end, tensors = path.stat().st_size, 0, {}
    with path.open("rb") as file:
        for name, entry in sorted(entries.items(), key=lambda item: item[1].offset):
            if entry.dtype not in _DTYPES:
                raise DamagedError(f"tensor {in_short(name)} has an unsupported element type")
            if entry.offset < end or entry.offset + entry.size > length:
                raise DamagedError(
                    f"tensor {in_short(name)} has {entry.size:,} bytes from {entry.offset:,} on, "
                    f"but the file has {length:,}"
                )
            end = entry.offset + entry.size
            file.seek(entry.offset)
            data = file.read(entry.size)
            if _masked(crc32c(data)) != entry.checksum:
                raise DamagedError(f"tensor {in_short(name)} does not match its checksum")
            dtype = _DTYPES[entry.dtype]
            flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0)
            tensors[name] = flat.to(dtype).reshape(entry.shape)
    return tensors


def _read_index(path: Path) -> tuple[int, dict[str, _Entry]]:
    """The number of shards, and the entries of tensors by name."""
    size = path.stat().st_size
    if not _FOOTER <= size <= _LARGEST_INDEX:
        raise DamagedError(f"it has {size:,} bytes")
    data = path.read_bytes()
    if struct.unpack("<Q", data[-8:])[0] != _MAGIC:
        raise DamagedError("it does not end as a table does")
    footer = Reader(data[-_FOOTER:])
    _block(data, *_handle(footer))  # metaindex of further blocks, which is empty
    shards, entries = 0, {}
    for _, value in _block(data, *_handle(footer)):
        for key, entry in _block(data, *_handle(Reader(value))):
            if not key:
                shards = _read_header(entry)
                continue
            try:
                name = key.decode()
            except UnicodeDecodeError:
                raise DamagedError("a name is not text") from None
            if name in entries:
                raise DamagedError(f"tensor {in_short(name)} is there twice")
            entries[name] = _read_entry(name, entry)
    if not shards:
        raise DamagedError("it has no header")
    for name, entry in entries.items():
        if entry.shard >= shards:
            raise DamagedError(f"tensor {in_short(name)} is in file {entry.shard} of {shards}")
    return shards, entries


def _handle(reader: Reader) -> tuple[int, int]:
    """The offset and the size of a block."""
    return reader.varint(), reader.varint()


def _block(data: bytes, offset: int, size: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block, in which keys share prefixes with preceding keys."""
    if offset + size + 5 > len(data) - _FOOTER:
        raise DamagedError(
            f"a block has {size:,} bytes from {offset:,} on, but the file has {len(data):,}"
        )
    content, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if _masked(crc32c(content + trailer[:1])) != struct.unpack("<I", trailer[1:])[0]:
        raise DamagedError("a block does not match its checksum")
    if trailer[0]:
        raise DamagedError("its blocks are compressed; save it again without compression")
    if size < 4:
        raise DamagedError(f"a block has {size} bytes")
    restarts = struct.unpack("<I", content[-4:])[0]
    end = size - 4 * (restarts + 1)
    if end < 0:
        raise DamagedError(f"a block of {size:,} bytes has {restarts:,} restarts")
    reader, key, entries = Reader(content[:end]), b"", []
    while reader.more:
        shared, suffix, length = reader.varint(), reader.varint(), reader.varint()
        if shared > len(key):
            raise DamagedError(f"a key shares {shared:,} bytes with one of {len(key):,}")
        key = key[:shared] + reader.take(suffix)
        entries.append((key, reader.take(length)))
    return entries


def _read_header(data: bytes) -> int:
    """The number of data files (BundleHeaderProto)."""
    shards, endianness = 1, 0
    for number, value in Reader(data).fields():
        if number == 1 and isinstance(value, int):
            shards = value
        elif number == 2 and isinstance(value, int):
            endianness = value
    if endianness:
        raise DamagedError("it was written on a machine with the other byte order")
    if not 1 <= shards <= _MOST_SHARDS:
        raise DamagedError(f"it has {shards:,} data files")
    return shards


def _read_entry(name: str, data: bytes) -> _Entry:
    """BundleEntryProto."""
    numbers, shape = dict.fromkeys((1, 3, 4, 5, 6), 0), ()
    for number, value in Reader(data).fields():
        if number == 7:
            raise DamagedError(
                f"tensor {in_short(name)} is stored in slices, which are not supported"
            )
        if number == 2 and isinstance(value, bytes):
            shape = _read_shape(value)
        elif number in numbers:
            whole = value if isinstance(value, int) else int.from_bytes(value[:8], "little")
            numbers[number] = whole
    dtype, shard, offset, size, checksum = numbers.values()
    entry = _Entry(dtype, shape, shard, offset, size, checksum)
    if dtype in _DTYPES and math.prod(shape) * _DTYPES[dtype].itemsize != size:
        raise DamagedError(f"tensor {in_short(name)} of shape {shape} has {size:,} bytes")
    return entry


def _read_shape(data: bytes) -> tuple[int, ...]:
    """TensorShapeProto."""
    shape = []
    for number, value in Reader(data).fields():
        if number == 2 and isinstance(value, bytes):
            sizes = [size for one, size in Reader(value).fields() if one == 1]
            size = sizes[-1] if sizes else 0
            if not isinstance(size, int) or size >= 1 << 40 or len(shape) == _MOST_DIMENSIONS:
                raise DamagedError(f"a shape contains {in_short(size)}")
            shape.append(size)
    return tuple(shape)


def _masked(checksum: int) -> int:
    """A checksum as stored; masking avoids problems with checksums of data that contain
    checksums."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@lru_cache
def _table() -> np.ndarray:
    """(65,536) the effect of two bytes on a checksum."""
    values = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        values = np.where(values & 1, (values >> 1) ^ np.uint32(0x82F63B78), values >> 1)
    return values


def crc32c(data: bytes) -> int:
    """The checksum CRC-32C (RFC 3720, appendix B.4).

    Long data are split into parts of equal length with vectorised checksums: plain Python would
    take minutes for a base model.
    """
    if len(data) < 2:
        first = np.array([0xFFFFFFFF ^ byte for byte in data], dtype=np.uint32)
        return int(_append_zeros(first, 1)[0]) ^ 0xFFFFFFFF if data else 0
    parts = 1 << max(0, min(16, len(data).bit_length() - 8))
    pairs = len(data) // parts // 2
    length = 2 * pairs
    head = np.frombuffer(data, "<u2", parts * pairs).reshape(parts, pairs)
    table, sums = _table(), np.full(parts, 0xFFFFFFFF, dtype=np.uint32)
    for column in np.ascontiguousarray(head.T):
        sums = table[(sums ^ column) & 0xFFFF] ^ (sums >> 16)
    sums ^= np.uint32(0xFFFFFFFF)
    while len(sums) > 1:  # merge neighbours into parts of twice the length
        sums = _append_zeros(sums[::2], length) ^ sums[1::2]
        length *= 2
    rest = data[length:]
    if not rest:
        return int(sums[0])
    return int(_append_zeros(sums, len(rest))[0]) ^ crc32c(rest)


def _append_zeros(sums: np.ndarray, count: int) -> np.ndarray:
    """Checksums after ``count`` zero bytes were appended to their data.

    The effect of a byte is a linear map of 32 bits, and that of two bytes its square.
    """
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    # The map of one zero bit, as images of the bits of a checksum; three squarings give that of a
    # byte.
    step = np.where(bits & 1, np.uint32(0x82F63B78), bits >> np.uint32(1))
    for _ in range(3):
        step = _apply_map(step, step)
    while count:
        if count & 1:
            sums = _apply_map(step, sums)
        step, count = _apply_map(step, step), count >> 1
    return sums


def _apply_map(step: np.ndarray, sums: np.ndarray) -> np.ndarray:
    result = np.zeros_like(sums)
    for bit, image in enumerate(step):
        result ^= np.where((sums >> np.uint32(bit)) & 1, image, np.uint32(0))
    return result
