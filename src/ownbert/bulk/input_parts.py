"""Input files split into parts, each of which one process reads by itself.

Parquet files are split by rows; others where a row ends, so that a part can be read from the middle
of a file. A part of a csv file is read after the header, and one of a jsonl file after its first
object, so that the columns are those of the whole file.
"""

import contextlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ownbert.bulk.storage import as_address, is_local, open_file_system, read_errors
from ownbert.corpus.documents import find_files
from ownbert.errors import InputError
from ownbert.files.text_files import GZIP_MAGIC, READ_BUFFER, UTF8_BOM
from ownbert.tables.delimited import all_rows
from ownbert.tables.memory import MemoryTable, arrow_cells
from ownbert.tables.tables import ENDINGS, kind_of

# Bytes of text after which a part ends, whatever its number of rows.
_MOST_BYTES = 1 << 26
_CHUNK = 1 << 23
# Rows of a parquet file that are in memory at a time.
_ROWS = 1024


@dataclass(frozen=True)
class InputFile:
    """A file as it was when the work was planned.

    Args:
        address: a path, or an address with ``://``.
        size: in bytes.
        modified: nanoseconds since 1970, None where the file system does not say.
    """

    address: str
    size: int
    modified: int | None

    @property
    def kind(self) -> str:
        """As of ``ownbert.tables.tables.kind_of``."""
        return kind_of(Path(self.address).name)


@dataclass(frozen=True)
class InputPart:
    """Consecutive rows of a file.

    Args:
        file: its number among all files.
        start, end: rows of a parquet file, else bytes, of the unpacked text where it is gzip.
        head_end: in bytes, where the header or the first object ends; 0 if there is none.
        line: the number of the first line.
    """

    file: int
    start: int
    end: int
    head_end: int = 0
    line: int = 1

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def list_input_files(names: Sequence[str | Path]) -> list[InputFile]:
    """The files of names, in their order: files, folders and, on this machine, globs.

    Raises:
        InputError: a name gives no file, or one of a kind that cannot be split.
    """
    addresses: list[str] = []
    for name in names:
        address = as_address(name)
        if is_local(address):
            addresses += [as_address(path) for path in find_files(address)]
        else:
            addresses += _files_below(address)
    files = [_described(address) for address in dict.fromkeys(addresses)]
    if not files:
        raise InputError("no input files given: name files, folders or globs")
    return files


def _files_below(address: str) -> list[str]:
    """The file itself, or what a folder holds."""
    from pyarrow import fs

    files, path = open_file_system(address)
    with read_errors(address):
        about = files.get_file_info(path)
        if about.type == fs.FileType.NotFound:
            raise InputError(f"no such file: {address}")
        if about.type == fs.FileType.File:
            return [address]
        below = files.get_file_info(fs.FileSelector(path, recursive=True))
    known = sorted(
        each.path[len(path.rstrip("/")) + 1 :]
        for each in below
        if each.type == fs.FileType.File and _is_known(each.base_name)
    )
    if not known:
        raise InputError(f"no .txt, .csv, .tsv, .jsonl or .parquet files in the folder {address}")
    return [f"{address.rstrip('/')}/{name}" for name in known if not _is_hidden(name)]


def _is_known(name: str) -> bool:
    return Path(name.lower().removesuffix(".gz")).suffix in ENDINGS


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "_")) for part in name.split("/"))


def _described(address: str) -> InputFile:
    if not _is_known(address):
        raise InputError(
            f"{address}: the file type is not known; the name must end with one of "
            f"{', '.join(ENDINGS)}"
        )
    files, path = open_file_system(address)
    with read_errors(address):
        about = files.get_file_info(path)
    if about.size is None:
        raise InputError(f"{address} is not a file that can be read at any position")
    return InputFile(address, about.size, about.mtime_ns)


