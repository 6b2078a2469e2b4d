"""Pairs of texts out of files, and as examples. T tokens of a target, S of a source."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from ownbert.data.batch import Example
from ownbert.data.readers.tables import columns, kind_of, read_records, require_column
from ownbert.errors import InputError
from ownbert.files import open_text
from ownbert.text.tokenizer import Tokenizer
from ownbert.translate.recipe import PairFiles

_ENCODED_AT_ONCE = 1000


@dataclass(frozen=True)
class Pairs:
    """Texts that belong together; empty: how many were left out as a side of them was blank."""

    sources: list[str]
    targets: list[str]
    empty: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def part(self, numbers: Sequence[int]) -> "Pairs":
        return Pairs([self.sources[i] for i in numbers], [self.targets[i] for i in numbers])


def read_pairs(files: PairFiles, *, dev: bool = False) -> Pairs | None:
    """The training or the dev pairs that ``files`` names; None if it names none.

    Raises ``InputError`` for files of different lengths, half a pair of files, and no pairs at all.
    """
    mark = "dev_" if dev else ""
    source, target, table = (getattr(files, mark + name) for name in ("source", "target", "pairs"))
    options = {name: f"--{mark.replace('_', '-')}{name}" for name in ("source", "target", "pairs")}
    if table and (source or target):
        raise InputError(f"{options['pairs']} and {options['source']} are both given; give one")
    if bool(source) != bool(target):
        lost = options["target"] if source else options["source"]
        raise InputError(f"{lost} is needed: the file whose lines belong to those of the other")
    if not source and not table:
        return None
    rows = _from_table(table, files) if table else _from_lines(source, target)
    kept = [(one, two) for one, two in rows if one.strip() and two.strip()]
    where = table or f"{source} and {target}"
    if not kept:
        raise InputError(f"{where}: no pair has text on both sides")
    sources, targets = (list(side) for side in zip(*kept, strict=True))
    return Pairs(sources, targets, empty=len(rows) - len(kept))


def _from_lines(source: str, target: str) -> list[tuple[str, str]]:
    rows = []
    counts = [0, 0]
    for pair in zip_longest(*(_lines(path) for path in (source, target))):
        for side, text in enumerate(pair):
            counts[side] += text is not None
        rows.append((pair[0] or "", pair[1] or ""))
    if counts[0] != counts[1]:
        raise InputError(
            f"{source} has {counts[0]:,} lines and {target} {counts[1]:,}; line n of the one must "
            "belong to line n of the other"
        )
    return rows


def _lines(path: str):
    if kind_of(path) != "txt":
        raise InputError(f"{path} is a table; give it as --pairs, with its two columns")
    return (text for _, text in open_text(path))


def _from_table(path: str, files: PairFiles) -> list[tuple[str, str]]:
    there = columns(path)
    names = [files.source_column, files.target_column]
    if names == [None, None] and len(there) == 2:
        names = there
    if None in names:
        known = ", ".join(there[:20])
        raise InputError(
            f"{path} has the columns {known}; say which with --source-column and --target-column"
        )
    for name, side in zip(names, ("source", "target"), strict=True):
        require_column(there, str(name), source=path, option=f"--{side}-column")
    rows = read_records(path, [str(name) for name in names])
    return [(values[0], values[1]) for _, values in rows]


def held_out(pairs: Pairs, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """Pairs to learn from and pairs to be examined by. ``InputError`` for fewer than two."""
    if len(pairs) < 2:
        raise InputError("there is one pair only; two or more are needed to hold one out")
    order = np.random.default_rng((seed, 77)).permutation(len(pairs)).tolist()
    count = min(len(pairs) - 1, max(1, round(share * len(pairs))))
    return pairs.part(sorted(order[count:])), pairs.part(sorted(order[:count]))


class PairData:
    """Pairs as examples: the target behind its start learns each next token, up to the end; the
    source stands between both.

    long: how many pairs of more than ``max_length`` tokens on a side were left out.
    """

    def __init__(
        self, pairs: Pairs, source: Tokenizer, target: Tokenizer, *, max_length: int
    ) -> None:
        told, asked = _encoded(pairs.sources, source), _encoded(pairs.targets, target)
        kept = [
            i
            for i, both in enumerate(zip(told, asked, strict=True))
            if max(map(len, both)) <= max_length - 2
        ]
        if not kept:
            raise InputError(
                f"all {len(pairs):,} pairs have more than {max_length} tokens on a side; give a "
                "larger --max-length"
            )
        self.long = len(pairs) - len(kept)
        self.pairs = pairs if not self.long else pairs.part(kept)
        self.sources = [_framed(told[i], source) for i in kept]
        self.targets = [_framed(asked[i], target) for i in kept]
        both = zip(self.sources, self.targets, strict=True)
        self.sizes = np.array([len(one) + len(two) - 1 for one, two in both])

    def __len__(self) -> int:
        return len(self.sizes)

    def example(self, epoch: int, index: int) -> Example:
        source, target = self.sources[index], self.targets[index]
        given = target[:-1]
        return Example(
            given,
            np.zeros_like(given),
            tags=target[1:],
            source=Example(source, np.zeros_like(source)),
        )

    def identity(self) -> str:
        """How many, and a hash of their ids."""
        digest = hashlib.sha256()
        for rows in (self.sources, self.targets):
            for row in rows:
                digest.update(row.tobytes() + b"|")
        return f"{len(self):,} pairs ({digest.hexdigest()[:12]})"


def _encoded(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    found: list[list[int]] = []
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        found += tokenizer.encode_batch(texts[start : start + _ENCODED_AT_ONCE])
    return found


def _framed(ids: Sequence[int], tokenizer: Tokenizer) -> np.ndarray:
    return np.array([tokenizer.cls_id, *ids, tokenizer.sep_id], dtype=np.int32)


def sources_of(texts: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Texts as a model reads them."""
    return [_framed(ids, tokenizer) for ids in _encoded(texts, tokenizer)]
