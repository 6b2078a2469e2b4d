"""Finds exact duplicates of documents by 128-bit hashes in a table.

The table takes 16 bytes per slot and is at most three quarters full: 21 to 43 bytes per distinct
document, temporarily 50% more while it grows.
"""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

_SMALLEST = 1 << 12  # initial size of the hash table
_MAX_LOAD = 0.75  # share of the table above which it grows
# Characters hashed at a time, to avoid a second copy of a huge document.
_SLICE = 1 << 20


def digest(pieces: Sequence[str]) -> tuple[bytes, int]:
    """The hash of a document (16 bytes), and its UTF-8 length in bytes."""
    if len(pieces) == 1 and len(pieces[0]) <= _SLICE:
        data = pieces[0].encode("utf-8")
        return hashlib.blake2b(data, digest_size=16).digest(), len(data)
    running, size = hashlib.blake2b(digest_size=16), 0
    for number, piece in enumerate(pieces):
        if number:
            running.update(b"\n")
        for start in range(0, len(piece), _SLICE):
            data = piece[start : start + _SLICE].encode("utf-8")
            running.update(data)
            size += len(data)
    return running.digest(), size


class DuplicateFilter:
    """The hashes of all documents so far, in a hash table with open addressing."""

    def __init__(self) -> None:
        self.table = np.zeros((_SMALLEST, 2), dtype=np.uint64)
        self.count = 0

    def add(self, digests: Iterable[bytes]) -> np.ndarray:
        """Add the hashes of documents.

        Returns:
            bool (documents): whether each hash is new, that is, neither added before nor
            earlier in the same call.
        """
        keys = np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64).reshape(-1, 2)
        keys[:, 1] |= np.uint64(1)  # zeros mark an empty slot
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: keeps the first of equal hashes
        ordered = keys[order]
        new = np.ones(len(keys), dtype=bool)
        new[order[1:][(ordered[1:] == ordered[:-1]).all(axis=1)]] = False
        first = np.flatnonzero(new)
        self._make_room(len(first))
        fresh = self._insert(keys[first])
        self.count += int(fresh.sum())
        new[first] = fresh
        return new

    def _make_room(self, more: int) -> None:
        size = len(self.table)
        while self.count + more > _MAX_LOAD * size:
            size *= 2
        if size > len(self.table):
            old, self.table = self.table, np.zeros((size, 2), dtype=np.uint64)
            # In slices, because temporary arrays of an insertion are several times as large as its
            # keys.
            for start in range(0, len(old), 1 << 16):
                part = old[start : start + (1 << 16)]
                self._insert(part[part[:, 1] != 0])

    def _insert(self, keys: np.ndarray) -> np.ndarray:
        """Insert distinct keys (keys, 2); return whether each is new."""
        mask = np.uint64(len(self.table) - 1)
        slots = (keys[:, 0] & mask).astype(np.int64)
        fresh = np.ones(len(keys), dtype=bool)
        left = np.arange(len(keys))
        while len(left):
            occupants, inserted = self.table[slots[left]], keys[left]
            known = (occupants == inserted).all(axis=1)
            fresh[left[known]] = False
            empty = occupants[:, 1] == 0
            claims = left[empty]
            self.table[slots[claims]] = keys[claims]
            # If two keys claim a slot the last one wins, and the other one probes further.
            lost = (self.table[slots[claims]] != keys[claims]).any(axis=1)
            left = np.concatenate([left[~known & ~empty], claims[lost]])
            slots[left] = (slots[left] + 1) & int(mask)
        return fresh
