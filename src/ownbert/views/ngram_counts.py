"""Sparse counts of word and character n-grams. N texts, F features."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ownbert.corpus.sparse import Matrix, sparse
from ownbert.time_limit import check_time

# With more words the key of a trigram would exceed 64 bits.
MOST_WORDS = 1_000_000


class WordNgrams:
    """Counts n-grams of known words. An n-gram is encoded as a single integer, so that counting is
    sorting.

    Attributes:
        words: index of each word.
        keys: for each order from 1, the sorted keys of the counted n-grams. The columns of the
            counts are the n-grams of all orders, concatenated.
    """

    def __init__(self, words: Mapping[str, int], keys: Sequence[np.ndarray]) -> None:
        self.words, self.keys = words, list(keys)
        self.size = sum(map(len, self.keys))

    @classmethod
    def fit(cls, texts: Iterable[Sequence[str]], *, order: int, most: int) -> "WordNgrams":
        """Select the n-grams of up to ``order`` words in tokenised texts; for each order the
        ``most`` that occur in the most texts."""
        words: dict[str, int] = {}
        word_ids = [[words.setdefault(token, len(words)) for token in text] for text in texts]
        if len(words) > MOST_WORDS:
            words = dict(list(words.items())[:MOST_WORDS])
            word_ids = [[i if i < MOST_WORDS else -1 for i in text] for text in word_ids]
        ids, document = _joined(word_ids)
        keys = []
        for n in range(1, order + 1):
            check_time()
            numbers, of_text = ngram_numbers(ids, document, n, len(words))
            distinct, texts_with = texts_with_each(numbers, of_text, len(word_ids))
            if len(distinct) > most:
                distinct = distinct[np.argsort(-texts_with, kind="stable")[:most]]
            keys.append(np.sort(distinct))
        return cls(words, keys)

    def counts(self, texts: Iterable[Sequence[str]]) -> Matrix:
        """Count the n-grams in tokenised texts: (N, F)."""
        known = self.words
        word_ids = [[known.get(token, -1) for token in text] for text in texts]
        ids, document = _joined(word_ids)
        rows, columns, start = [], [], 0
        for n, keys in enumerate(self.keys, start=1):
            check_time()
            numbers, of_text = ngram_numbers(ids, document, n, len(known))
            right, place = find_keys(keys, numbers)
            rows.append(of_text[right])
            columns.append(place + start)
            start += len(keys)
        return _sum(rows, columns, (len(word_ids), self.size))

    def occurrences(self, text: Sequence[str]) -> Iterator[tuple[int, int, int]]:
        """Yield (first word, number of words, column) of each known n-gram in a tokenised text."""
        ids, start = [self.words.get(token, -1) for token in text], 0
        for n, keys in enumerate(self.keys, start=1):
            for first in range(len(ids) - n + 1):
                number = 0
                for word in ids[first : first + n]:
                    number = number * len(self.words) + word
                place = int(np.searchsorted(keys, number))
                known = min(ids[first : first + n]) >= 0
                if known and place < len(keys) and keys[place] == number:
                    yield first, n, start + place
            start += len(keys)

    def keep(self, columns: np.ndarray) -> "WordNgrams":
        """Keep only the given sorted columns, and drop words without n-grams."""
        keys, start = [], 0
        for order_keys in self.keys:
            inside = columns[(columns >= start) & (columns < start + len(order_keys))] - start
            keys.append(order_keys[inside])
            start += len(order_keys)
        total = len(self.words)
        used = np.zeros(total, dtype=bool)
        for n, order_keys in enumerate(keys, start=1):
            for _ in range(n):
                used[order_keys % total] = True
                order_keys = order_keys // total
        number = np.cumsum(used) - 1
        words = {word: int(number[i]) for word, i in self.words.items() if used[i]}
        renumbered = []
        for n, order_keys in enumerate(keys, start=1):
            powers = [order_keys // total**k % total for k in reversed(range(n))]
            new = np.zeros_like(order_keys)
            for ids in powers:
                new = new * len(words) + number[ids]
            renumbered.append(new)  # the order of words is preserved, so keys stay sorted
        return WordNgrams(words, renumbered)

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays for ``from_arrays``, to be stored as safetensors."""
        text = "\0".join(self.words).encode()
        keys = {f"ngrams.{n}": order_keys for n, order_keys in enumerate(self.keys, start=1)}
        return {"words": np.frombuffer(text, dtype=np.uint8).copy(), **keys}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "WordNgrams":
        """Restore an instance from ``arrays``."""
        text = arrays["words"].tobytes().decode()
        words = {word: i for i, word in enumerate(text.split("\0"))} if text else {}
        orders = sum(name.startswith("ngrams.") for name in arrays)
        keys = [arrays[f"ngrams.{n}"] for n in range(1, orders + 1)]
        if any(order_keys.ndim != 1 or order_keys.dtype != np.int64 for order_keys in keys):
            raise ValueError("the n-grams are not lists of whole numbers")
        return cls(words, keys)


