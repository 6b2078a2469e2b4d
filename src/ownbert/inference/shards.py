"""Shards: several processes each predict a share of one input and write a part of the output.

Rows are distributed round-robin: of 16 shards the third has rows 3, 19, 35, ... So all shards have
the same number of rows whatever the order of the input, and rows need not be counted first. A part
is written beside the output (``out.3-of-16.jsonl`` for ``out.jsonl``) with a manifest of its origin
(``out.3-of-16.jsonl.manifest.json``), which ``merge`` checks; it writes all
rows in the order of the input.
"""

import contextlib
import csv
import gzip
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ownbert import limits
from ownbert.exceptions import InputError, in_short
from ownbert.files.folders import refuse_foreign
from ownbert.files.input_files import allow_open_files, refuse_same, sha256_of
from ownbert.files.json_files import read_json, write_json
from ownbert.files.text_files import open_text
from ownbert.files.writing import atomic_path, refuse_unwritable
from ownbert.inference.embedder import in_blocks
from ownbert.inference.engines import Progress
from ownbert.inference.row_files import (
    SEPARATORS,
    VECTOR,
    Record,
    joined,
    parquet_layout,
    parquet_rows,
    write_blocks,
    write_parquet,
)
from ownbert.language.messages import Message, Option
from ownbert.tables.delimited import LONGEST_FIELD
from ownbert.tables.memory import parse_object

Item = TypeVar("Item")
FORMAT = 1
_NOTATION = re.compile(r"(\d{1,9})/(\d{1,9})")


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, counted from 1."""

    number: int
    count: int

    def __post_init__(self) -> None:
        if not 1 <= self.count <= limits.SHARDS:
            raise InputError(
                "shard {number}/{count} does not exist; there can be from 1 to {shards:,} shards",
                self.number,
                self.count,
                limits.SHARDS,
            )
        if not 1 <= self.number <= self.count:
            raise InputError(
                "shard {number}/{count} does not exist; the shards are 1/{count} to "
                "{count}/{count}",
                self.number,
                self.count,
            )

    def path(self, output: str | Path) -> Path:
        """The path of this shard's part of ``output``."""
        name, ending = split_ending(Path(output))
        return Path(output).with_name(f"{name}.{self.number}-of-{self.count}{ending}")

    def share(self, rows: int) -> int:
        """Number of rows in this shard, out of ``rows``."""
        return (rows - self.number) // self.count + 1


def as_shard(given: Any) -> Shard | None:
    """Parse a shard given as "3/16" or (3, 16); None means all rows."""
    if given is None or isinstance(given, Shard):
        return given
    if isinstance(given, str) and (match := _NOTATION.fullmatch(given.strip())):
        return Shard(int(match[1]), int(match[2]))
    if isinstance(given, tuple | list) and [type(each) for each in given] == [int, int]:
        return Shard(*given)
    raise InputError(
        "shard is {value}; give its number and the number of shards, such as 3/16", in_short(given)
    )


def part_of(output: str | Path | None, shard: Any) -> tuple[Path | None, "DealtRows"]:
    """The file that a shard of an output writes, if any, and its rows; without a shard the output
    itself, and all rows. ``shard`` is a value that ``as_shard`` accepts."""
    if output is None and shard is not None:
        raise InputError("a shard writes one part of the output; name the file with output")
    own = as_shard(shard)
    if output is not None and own is not None:
        output = own.path(output)
        refuse_foreign(output.parent, [manifest_path(output).name], signs=())
    return None if output is None else Path(output), DealtRows(own)


def split_ending(path: Path) -> tuple[str, str]:
    """The name of a file without its extension, and the extension including .gz."""
    packed = path.name[-3:] if path.name.lower().endswith(".gz") else ""
    plain = Path(path.name[: len(path.name) - len(packed)])
    return plain.stem, plain.suffix + packed


