"""Which rows belong together, because they share a text or a group. N: rows."""

import hashlib
import re
import unicodedata
from collections.abc import Hashable, Sequence
from functools import cache

import numpy as np

from ownbert.tasks.rows import Row
from ownbert.views.tokens import marks

# Longer texts are compared by hashes, which take less memory.
_LONGEST = 64
# Categories of characters that separate words: punctuation, symbols, spaces, controls.
_SEPARATORS = ("P", "S", "Z", "Cc", "Cf")


class _Words(dict[int, int]):
    """A translation table that replaces characters between words by spaces."""

    def __missing__(self, code: int) -> int:
        separates = unicodedata.category(chr(code)).startswith(_SEPARATORS)
        self[code] = ord(" ") if separates else code
        return self[code]


_WORDS = _Words()


@cache
def _stray_marks() -> re.Pattern[str]:
    return re.compile(rf"(?:^| )[{marks()}]+")


def normalised(text: str) -> str:
    """Lower-case, compose, and remove width variants, punctuation and repeated spaces; a text that
    consists of punctuation keeps it."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = folded.translate(_WORDS)
    if not words.isascii():
        words = _stray_marks().sub(" ", words)
        words = unicodedata.normalize("NFC", words)  # folding can decompose letters
    words = words.strip(" ")
    if "  " in words:
        words = " ".join(words.split())
    return words or " ".join(folded.split())


def text_key(text: str) -> str | bytes:
    """A key that is equal for texts that differ only in spaces, case, punctuation and the encoding
    of characters: two copies of one text. Empty for a blank text.

    Rows that share a key are kept on the same side of a split, so that answers cannot be memorised.
    """
    key = normalised(text)
    if len(key) <= _LONGEST:
        return key
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def row_key(row: Row) -> tuple[str | bytes, ...]:
    """The keys of all texts of a row: equal for copies of a row."""
    return tuple(map(text_key, row.texts))


def clusters_of(keys: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Number the clusters of rows that are connected by shared keys, directly or through others.

    Args:
        keys: keys of each row, see ``Task.fold_keys``.

    Returns:
        int (N): the cluster of each row, numbered from 0 in the order of their first rows.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph that connects each row to the first row with one of its keys.
    first: dict[Hashable, int] = {}
    pairs = [(i, first.setdefault(key, i)) for i, own in enumerate(keys) for key in own]
    # Older versions of scipy connect everything if the numbers have 64 bits.
    rows, firsts = np.asarray(pairs, dtype=np.int32).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, firsts)), shape=(len(keys),) * 2)
    _, components = connected_components(graph, directed=False)
    _, starts, clusters = np.unique(components, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(starts))[clusters.reshape(-1)]
