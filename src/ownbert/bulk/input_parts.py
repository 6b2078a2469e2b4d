"""Input files, on any file system that pyarrow supports (local, s3://, gs://, hdfs://, ...), split
into parts that are read independently.

Parquet files are split by rows, other files at the end of a row, so that a part can be read from
the middle of a file. The header of a csv file and the first object of a jsonl file are read before
each part, so that all parts have the columns of the whole file.
"""

import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ownbert.corpus.documents import find_files
from ownbert.exceptions import InputError
from ownbert.files.text_files import GZIP_MAGIC, READ_BUFFER, UTF8_BOM
from ownbert.tables.delimited import all_rows
from ownbert.tables.memory import MemoryTable, rows_of_batches
from ownbert.tables.missing_values import keeping_empty_end
from ownbert.tables.tables import ENDINGS, ending_of, is_known, kind_of, parquet_file

# ``Path`` removes one of the two slashes of an address.
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)", re.DOTALL)
# Bytes of text at which a part ends regardless of its number of rows.
_MOST_BYTES = 1 << 26
_CHUNK = 1 << 23
# Rows of a parquet file in memory at a time.
_ROWS = 1024
# Bytes of a line without content; a byte order mark may precede it.
_BLANK = b" \t\r\n\v\f" + UTF8_BOM


@dataclass(frozen=True)
class InputFile:
    """The state of a file when the parts were planned: ``size`` in bytes, time of modification in
    nanoseconds since 1970, or None if the file system has none."""

    address: str
    size: int
    modified: int | None

    @property
    def kind(self) -> str:
        return kind_of(Path(self.address).name)


@dataclass(frozen=True)
class InputPart:
    """Consecutive rows of a file.

    Args:
        file: index of the file.
        start: first row of a parquet file, else first byte of the decompressed text.
        end: last row or byte, exclusive.
        head_end: byte at which the header or the first object ends; 0 if there is none.
        line: number of the first line.
    """

    file: int
    start: int
    end: int
    head_end: int = 0
    line: int = 1


def as_address(name: str | os.PathLike[str]) -> str:
    """A name as an absolute path, or an address with ``://``."""
    match = _ADDRESS.fullmatch(str(name))
    if match is None:
        return str(Path(name).absolute())
    slashes = ":///" if match[1].lower() == "file" else "://"
    return f"{match[1]}{slashes}{match[2]}"


def open_file_system(address: str) -> tuple[Any, str]:
    """The pyarrow.fs.FileSystem of an address, and the path in it."""
    from pyarrow import fs

    if "://" not in address:
        return fs.LocalFileSystem(), address
    with file_errors(address):
        return fs.FileSystem.from_uri(address)


