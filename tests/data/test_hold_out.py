"""Which spans are kept for evaluation."""

import numpy as np
import pytest

from ownbert.data.pairs import Spans, hold_out


def spans_of(*documents: int) -> Spans:
    numbers = np.repeat(np.arange(len(documents)), documents)
    at = np.arange(len(numbers)) * 10
    return Spans(at, at + 10, numbers)


@pytest.mark.parametrize("share", [0.001, 0.02, 0.5, 0.999])
@pytest.mark.parametrize("documents", [(3,) * 25, (30, 4), (50,)])
def test_hold_out_leaves_something_on_both_sides(documents: tuple[int, ...], share: float):
    spans = spans_of(*documents)
    train, held = hold_out(spans, share, 0)
    assert len(train) > 0
    assert len(held) > 0
    assert sorted([*train.starts, *held.starts]) == spans.starts.tolist()


def test_hold_out_of_nothing_or_of_too_little():
    for spans, share in ((spans_of(*[3] * 25), 0.0), (spans_of(3, 4), 0.5)):
        train, held = hold_out(spans, share, 0)
        assert (len(train), len(held)) == (len(spans), 0)