class DealtRows:
    """Selects the rows of a shard from all rows of an input; without a shard, all rows."""

    def __init__(self, shard: Shard | None) -> None:
        self.shard = shard
        self._total = self._taken = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def take(self, rows: Iterable[Item], content: Callable[[Item], Any]) -> Iterator[Item]:
        """Yield the rows of the shard.

        Args:
            rows: all rows, which are read to the end.
            content: returns the content of a row for its checksum, as a JSON value.
        """
        if self.shard is None:
            yield from rows
            return
        for row in rows:
            line = json.dumps(content(row), ensure_ascii=False, default=str) + "\n"
            self._digest.update(line.encode("utf-8", "surrogatepass"))
            mine = self._total % self.shard.count == self.shard.number - 1
            self._total += 1
            if mine:
                self._taken += 1
                yield row

    def write_manifest(self, part: Path, made_for: Callable[[], Mapping[str, Any]]) -> None:
        """Write the manifest of a finished part, if there are shards, after all rows were taken.

        ``made_for`` returns everything else that the rows depend on, the same for all shards.
        """
        if self.shard is None:
            return
        manifest = {
            "format": FORMAT,
            "shard": self.shard.number,
            "shards": self.shard.count,
            "rows": self._taken,
            "input_rows": self._total,
            "input_digest": self._digest.hexdigest(),
            "bytes": part.stat().st_size,
            "sha256": sha256_of(part),
            **made_for(),
        }
        try:
            write_json(manifest_path(part), manifest)
        except BaseException:
            part.unlink()  # without a manifest it cannot be merged
            raise


def manifest_path(part: Path) -> Path:
    """The path of a part's manifest."""
    return part.with_name(f"{part.name}.manifest.json")


def _read_manifest(part: Path) -> dict[str, Any]:
    path = manifest_path(part)
    manifest = read_json(path)
    required = {"shard": int, "shards": int, "rows": int, "input_rows": int, "sha256": str}
    fits = all(type(manifest.get(name)) is kind for name, kind in required.items())
    if not fits or min(manifest[name] for name, kind in required.items() if kind is int) < 0:
        raise InputError("{path} is not the manifest of a part; run its shard again", path)
    return manifest


Item = TypeVar("Item")
# Manifest keys that have another name in messages.
_TITLES = {"input_digest": "input", "input_rows": "input"}
# Manifest keys that may differ between parts.
_OWN = ("shard", "rows", "bytes", "sha256")
# Maximum number of missing parts named in a message.
_NAMED = 5
# Rows of each matrix in memory at a time.
_ROWS = 1024
_END: Any = object()
_NOT_FINITE = "a vector contains a value that is not finite"


def merge(
    output: str | Path, *, parts: str | Path | None = None, progress: Progress | None = None
) -> int:
    """Merge the parts that ``predict`` or ``embed`` wrote with ``shard``, in the order of the rows.

    ``output`` has the same rows, order and format as a run without shards. Logits and vectors may
    differ by float32 rounding, because the batches are different.

    Args:
        output: output file of the sharded runs; it is written completely or not at all.
        parts: folder of the parts; by default the folder of ``output``.
        progress: called with the number of rows so far.

    Returns:
        The number of rows.

    Raises:
        InputError: a part is missing, unfinished or damaged, or the parts have different models
            or inputs.
    """
    output = Path(output)
    refuse_unwritable(output)
    part_files = find_parts(output, output.parent if parts is None else Path(parts))
    manifests = [_read_manifest(part) for part in part_files]
    _require_same_run(part_files, manifests)
    refuse_same(part_files, output)
    for part, manifest in zip(part_files, manifests, strict=True):
        if sha256_of(part) != manifest["sha256"]:
            raise InputError(
                "{part} differs from what was written; it is damaged or truncated: copy it or "
                "run its shard again",
                part,
            )
    allow_open_files(len(part_files))
    ending = split_ending(output)[1].lower()
    join = {".npy": _join_matrices, ".parquet": _join_parquet}.get(ending, _join_texts)
    with atomic_path(output) as temporary:
        checked = [_Part(part, m["rows"]) for part, m in zip(part_files, manifests, strict=True)]
        count, total = join(checked, temporary, ending, progress), manifests[0]["input_rows"]
        if count != total:
            raise InputError(
                "the parts of {output} have {count:,} rows, but the input has {manifests:,}; "
                "run the shards again",
                output,
                count,
                total,
            )
    return count