@contextmanager
def file_errors(address: str, action: str = "read") -> Iterator[None]:
    """Convert file system errors into ``InputError``; ``action``: "read" or "write"."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        if action == "read" and isinstance(error, FileNotFoundError):
            raise InputError("no such file: {address}", address) from None
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        if action == "write":
            raise InputError("cannot write {address}: {reason}", address, reason) from error
        raise InputError("cannot read {address}: {reason}", address, reason) from error


def list_input_files(names: Sequence[str | os.PathLike[str]]) -> list[InputFile]:
    """The distinct files of files, folders, globs or addresses, in their order."""
    addresses: list[str] = []
    for name in names:
        address = as_address(name)
        if "://" not in address:
            addresses += [as_address(path) for path in find_files(address)]
        else:
            addresses += _files_below(address)
    files = [_described(address) for address in dict.fromkeys(addresses)]
    if not files:
        raise InputError("no input files given: name files, folders or globs")
    return files


def _files_below(address: str) -> list[str]:
    """The address itself if it is a file; the files of known types if it is a folder."""
    from pyarrow import fs

    files, path = open_file_system(address)
    with file_errors(address):
        info = files.get_file_info(path)
        if info.type == fs.FileType.NotFound:
            raise InputError("no such file: {address}", address)
        if info.type == fs.FileType.File:
            return [address]
        below = files.get_file_info(fs.FileSelector(path, recursive=True))
    known = sorted(
        each.path[len(path.rstrip("/")) + 1 :]
        for each in below
        if each.type == fs.FileType.File and is_known(each.base_name)
    )
    if not known:
        raise InputError(
            "no .txt, .csv, .tsv, .jsonl or .parquet files in the folder {address}", address
        )
    hidden = re.compile(r"(^|/)[._]")
    return [f"{address.rstrip('/')}/{name}" for name in known if not hidden.search(name)]


def _described(address: str) -> InputFile:
    if not is_known(address):
        raise InputError(
            "{address}: the file type is not known; the name must end with one of {endings}",
            address,
            ", ".join(ENDINGS),
        )
    files, path = open_file_system(address)
    with file_errors(address):
        info = files.get_file_info(path)
    if info.size is None:
        raise InputError("{address} is not a file that can be read at any position", address)
    return InputFile(address, info.size, info.mtime_ns)


def split_file(number: int, file: InputFile, rows: int) -> list[InputPart]:
    """Split the file with index ``number`` into parts of at most ``rows`` rows, in their order.

    In txt files, blank lines are rows.
    """
    with file_errors(file.address):
        if file.kind == "parquet":
            files, path = open_file_system(file.address)
            with files.open_input_file(path) as source:
                total = parquet_file(source, file.address).metadata.num_rows
            parts = [InputPart(number, i, min(i + rows, total)) for i in range(0, total, rows)]
        else:
            with _opened(file) as stream:
                parts = _text_parts(number, file, stream, rows)
    if not parts:
        raise InputError("{address} has no rows", file.address)
    return parts


@contextmanager
def _opened(file: InputFile, start: int = 0) -> Iterator[io.BufferedReader]:
    """Open a text file, decompressed if it is gzip, at the byte ``start``."""
    files, path = open_file_system(file.address)
    with files.open_input_stream(path, compression=None) as raw:
        compressed = raw.read(2) == GZIP_MAGIC
    if compressed:
        with files.open_input_stream(path, compression="gzip") as source:
            while start and (chunk := source.read(min(start, _CHUNK))):
                start -= len(chunk)
            yield io.BufferedReader(source, READ_BUFFER)
    else:
        with files.open_input_file(path) as source:
            source.seek(start)
            yield io.BufferedReader(source, READ_BUFFER)


# Byte at which a line or row ends; number of the next line; whether it counts as a row.
_End = tuple[int, int, bool]


def _text_parts(
    number: int, file: InputFile, stream: io.BufferedReader, rows: int
) -> list[InputPart]:
    head = bytearray()
    for line in stream:
        head += line
        if line.strip(_BLANK):
            break
    if b"\n" not in head and b"\r" in head.strip():  # classic Mac OS line endings
        return [InputPart(number, 0, len(head))]
    # Not splitlines, which also splits at returns.
    rest = chain(io.BytesIO(bytes(head)), stream)
    if file.kind != "delimited":
        ends = _line_ends(rest, blank=file.kind == "txt")
        head_end = len(head) if file.kind == "jsonl" else 0
        return _cut(number, ends, rows, head_end=head_end)
    ends = _table_row_ends(file, rest)
    header = next(ends, None)
    if header is None:
        return []
    end, line_number, _ = header
    return _cut(number, ends, rows, start=end, head_end=end, line=line_number)


def _line_ends(lines: Iterable[bytes], *, blank: bool) -> Iterator[_End]:
    """The ends of lines; ``blank``: whether blank lines count as rows."""
    end = 0
    for line, content in enumerate(lines, start=2):
        end += len(content)
        yield end, line, blank or bool(content.strip(_BLANK))


def _table_row_ends(file: InputFile, lines: Iterable[bytes]) -> Iterator[_End]:
    """The ends of the header and rows of a csv or tsv file, with line breaks in quoted cells."""
    end, line = 0, 1
    # First byte of each line by line number.
    starts: dict[int, int] = {}

    def numbered() -> Iterator[tuple[int, str]]:
        nonlocal end, line
        for content in lines:
            text = content if end else content.removeprefix(UTF8_BOM)
            starts[line], end, line = end, end + len(content), line + 1
            yield line - 1, text.removesuffix(b"\n").decode("latin-1")

    seen = 0  # rows, with the header
    try:
        for start, _ in all_rows(Path(file.address), numbered()):
            if seen:
                yield starts[start], start, True
            seen += 1
            for passed in [number for number in starts if number < start]:
                del starts[passed]
    except InputError:  # The rest of the file is one row; its worker reports the error.
        if seen < 2:
            raise
    for content in lines:
        end += len(content)
    if seen:
        yield end, line, True


def _cut(
    number: int, ends: Iterator[_End], rows: int, *, head_end: int, start: int = 0, line: int = 1
) -> list[InputPart]:
    """Parts of ``rows`` rows, or fewer if the rows are long; ``start`` and ``line`` are those of
    the first row."""
    parts: list[InputPart] = []
    end, count = start, 0
    for end, next_line, is_row in ends:
        count += is_row
        if count == rows or (count and end - start >= _MOST_BYTES):
            parts.append(InputPart(number, start, end, head_end, line))
            start, line, count = end, next_line, 0
    if count:
        parts.append(InputPart(number, start, end, head_end, line))
    elif parts:
        parts[-1] = replace(parts[-1], end=end)
    return parts


@contextmanager
def open_part(
    file: InputFile, part: InputPart, folder: Path
) -> Iterator[tuple[Path | MemoryTable, int]]:
    """Open a part of a file as a source that ``predict`` and ``embed`` can read, and the number of
    leading rows that do not belong to the part.

    Errors inside the context name the file and its lines. All files of ``folder``, which is for a
    temporary file, are deleted at the end.
    """
    pattern = re.compile(rf"{re.escape(str(folder))}\S*?(, (?:line|row) (\d+))?(?=[,: ]|$)")
    head_rows, is_last = 0, True
    try:
        with file_errors(file.address):
            if file.kind == "parquet":
                source: Path | MemoryTable = _parquet_table(file, part, str(folder / "part"))
            else:
                source = folder / f"part{ending_of(file.address)}"
                head_rows, is_last = _copy(file, part, source)
        with nullcontext() if is_last else keeping_empty_end():
            yield source, head_rows
    except InputError as error:
        # The difference between row or line numbers of the file and of the copy of the part.
        skipped = part.start if file.kind == "parquet" else part.line - 1
        if file.kind != "parquet" and part.head_end and part.start:
            with _opened(file) as stream:
                skipped -= stream.read(part.head_end).count(b"\n")

        def named(match: re.Match[str]) -> str:
            if not match[2]:
                return file.address
            what = "row" if file.kind == "parquet" else "line"
            return f"{file.address}, {what} {int(match[2]) + skipped}"

        raise InputError("{error}", pattern.sub(named, str(error))) from error
    finally:
        for path in folder.iterdir():
            path.unlink()


def _copy(file: InputFile, part: InputPart, path: Path) -> tuple[int, bool]:
    """Write the head and a part of a file to ``path``; return the number of rows in the head, and
    whether the file ends with the part."""
    with_head = bool(part.head_end and part.start)
    with path.open("wb") as copy:
        if with_head:
            with _opened(file) as stream:
                copy.write(stream.read(part.head_end))
        with _opened(file, part.start) as stream:
            remaining = part.end - part.start
            while remaining and (chunk := stream.read(min(remaining, _CHUNK))):
                copy.write(chunk)
                remaining -= len(chunk)
            is_last = not stream.read(1)
    return int(with_head and file.kind == "jsonl"), is_last


def _parquet_table(file: InputFile, part: InputPart, name: str) -> MemoryTable:
    """The rows of a part as a table that reads only the requested columns."""
    import pyarrow as pa

    files, path = open_file_system(file.address)

    def rows(names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        try:
            with files.open_input_file(path) as source:
                table = parquet_file(source, file.address)
                groups, first, row = [], 0, 0  # row groups of the part, and their first row
                for number in range(table.metadata.num_row_groups):
                    after = row + table.metadata.row_group(number).num_rows
                    if row < part.end and after > part.start:
                        first = first if groups else row
                        groups.append(number)
                    row = after
                batches = table.iter_batches(_ROWS, row_groups=groups, columns=list(names))
                table_rows = rows_of_batches(batches, names, f"{file.address}: ")
                start = part.start - first
                yield from islice(table_rows, start, start + part.end - part.start)
        except (pa.ArrowException, OSError) as error:
            raise InputError("{address}: damaged parquet data", file.address) from error

    with files.open_input_file(path) as source:
        names = tuple(parquet_file(source, file.address).schema_arrow.names)
    return MemoryTable(name, names, rows)