def character_ngrams(
    texts: Sequence[str], orders: Sequence[int], buckets: int, *, across: bool = False
) -> Matrix:
    """(N, buckets) counts of hashed character n-grams of some lengths (``orders``) within words
    padded by spaces, or ``across`` words. ``buckets`` is a power of two; n-grams with equal hashes
    share a column."""
    words = (" ".join(text.lower().split()) for text in texts)
    padded = [f" {text} " if text else "" for text in words]
    document = np.repeat(np.arange(len(padded)), [len(text) for text in padded])
    rows, columns = [], []
    given = "".join(padded), document, orders, buckets, across
    for _, starts, order_columns in _character_columns(*given):
        rows.append(document[starts])
        columns.append(order_columns)
    return _sum(rows, columns, (len(padded), buckets))


def character_occurrences(
    padded: str, orders: Sequence[int], buckets: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (start, length, column) of each character n-gram, hashed as in ``character_ngrams``, in
    a lower-cased text with single spaces between words and at both ends."""
    document = np.zeros(len(padded), dtype=np.int64)
    for n, starts, columns in _character_columns(padded, document, orders, buckets):
        yield from zip(starts.tolist(), [n] * len(starts), columns.tolist(), strict=True)


def _character_columns(
    padded: str, document: np.ndarray, orders: Sequence[int], buckets: int, across: bool = False
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Yield each order with the starts of its n-grams and their columns."""
    joined = padded.encode("utf-32-le", errors="surrogatepass")
    codes = np.frombuffer(joined, dtype=np.uint32).astype(np.uint64)
    blank = codes == 32
    for n in orders:
        check_time()
        if len(codes) < n:
            continue
        values = np.zeros(len(codes) - n + 1, dtype=np.uint64)
        inner = np.zeros(len(values), dtype=bool)  # a space inside, or at both ends
        for k in range(n):
            window = slice(k, k + len(values))
            values = values * np.uint64(0x9E3779B97F4A7C15) + codes[window] + np.uint64(1)
            if 0 < k < n - 1 and not across:
                inner |= blank[window]
        last = slice(n - 1, n - 1 + len(values))
        starts = np.flatnonzero(~inner & (document[: len(values)] == document[last]))
        values ^= values >> np.uint64(29)
        values *= np.uint64(0xBF58476D1CE4E5B9)
        values ^= values >> np.uint64(32)
        yield n, starts, (values[starts] & np.uint64(buckets - 1)).astype(np.int64)


def _joined(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """All ids concatenated, and the text index of each."""
    sizes = [len(text) for text in texts]
    ids = np.fromiter((i for text in texts for i in text), dtype=np.int64, count=sum(sizes))
    return ids, np.repeat(np.arange(len(texts)), sizes)


def ngram_numbers(
    ids: np.ndarray, document: np.ndarray, n: int, words: int
) -> tuple[np.ndarray, np.ndarray]:
    """The keys of n-grams of known words within one text, and their text indices."""
    length = max(0, len(ids) - n + 1)
    numbers = np.zeros(length, dtype=np.int64)
    right = np.ones(length, dtype=bool)
    for k in range(n):
        window = slice(k, k + length)
        numbers = numbers * words + ids[window]
        right &= (ids[window] >= 0) & (document[window] == document[:length])
    return numbers[right], document[:length][right]


def texts_with_each(
    numbers: np.ndarray, of_text: np.ndarray, texts: int
) -> tuple[np.ndarray, np.ndarray]:
    """The distinct keys, sorted, and the number of texts that contain each."""
    distinct, place = np.unique(numbers, return_inverse=True)
    pairs = np.unique(place * texts + of_text)
    return distinct, np.bincount(pairs // max(1, texts), minlength=len(distinct))


def find_keys(keys: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each number is among the sorted keys, and the indices in ``keys`` of those found."""
    if not len(keys):
        return np.zeros(len(numbers), dtype=bool), np.zeros(0, dtype=np.int64)
    place = np.minimum(np.searchsorted(keys, numbers), len(keys) - 1)
    right = keys[place] == numbers
    return right, place[right]


def _sum(rows: list[np.ndarray], columns: list[np.ndarray], shape: tuple[int, int]) -> Matrix:
    if not rows:
        return sparse.csr_array(shape, dtype=np.float32)
    places = (np.concatenate(rows), np.concatenate(columns))
    ones = np.ones(len(places[0]), dtype=np.float32)
    return sparse.csr_array(sparse.coo_array((ones, places), shape=shape).tocsr())
