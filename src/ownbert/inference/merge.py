"""The parts that shards wrote, joined in the order of the input's rows."""

import contextlib
import csv
import gzip
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from ownbert import limits
from ownbert.data.readers.delimited import LONGEST_FIELD
from ownbert.errors import InputError
from ownbert.files import atomic_path, open_text, refuse_same, refuse_unwritable
from ownbert.inference.embedder import in_blocks
from ownbert.inference.prediction_writer import SEPARATORS, joined
from ownbert.inference.shards import (
    Shard,
    manifest_path,
    read_manifest,
    sha256_of,
    split_ending,
)
from ownbert.inference.vector_files import parquet_layout, parquet_rows, write_blocks

Item = TypeVar("Item")
Progress = Callable[[int], None]

# What parts must have in common, and how a message names it.
_COMMON = {
    "model": "model",
    "input_digest": "input",
    "input_rows": "input",
    "columns": "columns",
    "precision": "precision",
    "options": "options",
}
# Keys of a manifest that are the part's own.
_OWN = ("shard", "rows", "bytes", "sha256")
# Missing parts that a message names.
_NAMED = 5
# Rows of each matrix that are in memory at a time.
_ROWS = 1024


def merge(
    output: str | Path, *, parts: str | Path | None = None, progress: Progress | None = None
) -> int:
    """Join the parts that ``predict`` or ``embed`` wrote with ``shard``, in the order of the rows.

    ``output`` has the rows of one run without shards, in the same order and format. Scores and
    vectors may differ from those of such a run by what float32 rounds, because a text is in another
    batch there.

    Args:
        output: the file that the shards were told to write; it appears complete or not at all.
        parts: the folder of the parts; by default that of ``output``.
        progress: called with the number of rows so far.

    Returns:
        The number of rows.

    Raises:
        InputError: a part is missing, unfinished or damaged, or the parts are of several models or
            inputs.
    """
    output = Path(output)
    refuse_unwritable(output)
    found = find_parts(output, output.parent if parts is None else Path(parts))
    manifests = [read_manifest(part) for part in found]
    _refuse_others(found, manifests)
    refuse_same(found, output)
    for part, manifest in zip(found, manifests, strict=True):
        if sha256_of(part) != manifest["sha256"]:
            raise InputError(
                f"{part} is not as it was written; it is damaged or cut short, copy it or run its "
                "shard again"
            )
    _allow_open_files(len(found))
    ending = split_ending(output)[1].lower()
    join = {".npy": _join_matrices, ".parquet": _join_parquet}.get(ending, _join_texts)
    shown = progress or (lambda count: None)
    with atomic_path(output) as temporary:
        count = join(found, temporary, ending, shown)
        if count != manifests[0]["input_rows"]:
            raise InputError(
                f"the parts of {output} have {count:,} rows, and the input "
                f"{manifests[0]['input_rows']:,}; run the shards again"
            )
    return count


def find_parts(output: Path, folder: Path) -> list[Path]:
    """The parts of a file, all of them, in the order of their numbers.

    Raises:
        InputError: there are none, one is missing or unfinished, or there are parts of several
            numbers of shards.
    """
    if not folder.is_dir():
        raise InputError(f"no such folder: {folder}")
    ready, unfinished = _parts_in(folder, *split_ending(output))
    counts = sorted({count for _, count in (*ready, *unfinished)})
    if not counts:
        raise InputError(
            f"no part of {output.name} is in {folder}; predict and embed write them with --shard, "
            f"as {Shard(1, 2).path(output).name}"
        )
    if len(counts) > 1:
        raise InputError(
            f"{folder} has parts of {output.name} for {counts[0]:,} and for {counts[1]:,} shards; "
            "remove those that are not wanted"
        )
    whole = [(number, counts[0]) for number in range(1, counts[0] + 1)]
    if missing := [each for each in whole if each not in ready or each in unfinished]:
        shown = ", ".join(f"{number}/{count}" for number, count in missing[:_NAMED])
        more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
        if unfinished.issuperset(missing):
            raise InputError(
                f"{output}: the shards {shown}{more} are unfinished; run them again, with --resume "
                "where there is one"
            )
        raise InputError(f"{output}: the shards {shown}{more} are missing; run them with --shard")
    return [ready[each] for each in whole]


def _parts_in(
    folder: Path, name: str, ending: str
) -> tuple[dict[tuple[int, int], Path], set[tuple[int, int]]]:
    """The finished parts, and the numbers of unfinished ones, by number and count."""
    own = rf"{re.escape(name)}\.(\d{{1,9}})-of-(\d{{1,9}}){re.escape(ending)}"
    ready: dict[tuple[int, int], Path] = {}
    unfinished: set[tuple[int, int]] = set()
    for path in folder.iterdir():
        finished = re.fullmatch(own, path.name)
        match = finished or re.fullmatch(rf"\.{own}\.part", path.name)
        if not match:
            continue
        which = int(match[1]), int(match[2])
        if not 1 <= which[0] <= which[1] <= limits.SHARDS:
            continue
        if not finished:
            unfinished.add(which)
        elif manifest_path(path).is_file():
            ready[which] = path
    return ready, unfinished


