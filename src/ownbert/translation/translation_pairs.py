"""Pairs of source and target texts: reading files, and training examples."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from ownbert.batches.example import Example
from ownbert.exceptions import InputError
from ownbert.files.text_files import open_text
from ownbert.language.messages import Message, Option
from ownbert.tables.column_proposals import warn_if_headless
from ownbert.tables.tables import columns, kind_of, read_records, require_column
from ownbert.text.tokenizer import Tokenizer
from ownbert.translation.translation_recipe import PairFiles

_ENCODED_AT_ONCE = 1000  # texts


@dataclass(frozen=True)
class Pairs:
    """Sources and their targets.

    Args:
        empty: number of skipped pairs with a blank side.
    """

    sources: list[str]
    targets: list[str]
    empty: int = 0

    def __len__(self) -> int:
        return len(self.sources)

    def subset(self, indices: Sequence[int]) -> "Pairs":
        return Pairs([self.sources[i] for i in indices], [self.targets[i] for i in indices])


def read_pairs(files: PairFiles, *, dev: bool = False) -> Pairs | None:
    """Read the training or dev pairs named in ``files``; None if there are none.

    Raises:
        InputError: two files have different lengths, one file is given without the other, or there
            are no pairs.
    """
    prefix, names = "dev_" if dev else "", ("source", "target", "pairs")
    source, target, table = (getattr(files, prefix + name) for name in names)
    options = {name: Option(prefix + name) for name in names}
    if table and (source or target):
        raise InputError(
            "{options} and {options2} are both given; give one", options["pairs"], options["source"]
        )
    if bool(source) != bool(target):
        missing = options["target"] if source else options["source"]
        raise InputError("{missing} is needed: the file with the corresponding lines", missing)
    if not source and not table:
        return None
    rows = _from_table(table, files) if table else _from_lines(source, target)
    kept = [pair for pair in rows if all(text.strip() for text in pair)]
    where = table or Message("{first} and {second}", source, target)
    if not kept:
        raise InputError("{where}: no pair has text on both sides", where)
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
            "{source} has {counts:,} lines and {target} {counts2:,}; line n of one file must "
            "correspond to line n of the other",
            source,
            counts[0],
            target,
            counts[1],
        )
    return rows


def _lines(path: str) -> Iterator[str]:
    if kind_of(path) != "txt":
        raise InputError("{path} is a table; give it as {--pairs}, with its two columns", path)
    return (text for _, text in open_text(path))


def _from_table(path: str, files: PairFiles) -> list[tuple[str, str]]:
    header = columns(path)
    names = [files.source_column, files.target_column]
    if names == [None, None] and len(header) == 2:
        names = header
        warn_if_headless(path, header)
    if None in names:
        known = ", ".join(header[:20])
        raise InputError(
            "{path} has the columns {options}; choose with {--source-column} and {--target-column}",
            path,
            known,
        )
    for name, side in zip(names, ("source", "target"), strict=True):
        require_column(header, str(name), source=path, option=f"--{side}-column")
    rows = read_records(path, [str(name) for name in names])
    return [(values[0], values[1]) for _, values in rows]


def hold_out(pairs: Pairs, share: float, seed: int) -> tuple[Pairs, Pairs]:
    """Training pairs and a random ``share`` of dev pairs.

    Raises:
        InputError: there are fewer than two pairs.
    """
    if len(pairs) < 2:
        raise InputError("there is only one pair; two or more are needed to hold one out")
    order = np.random.default_rng((seed, 77)).permutation(len(pairs)).tolist()
    count = min(len(pairs) - 1, max(1, round(share * len(pairs))))
    return pairs.subset(sorted(order[count:])), pairs.subset(sorted(order[:count]))


class PairData:
    """Pairs as examples.

    The decoder's input starts with [CLS], and it predicts each next token up to [SEP]; the
    encoder's input is the source between [CLS] and [SEP].

    Attributes:
        long: number of skipped pairs with more than ``max_length`` tokens on a side.

    Raises:
        InputError: no pairs are left.
    """

    def __init__(
        self, pairs: Pairs, source: Tokenizer, target: Tokenizer, *, max_length: int
    ) -> None:
        source_ids, target_ids = _encode(pairs.sources, source), _encode(pairs.targets, target)
        kept = [
            i
            for i, sides in enumerate(zip(source_ids, target_ids, strict=True))
            if max(map(len, sides)) <= max_length - 2
        ]
        if not kept:
            raise InputError(
                "all {count:,} pairs have more than {max_length} tokens on a side; give a "
                "larger {--max-length}",
                len(pairs),
                max_length,
            )
        self.long = len(pairs) - len(kept)
        self.sources = [_with_specials(source_ids[i], source) for i in kept]
        self.targets = [_with_specials(target_ids[i], target) for i in kept]
        sides = zip(self.sources, self.targets, strict=True)
        self.sizes = np.array([len(source) + len(target) - 1 for source, target in sides])

    def __len__(self) -> int:
        return len(self.sizes)

    def example(self, epoch: int, index: int) -> Example:
        source, target = self.sources[index], self.targets[index]
        inputs = target[:-1]
        return Example(
            inputs,
            np.zeros_like(inputs),
            tags=target[1:],
            source=Example(source, np.zeros_like(source)),
        )

    def identity(self) -> str:
        """The number of pairs and a hash of their ids."""
        digest = hashlib.sha256()
        for rows in (self.sources, self.targets):
            for row in rows:
                digest.update(row.tobytes() + b"|")
        return f"{len(self):,} pairs ({digest.hexdigest()[:12]})"


def _encode(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    rows: list[list[int]] = []
    for start in range(0, len(texts), _ENCODED_AT_ONCE):
        rows += tokenizer.encode_batch(texts[start : start + _ENCODED_AT_ONCE])
    return rows


def _with_specials(ids: Sequence[int], tokenizer: Tokenizer) -> np.ndarray:
    return np.array([*tokenizer.start_ids, *ids, tokenizer.sep_id], dtype=np.int32)


def encode_sources(texts: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """The ids of each text as encoder input, between [CLS] (not in T5) and [SEP]."""
    return [_with_specials(ids, tokenizer) for ids in _encode(texts, tokenizer)]
