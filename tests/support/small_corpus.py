"""A small corpus in which every word stands once, and examples taken apart."""

from pathlib import Path

import numpy as np

from ownbert.batches.masking import Masking, ordinary_tokens
from ownbert.corpus.pretraining_examples import PretrainingData, pretraining_data
from ownbert.corpus.store import Store, prepare
from ownbert.text.tokenizer import Tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP, MASK = 2, 3, 4


def make(folder: Path, documents: list[list[int]]) -> tuple[Store, Tokenizer]:
    """A store in which every token stands once; a document is given by its sentences' lengths."""
    lines, number = [], 0
    for sentences in documents:
        words = []
        for length in sentences:
            words += [f"w{number + i}" for i in range(length - 1)] + ["."]
            number += length - 1
        lines.append(" ".join(words))
    (folder / "a.txt").write_text("\n".join(lines) + "\n")
    tokenizer = Tokenizer.blank([*SPECIAL, ".", *(f"w{i}" for i in range(number))])
    store = prepare([folder / "a.txt"], folder / "s", tokenizer=tokenizer, sentence_end=["."])
    return store, tokenizer


def data_of(
    store: Store,
    tokenizer: Tokenizer,
    *,
    max_length: int = 64,
    pairs: str | None = "nsp",
    seed: int = 0,
) -> tuple[PretrainingData, PretrainingData]:
    ordinary = ordinary_tokens(tokenizer.vocab_size, tokenizer.special_ids)
    return pretraining_data(
        store,
        tokenizer,
        Masking(MASK, ordinary),
        max_length=max_length,
        pairs=pairs,
        held_out=0.1,
        seed=seed,
    )


def plain(data: PretrainingData, epoch: int, index: int):
    """The parts of an example before masking, and the example."""
    example = data.example(epoch, index)
    assert example.masked_positions is not None
    ids = example.token_ids.copy()
    ids[example.masked_positions] = example.masked_ids
    ends = np.flatnonzero(ids == SEP)
    assert ids[0] == CLS
    assert ends[-1] == len(ids) - 1
    assert (ids == CLS).sum() == 1
    starts = [1, *(ends[:-1] + 1)]
    return [ids[a:b] for a, b in zip(starts, ends, strict=True)], ends, example


def place(store: Store, part: np.ndarray) -> int:
    """Where a part stands in the corpus; every word stands there once, so it is only there."""
    words = np.flatnonzero(part > 5)
    if not len(words):
        return -1
    start = int(np.flatnonzero(store.tokens == part[words[0]])[0] - words[0])
    assert np.array_equal(store.tokens[start : start + len(part)], part)
    return start


def make_corpus(folder: Path) -> tuple[Store, Tokenizer]:
    """120 documents of one to thirteen sentences, and four odd ones."""
    rng = np.random.default_rng(0)
    documents = [rng.integers(2, 25, rng.integers(1, 14)).tolist() for _ in range(120)]
    documents += [[2], [3, 2], [200], [2, 90, 2]]
    return make(folder, documents)
