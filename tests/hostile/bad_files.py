"""Files that are not what a command expects, by kind; and JSON and weights with one thing wrong."""

import gzip
import json
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Write = Callable[[Path], object]
# Beyond what Python's own int() takes of digits.
_DIGITS = "9" * 6000
_DEEP = "[" * 100_000


def _bytes(content: bytes) -> Write:
    return lambda path: path.write_bytes(content)


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "w1 w2\n")


def _parquet(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"a": [1, 2]}), path)


# What stands where a file is expected.
NOT_FILES: dict[str, Write] = {
    "missing": lambda path: None,
    "folder": Path.mkdir,
    "broken link": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "below a file": lambda path: path.write_text("w1\n"),
    "device": lambda path: path.symlink_to("/dev/null"),
}
BAD_FILES: dict[str, Write] = {
    "empty": _bytes(b""),
    "blank": _bytes(b"\n \n\t\n\n"),
    "utf-16": _bytes("text,label\nw1,red\n".encode("utf-16")),
    "utf-8 mark": _bytes(b"\xef\xbb\xbftext,label\nw1,red\n"),
    "latin-1": _bytes("text,label\nw1\xe9,red\n".encode("latin-1")),
    "png": _bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256))),
    "zip": _zip,
    "parquet": _parquet,
    "npy": lambda path: np.save(path.open("wb"), np.zeros(3)),
    "pickle": lambda path: np.save(
        path.open("wb"), np.asarray([{}], dtype=object), allow_pickle=True
    ),
    "cut gzip": _bytes(gzip.compress(b"text,label\nw1,red\n" * 99)[:40]),
    # Made when it is needed: that takes a second.
    "gzip bomb": lambda path: path.write_bytes(gzip.compress(b"w" * (1 << 27))),
    "nul": _bytes(b"text,label\nw1\x00w2,red\n\x00\x00\n"),
    "terminal": _bytes("text,label\nw1\x1b[31m\x07\x9b2J\u202e,\x1b]0;x\x07\n".encode()),
    "long line": _bytes(b"w1 " * 350_000),
    "long word": _bytes(b"w" * 1_000_000),
    "two columns with the same name": _bytes(b"text,text,label\nw1,w2,red\n"),
    "ragged": _bytes(b"text,label\nw1,red,blue\nw2\n"),
    "header": _bytes(b"text,label\n"),
    "other columns": _bytes(b"\x1b[1ma,b\n1,2\n"),
    "open quote": _bytes(b'text,label\n"w1,red\nw2,blue\n'),
    "deep json": _bytes(_DEEP.encode()),
    "digits": _bytes(f'{{"text": {_DIGITS}, "label": {_DIGITS}}}\n'.encode()),
    "nan": _bytes(b'{"text": NaN, "label": Infinity}\n'),
    "array": _bytes(b"[1, 2, 3]\n"),
    "null": _bytes(b"null\n"),
    "objects": _bytes(b'{"text": {"a": [1]}, "label": [[]]}\n'),
    "half a character": _bytes(b'{"text": "\\ud83d", "label": "\\ud83d"}\n' * 4),
    "yaml bomb": _bytes(
        b"a: &a [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (n, n, b",".join([b"*%c" % (n - 1)] * 9)) for n in range(98, 108)
        )
    ),
    "yaml tag": _bytes(b"!!python/object/apply:os.system ['touch hacked']\n"),
}


def write_pipe(path: Path) -> int:
    """A pipe and a process that writes to it, once."""
    os.mkfifo(path)
    writer = os.fork()
    if not writer:
        with path.open("wb") as file:
            file.write(b"text,label\nw1,red\nw2,blue\n")
        os._exit(0)
    return writer


# In place of a value: a value of another type, and numbers out of every range.
_WRONG: dict[str, Any] = {
    "missing": ...,
    "null": None,
    "text": "x\x1b[31m",
    "number": 7,
    "negative": -1,
    "huge": 10**12,
    "fraction": 0.5,
    "infinite": float("inf"),
    "truth": True,
    "list": [[]],
    "object": {"x": {}},
}


def wrong_values(value: Any, path: tuple = (), depth: int = 3) -> Iterator[tuple[str, str, Any]]:
    """Everything that one wrong value makes of JSON: where, what, and the whole.

    Args:
        value: the right JSON.
        path: where it stands, in what holds it.
        depth: how deep to go; of longer lists and tables only the first entries.
    """
    where = ".".join(map(str, path)) or "all"
    for name, wrong in _WRONG.items():
        same = type(wrong) is type(value) and not isinstance(value, int | float)
        if not same and (path or wrong is not ...):
            yield where, name, wrong
    if depth and isinstance(value, dict | list):
        entries = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, inner in entries[: 40 if depth == 3 else 4]:
            for place, name, wrong in wrong_values(inner, (*path, key), depth - 1):
                whole = dict(value) if isinstance(value, dict) else list(value)
                whole[key] = wrong
                if wrong is ...:
                    del whole[key]
                yield place, name, whole


def broken_json(text: str) -> Iterator[tuple[str, bytes]]:
    """JSON that is none, or not in the usual way."""
    yield "deep", _DEEP.encode()
    yield "digits", f'{{"a": {_DIGITS}}}'.encode()
    yield "twice", (text + text).encode()
    yield "cut", text.encode()[: len(text) // 2]
    yield "utf-16", text.encode("utf-16")
    yield "half", text.replace('": "', '": "\\ud83d', 1).encode()


def broken_weights(content: bytes) -> Iterator[tuple[str, bytes]]:
    """A safetensors file with its header or its data wrong."""
    (size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    tensors = [name for name in header if name != "__metadata__"]

    def whole(about: dict[str, Any]) -> bytes:
        text = json.dumps(about).encode()
        return struct.pack("<Q", len(text)) + text + data

    yield "empty", b""
    yield "cut in the header", content[: 8 + size // 2]
    yield "cut", content[:-9]
    yield "longer", content + b"more"
    yield "huge header", struct.pack("<Q", 1 << 60) + content[8:]
    yield "no json", struct.pack("<Q", size) + b"x" * size + data
    yield "deep header", struct.pack("<Q", len(_DEEP)) + _DEEP.encode() + data
    yield "nothing", whole({})
    yield "pickle", b"\x80\x02cos\nsystem\n(S'touch hacked'\ntR."
    yield "not a number", content[: 8 + size] + b"\xff" * len(data)
    for name in (tensors[0], tensors[-1]):
        about = header[name]
        for what, changes in {
            "huge shape": {"shape": [1 << 40, 1 << 20]},
            "negative shape": {"shape": [-1, 4]},
            "no shape": {"shape": []},
            "unknown type": {"dtype": "F7"},
            "other type": {"dtype": "I64"},
            "offsets beyond": {"data_offsets": [0, 1 << 50]},
            "offsets turned": {"data_offsets": about["data_offsets"][::-1]},
        }.items():
            yield f"{name} {what}", whole(header | {name: about | changes})
        yield (
            f"{name} missing",
            whole({other: about for other, about in header.items() if other != name}),
        )
        yield (
            f"{name} by another name",
            whole({("\x1b[31m" + o if o == name else o): about for o, about in header.items()}),
        )


def broken_binary(content: bytes) -> Iterator[tuple[str, bytes]]:
    """A file of numbers that is cut, longer or has other numbers."""
    yield "empty", b""
    yield "cut", content[: len(content) // 2 + 1]
    yield "longer", content + b"more"
    yield "ones", b"\xff" * len(content)