def _refuse_others(parts: Sequence[Path], manifests: Sequence[dict[str, Any]]) -> None:
    """Check that all parts are of one run."""
    first = manifests[0]
    for number, (part, manifest) in enumerate(zip(parts, manifests, strict=True), start=1):
        own = Shard(number, len(parts))
        expected = (number, len(parts), own.share(manifest["input_rows"]))
        if (manifest["shard"], manifest["shards"], manifest["rows"]) != expected:
            raise InputError(
                f"{manifest_path(part)} is not the manifest of this part; run its shard again"
            )
        keys = [*_COMMON, *(k for k in {**first, **manifest} if k not in (*_COMMON, *_OWN))]
        for key in keys:
            if manifest.get(key) != first.get(key):
                if key == "precision" and isinstance(first.get(key), str):
                    raise InputError(
                        f"{part.name} and {parts[0].name} cannot be joined, they differ in: "
                        f"precision; run the first again with --precision {first[key]}"
                    )
                what = _COMMON.get(key, key)
                raise InputError(
                    f"{part.name} and {parts[0].name} cannot be joined, they differ in: {what}; "
                    "run one of them again"
                )


def _allow_open_files(count: int) -> None:
    """Let this process open so many files more; the usual limit is 1,024."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = count + 256
        if soft < wanted:
            limit = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (ImportError, OSError, ValueError):
        pass  # opening says what is wrong


def in_turn(parts: Sequence[Iterable[Item]]) -> Iterator[Item]:
    """An item of each part, then the next of each, until they end, in the order of the parts."""
    iterators = [iter(part) for part in parts]
    while True:
        for iterator in iterators:
            try:
                yield next(iterator)
            except StopIteration:
                return


def _join_texts(parts: Sequence[Path], target: Path, ending: str, progress: Progress) -> int:
    separator = SEPARATORS.get(ending.removesuffix(".gz"))
    count = 0
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(target.open("wb"))
        file: Any = raw
        if ending.endswith(".gz"):  # without name and time, as ResumableFile writes it
            file = stack.enter_context(gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0))
        if separator is None:
            texts = (open_text(part, internal=True) for part in parts)
            lines = in_turn([(f"{line}\n" for _, line in text) for text in texts])
        else:
            tables = [stack.enter_context(_open(part)) for part in parts]
            lines = _table_lines(tables, separator)
            file.write(next(lines, "").encode())  # the header
        while some := list(islice(lines, _ROWS)):
            file.write("".join(some).encode())
            progress(count := count + len(some))
    return count


def _open(part: Path) -> IO[str]:
    if part.name.lower().endswith(".gz"):
        return gzip.open(part, "rt", encoding="utf-8", newline="")
    return part.open(encoding="utf-8", newline="")


def _table_lines(tables: Sequence[IO[str]], separator: str) -> Iterator[str]:
    """The header and the rows; a part may lack columns that the first one has."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_FIELD))
    readers = [csv.reader(table, delimiter=separator) for table in tables]
    headers = [next(reader, None) for reader in readers]
    columns = headers[0]
    if columns is None:
        return
    yield joined(columns, separator)
    rows = []
    for reader, header in zip(readers, headers, strict=True):
        if others := [name for name in header or () if name not in columns]:
            raise InputError(f"{others[0]!r} is no column of the first part; write to .jsonl files")
        rows.append(_rows(reader, header or [], columns))
    for row in in_turn(rows):
        yield joined(row, separator)


def _rows(
    reader: Iterator[list[str]], header: Sequence[str], columns: Sequence[str]
) -> Iterator[list[str]]:
    for row in reader:
        if list(header) == list(columns):
            yield row
        else:
            cells = dict(zip(header, row, strict=True))
            yield [cells.get(name, "") for name in columns]


def _join_matrices(parts: Sequence[Path], target: Path, ending: str, progress: Progress) -> int:
    matrices = [np.load(part, mmap_mode="r") for part in parts]
    size = matrices[0].shape[1]

    def blocks() -> Iterator[tuple[list[Any], np.ndarray]]:
        for start in range(0, len(matrices[0]), _ROWS):
            some = [matrix[start : start + _ROWS] for matrix in matrices]
            block = np.empty((sum(map(len, some)), size), np.float32)
            for number, own in enumerate(some):
                block[number :: len(some)] = own
            yield [None] * len(block), block

    return write_blocks(target, ending, blocks(), size, None, progress)


def _join_parquet(parts: Sequence[Path], target: Path, ending: str, progress: Progress) -> int:
    id_column, size = parquet_layout(parts[0])
    rows = in_turn([parquet_rows(part, id_column, _ROWS) for part in parts])
    # As one run without shards writes them.
    blocks = (
        ([record for record, _ in block], np.stack([vector for _, vector in block]))
        for block in in_blocks(rows, size=lambda row: len(row[0][1]))
    )
    return write_blocks(target, ending, blocks, size, id_column, progress)