def split_file(number: int, file: InputFile, rows: int) -> list[InputPart]:
    """The parts of a file, of about so many rows each.

    Args:
        number: of the file.
        file: its name and kind.
        rows: the most rows of a part, blank lines included.

    Raises:
        InputError: the file cannot be read.
    """
    with read_errors(file.address):
        if file.kind == "parquet":
            total = _parquet_rows_of(file)
            parts = [InputPart(number, i, min(i + rows, total)) for i in range(0, total, rows)]
        else:
            with _opened(file) as stream:
                parts = _text_parts(number, file, stream, rows)
    if not parts:
        raise InputError(f"{file.address} has no rows")
    return parts


def _parquet_rows_of(file: InputFile) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, path = open_file_system(file.address)
    try:
        with files.open_input_file(path) as source:
            return pq.ParquetFile(source).metadata.num_rows
    except pa.ArrowException as error:
        raise InputError(f"{file.address} is not a readable parquet file") from error


@contextmanager
def _opened(file: InputFile, start: int = 0) -> Iterator[io.BufferedReader]:
    """The bytes of a text file from one on, unpacked."""
    files, path = open_file_system(file.address)
    with files.open_input_stream(path, compression=None) as raw:
        packed = raw.read(2) == GZIP_MAGIC
    if packed:
        with files.open_input_stream(path, compression="gzip") as source:
            while start and (chunk := source.read(min(start, _CHUNK))):
                start -= len(chunk)
            yield io.BufferedReader(source, READ_BUFFER)
    else:
        with files.open_input_file(path) as source:
            source.seek(start)
            yield io.BufferedReader(source, READ_BUFFER)


# Where a line or a row ends, in bytes; the number of the line that follows; whether it is a row,
# and not what comes after the last one.
_End = tuple[int, int, bool]


def _text_parts(
    number: int, file: InputFile, stream: io.BufferedReader, rows: int
) -> list[InputPart]:
    head = bytearray()
    for line in stream:
        head += line
        if line.strip():
            break
    if b"\n" not in head and b"\r" in head.strip():  # lines of an old Mac
        return [InputPart(number, 0, len(head))]
    rest = chain(bytes(head).splitlines(keepends=True), stream)
    if file.kind != "delimited":
        ends = _line_ends(rest, blank=file.kind == "txt")
        return _cut(number, ends, InputPart(number, 0, 0, _head_end(file, head)), rows)
    ends = _table_row_ends(file, rest)
    header = next(ends, None)
    if header is None:
        return []
    end, line_number, _ = header
    return _cut(number, ends, InputPart(number, end, end, end, line_number), rows)


def _head_end(file: InputFile, head: bytearray) -> int:
    return len(head) if file.kind == "jsonl" else 0


def _line_ends(lines: Iterable[bytes], *, blank: bool) -> Iterator[_End]:
    """The lines of a file; ``blank``: whether blank lines are rows."""
    end = 0
    for line, content in enumerate(lines, start=2):
        end += len(content)
        yield end, line, blank or bool(content.strip())


def _table_row_ends(file: InputFile, lines: Iterable[bytes]) -> Iterator[_End]:
    """The header and the rows of a csv or tsv file, which may have line breaks between quotes."""
    end, line = 0, 1
    # Where the lines that have been read start, by their numbers.
    starts: dict[int, int] = {}

    def numbered() -> Iterator[tuple[int, str]]:
        nonlocal end, line
        for content in lines:
            starts[line] = end
            text = content if end else content.removeprefix(UTF8_BOM)
            yield line, text.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")
            end += len(content)
            line += 1

    found = False
    # Where this fails, the rest is one part, and whoever reads it says what is wrong.
    with contextlib.suppress(InputError):
        for start, _ in all_rows(Path(file.address), numbered()):
            if found:
                yield starts[start], start, True
            found = True
            for passed in [number for number in starts if number < start]:
                del starts[passed]
    for content in lines:
        end += len(content)
    if found:
        yield end, line, True