def find_parts(output: Path, folder: Path) -> list[Path]:
    """All parts of a file, ordered by number."""
    if not folder.is_dir():
        raise InputError("no such folder: {folder}", folder)
    name, ending = map(re.escape, split_ending(output))
    pattern = re.compile(rf"(\.)?{name}\.(\d{{1,9}})-of-(\d{{1,9}}){ending}(?(1)\.part)")
    ready: dict[tuple[int, int], Path] = {}
    unfinished: set[tuple[int, int]] = set()
    for path in folder.iterdir():
        if not (match := pattern.fullmatch(path.name)):
            continue
        number, count = int(match[2]), int(match[3])
        if not 1 <= number <= count <= limits.SHARDS:
            continue
        if match[1]:
            unfinished.add((number, count))
        elif manifest_path(path).is_file() and path.is_file():
            ready[number, count] = path
    counts = sorted({count for _, count in (*ready, *unfinished)})
    if not counts:
        raise InputError(
            "no parts of {name} in {folder}; predict and embed write them with {--shard}, such "
            "as {path_name}",
            output.name,
            folder,
            Shard(1, 2).path(output).name,
        )
    if len(counts) > 1:
        raise InputError(
            "{folder} has parts of {name} for {counts:,} and for {counts2:,} shards; remove the "
            "unwanted ones",
            folder,
            output.name,
            counts[0],
            counts[1],
        )
    expected = [(number, counts[0]) for number in range(1, counts[0] + 1)]
    if missing := [shard for shard in expected if shard not in ready or shard in unfinished]:
        shown = ", ".join(f"{number}/{count}" for number, count in missing[:_NAMED])
        more = (
            Message(" and {count:,} more", len(missing) - _NAMED) if len(missing) > _NAMED else ""
        )
        if unfinished.issuperset(missing):
            raise InputError(
                "{output}: the shards {shown}{more} are unfinished; run them again, with "
                "{--resume} if the command has it",
                output,
                shown,
                more,
            )
        raise InputError(
            "{output}: the shards {shown}{more} are missing; run them with {--shard}",
            output,
            shown,
            more,
        )
    return [ready[shard] for shard in expected]


