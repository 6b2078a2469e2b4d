"""Span corruption: what is taken out, and that nothing is lost."""

from typing import Any

import numpy as np
import pytest

from ownbert.objectives.span_corruption_lm import SpanCorruption

ORDINARY = np.arange(400) >= 4
START, END, SENTINELS = 0, 3, np.arange(300, 400)


def corruption(**settings: float) -> SpanCorruption:
    ordinary = ORDINARY & (np.arange(400) < 300)
    return SpanCorruption(SENTINELS, START, END, ordinary, **settings)


def put_back(source: np.ndarray, written: np.ndarray) -> list[int]:
    """The text, with the spans that the decoder writes in place of their sentinels."""
    spans, number = {}, -1
    for token in written[:-1].tolist():
        if token >= 300:
            number = token
            spans[number] = []
        else:
            spans[number].append(token)
    return [t for token in source.tolist() for t in spans.get(token, [token])]


@pytest.mark.parametrize(("rate", "mean"), [(0.15, 3.0), (0.5, 1.0), (0.99, 2.5), (0.01, 512.0)])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 40, 126, 3000])
def test_nothing_is_lost(length: int, rate: float, mean: float):
    rng = np.random.default_rng(length)
    ids = np.array([2, *rng.integers(4, 300, length), 3])
    for _ in range(5):
        example = corruption(rate=rate, length=mean)(ids, rng)
        assert example.source is not None
        assert example.tags is not None
        read, written = example.source.token_ids, example.tags
        assert put_back(read, written) == ids.tolist()
        assert example.token_ids.tolist() == [START, *written[:-1]]
        assert written[-1] == END
        assert (read[0], read[-1]) == (2, 3)
        found = read[read >= 300]
        assert found.tolist() == SENTINELS[: len(found)].tolist()
        taken = (written < 300).sum() - 1
        if length < 2:
            assert taken == len(found) == 0
            continue
        assert taken == min(length - 1, max(1, round(rate * length)))
        assert len(found) == min(100, length - taken, max(1, round(taken / mean)))


def test_an_example_follows_from_the_generator_alone():
    ids = np.arange(4, 130)
    pairs: Any = [corruption()(ids, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(pairs[0].tags, pairs[1].tags)
    assert not np.array_equal(pairs[0].source.token_ids, pairs[2].source.token_ids)  # pyright: ignore
    gone = np.zeros(130)
    for seed in range(300):
        read = corruption()(ids, np.random.default_rng(seed)).source.token_ids  # pyright: ignore
        gone[np.setdiff1d(ids, read)] += 1
    # A text begins with what stays and ends with a span; between, every place is as likely.
    assert (gone[4], gone[-1]) == (0, 300)
    assert gone[14:-10].min() > 20
    assert gone[14:-10].max() < 80
