"""Shards: several processes each predict a share of one input and write a part of the output.

Rows are distributed round-robin: of 16 shards the third has rows 3, 19, 35, ... So all shards have
the same number of rows whatever the order of the input, and rows need not be counted first. A part
is written beside the output (``out.3-of-16.jsonl`` for ``out.jsonl``) with a manifest of its origin
(``out.3-of-16.jsonl.manifest.json``), which ``ownbert.inference.merge`` checks.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ownbert import limits
from ownbert.exceptions import InputError, in_short
from ownbert.files.folders import refuse_foreign
from ownbert.files.input_files import sha256_of
from ownbert.files.json_files import read_json, write_json

Item = TypeVar("Item")
FORMAT = 1
_NOTATION = re.compile(r"(\d{1,9})/(\d{1,9})")


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` of ``count``, counted from 1.

    Raises:
        InputError: ``number`` is not between 1 and ``count``.
    """

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
    """Parse a shard given as "3/16" or (3, 16); None means all rows.

    Raises:
        InputError: the value is not a shard.
    """
    if given is None or isinstance(given, Shard):
        return given
    if isinstance(given, str) and (match := _NOTATION.fullmatch(given.strip())):
        return Shard(int(match[1]), int(match[2]))
    if isinstance(given, tuple | list) and [type(each) for each in given] == [int, int]:
        return Shard(*given)
    raise InputError(
        "shard is {value}; give its number and the number of shards, such as 3/16", in_short(given)
    )


def part_of(output: str | Path | None, shard: Any) -> tuple[Path | None, "DealtRows | None"]:
    """The file that a shard of an output writes, and its rows; without a shard the output itself,
    if any, and None for all rows. ``shard`` is a value that ``as_shard`` accepts.

    Raises:
        InputError: there is no such shard, or no output, or its manifest is a file of another kind.
    """
    if output is None and shard is not None:
        raise InputError("a shard writes one part of the output; name the file with output")
    own = as_shard(shard)
    if output is None or own is None:
        return None if output is None else Path(output), None
    output = own.path(output)
    refuse_foreign(output.parent, [manifest_path(output).name], signs=())
    return output, DealtRows(own)


def split_ending(path: Path) -> tuple[str, str]:
    """The name of a file without its extension, and the extension including .gz."""
    packed = path.name[-3:] if path.name.lower().endswith(".gz") else ""
    plain = Path(path.name[: len(path.name) - len(packed)])
    return plain.stem, plain.suffix + packed


class DealtRows:
    """Selects the rows of a shard from all rows of an input.

    Attributes:
        total: number of input rows so far.
        taken: number of rows of the shard so far.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.total = self.taken = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def take(self, rows: Iterable[Item], content: Callable[[Item], Any]) -> Iterator[Item]:
        """Yield the rows of the shard.

        Args:
            rows: all rows, which are read to the end.
            content: returns the content of a row for its checksum, as a JSON value.
        """
        for row in rows:
            line = json.dumps(content(row), ensure_ascii=False, default=str) + "\n"
            self._digest.update(line.encode("utf-8", "surrogatepass"))
            mine = self.total % self.shard.count == self.shard.number - 1
            self.total += 1
            if mine:
                self.taken += 1
                yield row

    def write_manifest(self, part: Path, made_for: Mapping[str, Any]) -> None:
        """Write the manifest of a finished part, after all rows were taken.

        Args:
            part: file of the part.
            made_for: everything else that the rows depend on, the same for all shards.
        """
        manifest = {
            "format": FORMAT,
            "shard": self.shard.number,
            "shards": self.shard.count,
            "rows": self.taken,
            "input_rows": self.total,
            "input_digest": self._digest.hexdigest(),
            "bytes": part.stat().st_size,
            "sha256": sha256_of(part),
            **made_for,
        }
        try:
            write_json(manifest_path(part), manifest)
        except BaseException:
            part.unlink()  # without a manifest it cannot be merged
            raise


def manifest_path(part: Path) -> Path:
    """The path of a part's manifest."""
    return part.with_name(f"{part.name}.manifest.json")


def read_manifest(part: Path) -> dict[str, Any]:
    """Read the manifest of a part.

    Raises:
        InputError: the manifest cannot be read.
    """
    path = manifest_path(part)
    manifest = read_json(path)
    required = {"shard": int, "shards": int, "rows": int, "input_rows": int, "sha256": str}
    fits = all(type(manifest.get(name)) is kind for name, kind in required.items())
    if not fits or min(manifest[name] for name, kind in required.items() if kind is int) < 0:
        raise InputError("{path} is not the manifest of a part; run its shard again", path)
    return manifest