def _require_same_run(parts: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> None:
    """Check that all parts come from the same run."""
    first = manifests[0]
    for number, (part, manifest) in enumerate(zip(parts, manifests, strict=True), start=1):
        shard = Shard(number, len(parts))
        expected = (number, len(parts), shard.share(manifest["input_rows"]))
        if (manifest["shard"], manifest["shards"], manifest["rows"]) != expected:
            raise InputError(
                "{manifest_path} is not the manifest of this part; run its shard again",
                manifest_path(part),
            )
        for key in {**first, **manifest}:
            if key not in _OWN and manifest.get(key) != first.get(key):
                if key == "precision" and isinstance(first.get(key), str):
                    raise InputError(
                        "{name} and {parts_name} cannot be joined because they differ in: "
                        "precision; run the first again with {precision}",
                        part.name,
                        parts[0].name,
                        Option("--precision", first[key]),
                    )
                raise InputError(
                    "{name} and {parts_name} cannot be joined because they differ in: {titles}; "
                    "run one of them again",
                    part.name,
                    parts[0].name,
                    _TITLES.get(key, key),
                )


def in_turn(parts: Sequence[Iterable[Item]]) -> Iterator[Item]:
    """Interleave the parts, one item of each in turn, until one ends.

    Reads one more item from each of the others, so that a part that counts its rows can fail.
    """
    iterators = [iter(part) for part in parts]
    while True:
        for iterator in iterators:
            try:
                yield next(iterator)
            except StopIteration:
                for each in iterators:
                    next(each, None)
                return


class _Part:
    """A part, whose content must match its manifest."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path, self.rows = path, rows

    def mismatch(self, reason: str) -> InputError:
        return InputError(
            "{path} does not match its manifest: {reason}; run its shard again",
            *(self.path, reason),
        )

    @contextlib.contextmanager
    def checked(self, damage: str) -> Iterator[None]:
        """Convert errors of csv, gzip, pyarrow, NumPy and decoding to ``InputError``."""
        try:
            yield
        except InputError:
            raise
        except Exception as error:
            reason = in_short(" ".join(str(error).split()) or type(error).__name__)
            raise self.mismatch(Message("{damage!t} ({reason})", damage, reason)) from error

    def counted(self, rows: Iterable[Item]) -> Iterator[Item]:
        """Yield the rows, whose number must match the manifest."""
        iterator, count = iter(rows), 0
        for count in range(self.rows + 1):
            with self.checked(Message("row {row:,} is damaged", count + 1)):
                row = next(iterator, _END)
            if row is _END:
                break
            if count == self.rows:
                raise self.mismatch(
                    Message("it has more rows, but the manifest says {rows:,}", self.rows)
                )
            yield row
        if count != self.rows:
            raise self.mismatch(
                Message("it has {count:,} rows, but the manifest says {rows:,}", count, self.rows)
            )


def _join_texts(
    parts: Sequence[_Part], target: Path, ending: str, progress: Progress | None
) -> int:
    separator = SEPARATORS.get(ending.removesuffix(".gz"))
    count = 0
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(target.open("wb"))
        file: Any = raw
        if ending.endswith(".gz"):  # without name and time, like ResumableFile
            file = stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
        if separator is None:
            lines = in_turn([part.counted(_objects(part)) for part in parts])
        else:
            lines = _table_lines(parts, separator, stack)
            file.write(next(lines, "").encode())  # the header
        while block := list(islice(lines, _ROWS)):
            file.write("".join(block).encode())
            count += len(block)
            if progress is not None:
                progress(count)
    return count


def _objects(part: _Part) -> Iterator[str]:
    for number, line in open_text(part.path, internal=True):
        parse_object(line, Message("{path}, line {number:,}", part.path, number))
        yield f"{line}\n"


def _table_lines(
    parts: Sequence[_Part], separator: str, stack: contextlib.ExitStack
) -> Iterator[str]:
    """The header and the rows; a part may lack columns that the first part has."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    columns: list[str] | None = None
    rows = []
    for part in parts:
        unpacked: Any = gzip.open if part.path.name.lower().endswith(".gz") else open
        file = stack.enter_context(unpacked(part.path, "rt", encoding="utf-8", newline=""))
        reader = csv.reader(file, delimiter=separator, strict=True)
        with part.checked("its first line is damaged"):
            header = next(reader, [])  # empty if there are no rows
        if part.rows and (not all(header) or not header):
            raise part.mismatch("it has no header")
        if len({*header}) < len(header):
            raise part.mismatch("it has two columns with the same name")
        columns = header if columns is None else columns
        if others := [name for name in header if name not in columns]:
            raise part.mismatch(
                Message(
                    "{others} is not a column of the first part; if predictions differ in their "
                    "columns, write to .jsonl files",
                    in_short(others[0]),
                )
            )
        rows.append(part.counted(_rows(part, reader, header, columns)))
    if columns:
        yield joined(columns, separator)
    for row in in_turn(rows):
        yield joined(row, separator)


def _rows(
    part: _Part, reader: Iterator[list[str]], header: Sequence[str], columns: Sequence[str]
) -> Iterator[list[str]]:
    for number, row in enumerate(reader, start=1):
        if len(row) != len(header):
            raise part.mismatch(
                Message(
                    "row {number:,} has {count:,} fields, but the header has {count2:,}",
                    *(number, len(row), len(header)),
                )
            )
        cells = dict(zip(header, row, strict=True))
        yield [cells.get(name, "") for name in columns]


def _join_matrices(
    parts: Sequence[_Part], target: Path, ending: str, progress: Progress | None
) -> int:
    matrices = [_matrix(part) for part in parts]
    _refuse_other_sizes(parts, [matrix.shape[1] for matrix in matrices])
    size = matrices[0].shape[1]

    def blocks() -> Iterator[tuple[list[Any], np.ndarray]]:
        for start in range(0, len(matrices[0]), _ROWS):
            slices = [matrix[start : start + _ROWS] for matrix in matrices]
            block = np.empty((sum(map(len, slices)), size), np.float32)
            for number, vectors in enumerate(slices):
                if not np.isfinite(vectors).all():
                    raise parts[number].mismatch(_NOT_FINITE)
                block[number :: len(slices)] = vectors
            yield [None] * len(block), block

    return write_blocks(target, ending, blocks(), size, None, progress)


def _matrix(part: _Part) -> Any:
    """A part's matrix, memory-mapped."""
    with part.checked("it is not an .npy file"):
        matrix: Any = np.lib.format.open_memmap(part.path, mode="r")
    if matrix.ndim != 2 or matrix.dtype != np.dtype("<f4"):
        raise part.mismatch(
            Message(
                "it contains {dtype} in {ndim} dimensions, not a matrix of float32",
                *(matrix.dtype, matrix.ndim),
            )
        )
    if len(matrix) != part.rows:
        raise part.mismatch(
            Message("it has {count:,} rows, but the manifest says {rows:,}", len(matrix), part.rows)
        )
    if matrix.offset + matrix.nbytes != part.path.stat().st_size:
        raise part.mismatch("its size does not match its matrix")
    return matrix


def _refuse_other_sizes(parts: Sequence[_Part], sizes: Sequence[int]) -> None:
    """Raise ``InputError`` unless all vectors have the same size."""
    for part, size in zip(parts, sizes, strict=True):
        if size != sizes[0]:
            raise part.mismatch(
                Message(
                    "its vectors have {size:,} dimensions, but those of the first part have "
                    "{first:,}",
                    *(size, sizes[0]),
                )
            )


def _join_parquet(
    parts: Sequence[_Part], target: Path, ending: str, progress: Progress | None
) -> int:
    import pyarrow.parquet as pq

    names = []
    for part in parts:
        with part.checked("it is not a readable parquet file"):
            names += pq.read_schema(part.path).names
    if VECTOR not in names:
        return write_parquet(target, lambda: _predictions(parts, progress), target)
    layouts = []
    for part in parts:
        try:
            layouts.append(parquet_layout(part.path))
        except InputError as error:
            raise part.mismatch(str(error)) from error
        if layouts[-1][0] != layouts[0][0]:
            raise part.mismatch(
                Message("its columns differ from those of {name}", parts[0].path.name)
            )
    _refuse_other_sizes(parts, [size for _, size in layouts])
    id_column, size = layouts[0]
    rows = in_turn([part.counted(_vectors(part, id_column)) for part in parts])
    # In the same blocks as a run without shards.
    blocks = (
        ([record for record, _ in block], np.stack([vector for _, vector in block]))
        for block in in_blocks(rows, size=lambda row: len(row[0][1]))
    )
    return write_blocks(target, ending, blocks, size, id_column, progress)


def _predictions(parts: Sequence[_Part], progress: Progress | None) -> Iterator[list[Any]]:
    rows = in_turn([part.counted(_table_rows(part)) for part in parts])
    count = 0
    while block := list(islice(rows, _ROWS)):
        yield block
        count += len(block)
        if progress is not None:
            progress(count)


def _table_rows(part: _Part) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file; keys that a row does not have are missing, not null, where a
    column has only nulls."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(part.path) as file:
        for batch in file.iter_batches(batch_size=_ROWS):
            yield from batch.to_pylist()


def _vectors(part: _Part, id_column: str | None) -> Iterator[tuple[Record, np.ndarray]]:
    for record, vector in parquet_rows(part.path, id_column, _ROWS):
        if record[1] is None or not np.isfinite(vector).all():
            raise part.mismatch("a text is missing" if record[1] is None else _NOT_FINITE)
        yield record, vector
