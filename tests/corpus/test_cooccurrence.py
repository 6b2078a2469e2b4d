"""Word vectors out of the corpus's own co-occurrences."""

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from ownbert.batches.masking import ordinary_tokens
from ownbert.corpus.cooccurrence import WINDOW, _count, cooccurrence_vectors, positive_pmi
from ownbert.corpus.store import Store, prepare
from ownbert.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = 40  # of each topic


def make(folder: Path, lines: list[list[str]], words: list[str]) -> Store:
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("\n".join(" ".join(line) for line in lines) + "\n")
    tokenizer = Tokenizer.blank([*SPECIAL, *words])
    return prepare([folder / "a.txt"], folder / "store", tokenizer=tokenizer)


def vectors_of(store: Store, size: int, **settings) -> np.ndarray:
    return cooccurrence_vectors(store, size, ordinary(store), **settings)


def ordinary(store: Store) -> np.ndarray:
    return ordinary_tokens(len(store.counts), tuple(range(len(SPECIAL))))


def topics() -> tuple[list[list[str]], list[str]]:
    """Documents of two topics whose words never mix."""
    rng = np.random.default_rng(0)
    words = [f"{topic}{i}" for topic in "ab" for i in range(WORDS)]
    lines = []
    for number in range(400):
        ids = rng.integers(WORDS, size=30) + WORDS * (number % 2)
        lines.append([words[i] for i in ids])
    return lines, words


def same_topic(vectors: np.ndarray) -> float:
    """Share of words whose nearest neighbour is of their topic."""
    known = vectors[len(SPECIAL) :].astype(np.float64)
    known /= np.linalg.norm(known, axis=1, keepdims=True) + 1e-12
    likeness = known @ known.T
    np.fill_diagonal(likeness, -2)
    nearest = likeness.argmax(1)
    return float(np.mean(nearest // WORDS == np.arange(2 * WORDS) // WORDS))


def test_neighbours_are_of_the_same_topic(tmp_path: Path):
    lines, words = topics()
    assert same_topic(vectors_of(make(tmp_path / "made", lines, words), 16)) == 1
    flat = [word for line in lines for word in line]
    np.random.default_rng(1).shuffle(flat)
    shuffled = [flat[i : i + 30] for i in range(0, len(flat), 30)]
    assert same_topic(vectors_of(make(tmp_path / "shuffled", shuffled, words), 16)) < 0.75


def plain_counts(store: Store) -> np.ndarray:
    counts = np.zeros((len(store.counts),) * 2)
    starts = np.concatenate([[0], store.document_ends[:-1]])
    for start, stop in zip(starts, store.document_ends, strict=True):
        for i in range(start, stop):
            for j in range(max(start, i - WINDOW), min(stop, i + WINDOW + 1)):
                if i != j:
                    counts[store.tokens[i], store.tokens[j]] += 1
    return counts


def test_counts_and_ppmi_are_those_of_the_plain_way(tmp_path: Path):
    rng = np.random.default_rng(0)
    words = [f"w{i}" for i in range(30)]
    lines = [
        [words[int(i)] for i in rng.zipf(1.5, rng.integers(1, 40)) % 33 if i < 30] or ["w0"]
        for _ in range(50)
    ]
    store = make(tmp_path, lines, words)
    counts = plain_counts(store)
    assert np.array_equal(_count(store, len(counts)).toarray(), counts)

    seen = counts.sum(0) > 0
    counts = counts[seen][:, seen]
    with np.errstate(divide="ignore"):
        joint, word = counts / counts.sum(), counts.sum(1) / counts.sum()
        context = counts.sum(0) ** 0.75
        context /= context.sum()
        expected = np.maximum(0, np.log(joint / np.outer(word, context)))
    found = positive_pmi(sparse.csr_array(counts)).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert 0 < (found > 0).mean() < 1

    # The vectors are U sqrt(S) of that matrix, so that U S U^T is its best approximation.
    rank = 6
    vectors = vectors_of(store, rank)[np.flatnonzero(plain_counts(store).sum(0) > 0)]
    u, s, _ = np.linalg.svd(expected)
    exact = u[:, :rank] * np.sqrt(s[:rank])
    gram, wanted = vectors @ vectors.T, exact @ exact.T
    gram *= np.linalg.norm(wanted) / np.linalg.norm(gram)
    assert np.linalg.norm(gram - wanted) < 0.05 * np.linalg.norm(wanted)


def test_no_pairs_across_documents(tmp_path: Path):
    store = make(tmp_path, [["a", "b"], ["c", "d"]] * 3, [*"abcd"])
    counts = _count(store, len(store.counts)).toarray()[5:, 5:]
    assert counts.tolist() == [[0, 3, 0, 0], [3, 0, 0, 0], [0, 0, 0, 3], [0, 0, 3, 0]]


def test_deviation_zero_rows_and_seed(tmp_path: Path):
    lines, words = topics()
    words = [*words, "never"]
    lines[0] = ["[MASK]", *lines[0], "[SEP]", "unknown"]
    store = make(tmp_path, lines, words)
    vectors = vectors_of(store, 16)
    assert vectors.shape == (len(words) + 5, 16)
    assert vectors.dtype == np.float32
    assert not vectors[:5].any()
    assert not vectors[-1].any()
    assert abs(vectors[5:-1].std() - 0.05) < 1e-4
    assert (np.abs(vectors[5:-1]).sum(1) > 0).all()
    again, other = vectors_of(store, 16), vectors_of(store, 16, seed=1)
    np.testing.assert_allclose(again, vectors, atol=1e-6)
    assert not np.allclose(other, vectors, atol=1e-4)


def test_the_random_state_of_the_caller_is_left_alone(tmp_path: Path):
    import torch

    store = make(tmp_path, *topics())
    torch.manual_seed(3)
    vectors_of(store, 8)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


@pytest.mark.parametrize("words", [1, 2, 3, 5])
def test_a_vocabulary_smaller_than_the_vectors(tmp_path: Path, words: int):
    names = [*"abcde"[:words]]
    rng = np.random.default_rng(0)
    lines = [rng.choice(names, 6).tolist() for _ in range(50)]
    vectors = vectors_of(make(tmp_path, lines, names), 32)
    assert vectors.shape == (5 + words, 32)
    assert np.isfinite(vectors).all()
    assert not vectors[:, words:].any()
    if words >= 3:
        assert vectors.any()


def test_a_large_corpus_is_counted_by_evenly_spread_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    lines, words = topics()
    store = make(tmp_path, lines, words)
    whole = _count(store, len(store.counts)).sum()
    monkeypatch.setattr("ownbert.corpus.cooccurrence._BLOCK", 30)
    monkeypatch.setattr("ownbert.corpus.cooccurrence._MOST_TOKENS", 3000)
    part = _count(store, len(store.counts))
    assert part.sum() == whole / 4
    # From the whole length of it, and both topics.
    assert part.toarray()[5 : 5 + WORDS].any()
    assert part.toarray()[5 + WORDS :].any()


def test_pairs_below_the_least_count_tell_nothing(tmp_path: Path):
    lines = [["a", "b"], ["a", "b"], ["c", "d"], ["c", "d"], ["e", "a"]]
    store = make(tmp_path, lines, ["a", "b", "c", "d", "e"])
    all_pairs, repeated = (vectors_of(store, 4, least=n)[len(SPECIAL) :] for n in (1, 2))
    assert np.abs(all_pairs).max(1).all()
    assert np.abs(repeated).max(1).astype(bool).tolist() == [True, True, True, True, False]