def _cut(number: int, ends: Iterator[_End], first: InputPart, rows: int) -> list[InputPart]:
    """Parts of so many rows, or less where these are long."""
    parts: list[InputPart] = []
    start, end, line, count = first.start, first.start, first.line, 0
    for end, next_line, is_row in ends:
        count += is_row
        if count == rows or (count and end - start >= _MOST_BYTES):
            parts.append(InputPart(number, start, end, first.head_end, line))
            start, line, count = end, next_line, 0
    if count:
        parts.append(InputPart(number, start, end, first.head_end, line))
    elif parts:
        parts[-1] = replace(parts[-1], end=end)
    return parts


@contextmanager
def open_part(
    file: InputFile, part: InputPart, folder: Path
) -> Iterator[tuple[Path | MemoryTable, int]]:
    """What ``predict`` and ``embed`` read for a part, and how many of its rows come before.

    Args:
        file: the whole file.
        part: of the file.
        folder: for a temporary file.

    Raises:
        InputError: while the part is read; it names the file and the line there.
    """
    shown = re.compile(rf"{re.escape(str(folder))}\S*?(, (?:line|row) (\d+))?(?=[,: ]|$)")
    before = 0
    try:
        with read_errors(file.address):
            if file.kind == "parquet":
                source: Path | MemoryTable = _parquet_table(file, part, str(folder / "part"))
            else:
                ending = "".join(Path(file.address.lower().removesuffix(".gz")).suffixes[-1:])
                source = folder / f"part{ending}"
                before = _copy(file, part, source)
        yield source, before
    except InputError as error:
        skipped = part.start if file.kind == "parquet" else _lines_before(file, part)

        def named(found: re.Match[str]) -> str:
            if not found[2]:
                return file.address
            what = "row" if file.kind == "parquet" else "line"
            return f"{file.address}, {what} {int(found[2]) + skipped}"

        raise InputError(shown.sub(named, str(error))) from error
    finally:
        for path in folder.iterdir():
            path.unlink()


def _lines_before(file: InputFile, part: InputPart) -> int:
    """What is added to the number of a line in the copy of a part."""
    if not (part.head_end and part.start):
        return part.line - 1
    with _opened(file) as stream:
        return part.line - 1 - stream.read(part.head_end).count(b"\n")


def _copy(file: InputFile, part: InputPart, path: Path) -> int:
    """Write the head of a file and a part of it; returns how many rows the head has."""
    headed = bool(part.head_end and part.start)
    with path.open("wb") as copy:
        if headed:
            with _opened(file) as stream:
                copy.write(stream.read(part.head_end))
        with _opened(file, part.start) as stream:
            left = part.end - part.start
            while left and (chunk := stream.read(min(left, _CHUNK))):
                copy.write(chunk)
                left -= len(chunk)
    return int(headed and file.kind == "jsonl")


def _parquet_table(file: InputFile, part: InputPart, name: str) -> MemoryTable:
    """The rows of a part, of which only the needed columns are read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    files, path = open_file_system(file.address)

    def cells(batch: Any, column: str) -> list[Any]:
        return arrow_cells(batch[column], f"{file.address}: column {column!r}")

    def rows(names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        try:
            with files.open_input_file(path) as source:
                table = pq.ParquetFile(source)
                groups, first = _row_groups(table.metadata, part.start, part.end)
                batches = table.iter_batches(_ROWS, row_groups=groups, columns=list(names))
                found = (
                    values
                    for batch in batches
                    for values in zip(*(cells(batch, n) for n in names), strict=True)
                )
                start = part.start - first
                yield from islice(found, start, start + part.end - part.start)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{file.address}: damaged parquet data") from error

    try:
        with files.open_input_file(path) as source:
            names = tuple(pq.ParquetFile(source).schema_arrow.names)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{file.address} is not a readable parquet file") from error
    return MemoryTable(name, names, rows)


def _row_groups(metadata: Any, start: int, end: int) -> tuple[list[int], int]:
    """The row groups that hold some rows, and the first row of the first of these."""
    groups, first, row = [], 0, 0
    for number in range(metadata.num_row_groups):
        after = row + metadata.row_group(number).num_rows
        if row < end and after > start:
            first = first if groups else row
            groups.append(number)
        row = after
    return groups, first
