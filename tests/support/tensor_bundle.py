"""A writer of TensorFlow's checkpoints, small and plain, for tests of the reader."""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

_TYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}
_TABLE = []
for _start in range(256):
    for _ in range(8):
        _start = _start >> 1 ^ 0x82F63B78 * (_start & 1)
    _TABLE.append(_start)


def crc32c(data: bytes) -> int:
    """Byte after byte."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 255] ^ value >> 8
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(
    array: np.ndarray, offset: int, *, shard: int = 0, checksum: int | None = None, **changed: int
) -> bytes:
    """BundleEntryProto; ``changed``: dtype or size."""
    shape = b"".join(field(2, field(1, size)) for size in array.shape)
    data = array.tobytes()
    checksum = masked(data) if checksum is None else checksum
    return (
        field(1, changed.get("dtype", _TYPES.get(array.dtype.name, 7)))
        + field(2, shape)
        + (field(3, shard) if shard else b"")
        + (field(4, offset) if offset else b"")
        + field(5, changed.get("size", len(data)))
        + varint(6 << 3 | 5)
        + struct.pack("<I", checksum)
    )


def block(pairs: list[tuple[bytes, bytes]], compression: int = 0) -> bytes:
    """A block with its trailer; keys share beginnings, from every fourth on anew."""
    content, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(pairs):
        shared = 0
        if number % 4:
            while shared < min(len(key), len(before)) and key[shared] == before[shared]:
                shared += 1
        else:
            restarts.append(len(content))
        own = key[shared:]
        content += varint(shared) + varint(len(own)) + varint(len(value)) + own + value
        before = key
    restarts = restarts or [0]
    content += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    trailer = bytes([compression])
    return content + trailer + struct.pack("<I", masked(content + trailer))


def table(pairs: list[tuple[bytes, bytes]], *, per_block: int = 5, compression: int = 0) -> bytes:
    """The index file of these keys and values, which are sorted."""
    out, handles = b"", []
    for first in range(0, len(pairs), per_block):
        part = pairs[first : first + per_block]
        made = block(part, compression)
        handles.append((part[-1][0], varint(len(out)) + varint(len(made) - 5)))
        out += made
    meta_handle, meta = varint(len(out)), block([])
    meta_handle += varint(len(meta) - 5)
    out += meta
    index = block(handles)
    footer = meta_handle + varint(len(out)) + varint(len(index) - 5)
    return out + index + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def header(shards: int = 1, endianness: int = 0) -> bytes:
    return field(1, shards) + (field(2, endianness) if endianness else b"") + field(3, field(1, 1))


def write_bundle(prefix: Path, arrays: Mapping[str, np.ndarray], *, shards: int = 1) -> None:
    """``prefix.index`` and its data files; tensors go to the files in turn."""
    pairs, data = [(b"", header(shards))], [b""] * shards
    for number, name in enumerate(sorted(arrays, key=str.encode)):
        array, shard = np.asarray(arrays[name], order="C"), number % shards
        pairs.append((name.encode(), entry(array, len(data[shard]), shard=shard)))
        data[shard] += array.tobytes()
    prefix.with_name(prefix.name + ".index").write_bytes(table(pairs))
    for shard, content in enumerate(data):
        name = f"{prefix.name}.data-{shard:05}-of-{shards:05}"
        prefix.with_name(name).write_bytes(content)
