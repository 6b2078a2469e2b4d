"""Sparse counts of word and character n-grams, and token statistics of normal texts.

N texts, F features, R normal texts, W known tokens.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

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


# Maximum number of bigrams and of distinct normal rows: those that occur in the most texts.
_MOST_PAIRS, _MOST_ROWS = 500_000, 20_000
# Texts compared with all normal rows at a time.
_BLOCK = 256
# Boundary token before the first token and after the last one.
_EDGE = "\n"


class NormalCounts:
    """Compares texts with normal ones by token counts, bigrams and length.

    Args:
        ngrams: tokens and bigrams of normal texts.
        texts_with: (W) share of normal texts that contain each token.
        rows: (R, W) distinct token counts of normal texts.
        length: median number of tokens.
    """

    def __init__(
        self, ngrams: WordNgrams, texts_with: np.ndarray, rows: Matrix, length: float
    ) -> None:
        self._ngrams, self._texts_with, self._rows, self._length = ngrams, texts_with, rows, length
        self._tokens = list(ngrams.words)
        # Rare tokens have larger weights, unseen ones the largest.
        self._weights = 1 - np.log(np.append(texts_with, 1 / (texts_with.size + 1)).clip(1e-6, 1))
        row, number = _occurrences(rows)
        self._keys = np.unique(number)
        self._normal = self._matrix(row, number, rows.shape[0])
        self._totals = rows @ self._weights[:-1]

    @classmethod
    def fit(cls, texts: Sequence[Sequence[str]]) -> "NormalCounts":
        """Collect the statistics of tokenised texts."""
        framed = [(_EDGE, *text, _EDGE) for text in texts]
        ngrams = WordNgrams.fit(framed, order=2, most=_MOST_PAIRS)
        counts = _counts(ngrams, framed)
        texts_with = np.bincount(counts.indices, minlength=counts.shape[1]) / len(texts)
        keys = np.array([hash(_row(counts, i)) for i in range(len(texts))])
        _, first, times = np.unique(keys, return_index=True, return_counts=True)
        kept = first[np.lexsort((first, -times))[:_MOST_ROWS]]
        length = float(np.median([len(text) for text in texts]))
        return cls(ngrams, texts_with, counts[np.sort(kept)], length)

    def is_seen(self, token: str) -> bool:
        """Whether a normal text contains the token."""
        return token in self._ngrams.words

    def unseen_pairs(self, text: Sequence[str]) -> list[tuple[str, str]]:
        """The bigrams of a text that occur in no normal text; <start> and <end> mark its
        boundaries."""
        framed = (_EDGE, *text, _EDGE)
        seen = {first for first, length, _ in self._ngrams.occurrences(framed) if length == 2}
        named = ("<start>", *text, "<end>")
        return [pair for i, pair in enumerate(pairwise(named)) if i not in seen]

    def measured(self, texts: Sequence[Sequence[str]]) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Measure how unusual tokenised texts are.

        Returns:
            Four arrays (N): ``counts``, the distance between weighted token counts and those of the
            nearest normal text, from 0 to 1 (Bray and Curtis 1957); ``unseen``, the number of
            tokens that no normal text contains; ``order``, the share of unseen bigrams; ``length``,
            the absolute difference of the log length from that of the median. Also the index of the
            nearest normal text (N).
        """
        framed = [(_EDGE, *text, _EDGE) for text in texts]
        counts = _counts(self._ngrams, framed)
        lengths = np.array([len(text) for text in texts], dtype=np.float64)
        unseen = lengths + 2 - counts.sum(1)
        pairs = self._ngrams.counts(framed).sum(1) - counts.sum(1)
        distances, nearest = self._nearest(counts, unseen)
        return {
            "counts": distances,
            "unseen": unseen,
            "order": 1 - pairs / (lengths + 1),
            "length": np.abs(np.log1p(lengths) - np.log1p(self._length)),
        }, nearest

    def differences(self, text: Sequence[str], nearest: int) -> list[tuple[str, int, int]]:
        """Tokens whose counts differ from a normal text's, with both counts; largest weight
        first."""
        text_counts = _counts(self._ngrams, [(_EDGE, *text, _EDGE)]).toarray()[0]
        normal = self._rows[[nearest]].toarray()[0]
        weight = np.abs(text_counts - normal) * self._weights[:-1]
        order = np.argsort(-weight, kind="stable")
        return [
            (self._tokens[i], int(text_counts[i]), int(normal[i])) for i in order if weight[i] > 0
        ]

    def _nearest(self, counts: Matrix, unseen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = counts @ self._weights[:-1] + unseen * self._weights[-1]
        row, number = _occurrences(counts)
        matrix = self._matrix(row, number, counts.shape[0])
        matrix = (matrix * self._weights[self._keys % counts.shape[1]]).tocsr()
        distances, nearest = np.empty(len(total)), np.empty(len(total), dtype=np.int64)
        for start in range(0, len(total), _BLOCK):
            block = slice(start, start + _BLOCK)
            shared = (matrix[block] @ self._normal.T).toarray()
            block_distances = 1 - 2 * shared / (total[block, None] + self._totals)
            nearest[block] = block_distances.argmin(1)
            distances[block] = block_distances.min(1).clip(0)
        return distances, nearest

    def _matrix(self, row: np.ndarray, number: np.ndarray, rows: int) -> Matrix:
        """Ones for occurrences that a normal row has too: the product of two rows is the sum of the
        minima of their counts."""
        column = np.minimum(np.searchsorted(self._keys, number), len(self._keys) - 1)
        same = self._keys[column] == number
        ones = np.ones(int(same.sum()))
        return sparse.csr_array((ones, (row[same], column[same])), shape=(rows, len(self._keys)))

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays for ``from_arrays``."""
        return {
            **self._ngrams.arrays(),
            "texts_with": self._texts_with,
            "rows.starts": self._rows.indptr.astype(np.int64),
            "rows.tokens": self._rows.indices.astype(np.int32),
            "rows.counts": self._rows.data.astype(np.int32),
            "length": np.array([self._length]),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "NormalCounts":
        """Restore an instance from ``arrays``."""
        ngrams = WordNgrams.from_arrays(arrays)
        starts, size = arrays["rows.starts"], len(ngrams.words)
        parts = arrays["rows.counts"].astype(np.float64), arrays["rows.tokens"], starts
        rows = sparse.csr_array(parts, shape=(len(starts) - 1, size))
        rows.check_format()
        if arrays["texts_with"].shape != (size,):
            raise ValueError("there must be one number for each token")
        return cls(ngrams, arrays["texts_with"], rows, float(arrays["length"][0]))


def _counts(ngrams: WordNgrams, framed: Sequence[Sequence[str]]) -> Matrix:
    """Counts of each known token in texts, (N, W)."""
    unigrams = WordNgrams(ngrams.words, [np.arange(len(ngrams.words), dtype=np.int64)])
    counts = unigrams.counts(framed)
    counts.sort_indices()
    return counts


def _row(counts: Matrix, row: int) -> bytes:
    entries = slice(counts.indptr[row], counts.indptr[row + 1])
    return counts.indices[entries].tobytes() + counts.data[entries].tobytes()


def _occurrences(counts: Matrix) -> tuple[np.ndarray, np.ndarray]:
    """The row of each occurrence of a token, and a number for the token and how often it occurred
    before. The sum of the minima of two rows' counts is how many of these numbers they share."""
    times = counts.data.astype(np.int64)
    rows = np.repeat(np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)), times)
    starts = np.repeat(np.cumsum(times) - times, times)
    which = np.arange(times.sum()) - starts
    return rows, np.repeat(counts.indices.astype(np.int64), times) + which * counts.shape[1]
