"""Spans of a corpus."""

import time

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert.corpus.pretraining_examples import split_into_spans


def greedy(documents: list[list[int]], limit: int) -> list[tuple[int, int, int]]:
    """Spans of documents given as lengths of sentences, one sentence after the other."""
    spans, start = [], 0
    for number, sentences in enumerate(documents):
        left, size = list(sentences), 0
        while left:
            if size + left[0] <= limit:
                size += left.pop(0)
                continue
            if size == 0:
                size, left[0] = limit, left[0] - limit
            spans.append((start, start + size, number))
            start, size = start + size, 0
        if size:
            spans.append((start, start + size, number))
            start += size
    return spans


DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=1, max_size=12)


# Few documents are split one by one, many together.
@given(documents=DOCUMENTS, limit=st.integers(1, 40), times=st.sampled_from([1, 40]))
@settings(max_examples=200)
def test_spans_are_those_of_the_plain_way(documents: list[list[int]], limit: int, times: int):
    documents = documents * times
    ends = np.cumsum([n for document in documents for n in document])
    document_ends = np.cumsum([sum(document) for document in documents])
    spans = split_into_spans(ends, document_ends, limit)
    found = list(
        zip(spans.starts.tolist(), spans.stops.tolist(), spans.documents.tolist(), strict=True)
    )
    assert found == greedy(documents, limit)
    assert [b for _, b, _ in found] == [*[a for a, _, _ in found[1:]], document_ends[-1]]
    assert all(0 < b - a <= limit for a, b, _ in found)


@given(
    breaks=st.sets(st.integers(1, 300), min_size=1, max_size=60),
    ends=st.sets(st.integers(1, 300), max_size=40),
    limit=st.integers(1, 60),
)
@settings(max_examples=100)
def test_text_may_break_inside_a_sentence(breaks: set[int], ends: set[int], limit: int):
    """Where a piece was held out, a text ends that no sentence ends with."""
    sentence_ends, document_ends = np.array(sorted(ends)), np.array(sorted(breaks))
    spans = split_into_spans(sentence_ends, document_ends, limit)
    both = sorted(e for e in ends | breaks if e <= document_ends[-1])
    starts = [0, *document_ends[:-1].tolist()]
    documents = [
        np.diff([start, *(e for e in both if start < e <= stop)]).tolist()
        for start, stop in zip(starts, document_ends.tolist(), strict=True)
    ]
    assert list(zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)) == [
        (start, stop) for start, stop, _ in greedy(documents, limit)
    ]


def test_one_document_of_many_millions_of_tokens():
    for ends in (np.array([50_000_000]), np.arange(7, 10_000_001, 7)):
        began = time.process_time()
        spans = split_into_spans(ends, np.array([ends[-1]]), 125)
        assert time.process_time() - began < 2  # a tenth of it is usual
        assert spans.starts[0] == 0
        assert spans.stops[-1] == ends[-1]
        assert (spans.starts[1:] == spans.stops[:-1]).all()
        assert (spans.stops - spans.starts).max() in (125, 119)
