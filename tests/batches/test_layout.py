"""Who sees whom, and the way from rows to places and back."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert.batches.layout import Grouping, Layout, PaddedIndex, distances, lowest, make_layout

LENGTHS = st.lists(st.one_of(st.integers(1, 12), st.integers(1, 700)), min_size=1, max_size=24)
PAIRS = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 12), st.integers(0, 30)),
        st.tuples(st.integers(1, 300), st.integers(0, 300)),
    ),
    min_size=1,
    max_size=12,
)


def check_index(
    index: PaddedIndex, spans: list[tuple[tuple[int, ...], slice]], layout: Layout
) -> None:
    """Each sequence lies in order in one line of its group; padding repeats rows of its own."""
    lengths = layout.lengths
    rows, places = index.rows, index.places
    assert rows[places].tolist() == list(range(sum(lengths)))
    token = torch.zeros(len(rows), dtype=torch.bool)
    token[places] = True
    padding = index.padding if index.padding is not None else torch.zeros_like(token)
    assert torch.equal(padding, ~token)
    assert index.same == (rows.tolist() == list(range(sum(lengths))))
    stop = 0
    for members, span in spans:
        assert span.start == stop
        stop = span.stop
        longest = max(lengths[b] for b in members)
        assert span.stop - span.start == len(members) * longest
        grid = rows[span].view(len(members), longest)
        inside = token[span].view(len(members), longest)
        for number, line, real in zip(members, grid, inside, strict=True):
            first, count = int(layout.cu_seqlens[number]), lengths[number]
            assert real.tolist() == [True] * count + [False] * (longest - count)
            assert line[:count].tolist() == list(range(first, first + count))
            assert first <= int(line.min()) <= int(line.max()) < first + count
    assert stop == len(rows)


def check(layout: Layout) -> Grouping:
    grouping = layout.grouping
    groups = grouping.groups
    members = [number for group in groups for number in group.members]
    assert sorted(members) == list(range(len(layout.lengths)))
    assert [group.count for group in groups] == [len(group.members) for group in groups]
    check_index(grouping.queries, [(g.members, g.queries) for g in groups], layout)
    check_index(grouping.keys, [(g.members, g.keys) for g in groups], layout.keys or layout)
    return grouping


@given(lengths=LENGTHS)
@settings(max_examples=60)
def test_grouping_is_a_way_there_and_back(lengths: list[int]):
    grouping = check(make_layout(lengths))
    assert grouping.keys is grouping.queries
    for group in grouping.groups:
        inside = torch.tensor([lengths[b] for b in group.members])[:, None]
        inside = torch.arange(int(inside.max())) < inside
        assert (group.mask is None) == bool(inside.all())
        if group.mask is not None:
            assert torch.equal(group.mask, inside[:, None, None, :])
        assert group.seen is None


@given(pairs=PAIRS, causal=st.booleans())
@settings(max_examples=60)
def test_grouping_of_queries_with_keys_of_their_own(pairs: list[tuple[int, int]], causal: bool):
    queries = [q for q, _ in pairs]
    keys = [q + more for q, more in pairs]
    layout = replace(make_layout(queries), keys=make_layout(keys), causal=causal)
    for group in check(layout).groups:
        rows = max(queries[b] for b in group.members)
        columns = max(keys[b] for b in group.members)
        seen = torch.ones(group.count, 1, rows, columns, dtype=torch.bool)
        if group.mask is not None:
            assert not bool(group.mask.all())
            seen = seen & group.mask
        far = group.distances.expand(group.count, -1, -1)
        for line, b in enumerate(group.members):
            more = keys[b] - queries[b]
            assert far[line, 0, : keys[b]].tolist() == list(range(more, more - keys[b], -1))
            for i in {0, queries[b] // 2, queries[b] - 1}:
                until = more + i + 1 if causal else keys[b]
                assert seen[line, 0, i].tolist() == [True] * until + [False] * (columns - until)


def test_groups_save_padding():
    near = make_layout([100] * 5 + [97] * 5).grouping
    assert len(near.groups) == 1
    far = make_layout([500] + [10] * 40).grouping
    sizes = [(g.count, (g.queries.stop - g.queries.start) // g.count) for g in far.groups]
    assert sizes == [(1, 500), (40, 10)]
    assert far.queries.padding is None
    assert far.queries.same
    # Long keys count as a long text does.
    across = replace(make_layout([10] * 41), keys=make_layout([10] * 40 + [9000])).grouping
    assert [g.count for g in across.groups] == [1, 40]
    assert across.groups[0].members == (40,)


def test_texts_of_one_length_stay_where_they_are():
    layout = make_layout([5, 5, 5])
    grouping = layout.grouping
    assert grouping.queries.same
    assert grouping is layout.grouping  # made once
    assert len(grouping.groups) == 1
    assert grouping.groups[0].mask is None


def test_groups_have_few_sizes_where_their_products_are_compiled():
    lengths = [37, 5, 100, 64, 1, 90]
    with torch.autocast("cpu", torch.bfloat16):
        layout = make_layout(lengths)
        groups = layout.grouping.groups
        crossed = replace(make_layout([1, 1]), keys=make_layout([5, 9])).grouping.groups[0]
        masked = replace(make_layout([3, 3]), mask=torch.ones(2, 3, 3) > 0).grouping.groups[0]
    for group in groups:
        size = (group.queries.stop - group.queries.start) // group.count
        assert size == -(-max(lengths[b] for b in group.members) // 16) * 16
        assert group.count in (1, 2, 4)
    assert layout.longest_padded == (112, 112)  # up to there biases know distances
    index = layout.grouping.queries
    assert index.rows[index.places].tolist() == list(range(sum(lengths)))
    # A query alone stays alone, and a mask has the size that it was given.
    assert crossed.queries == slice(0, 2)
    assert masked.queries == slice(0, 6)


def test_a_query_that_sees_nothing():
    mask = torch.tensor([[[1, 0], [0, 0]], [[0, 1], [1, 1]]]) > 0
    group = replace(make_layout([2, 2]), mask=mask).grouping.groups[0]
    assert group.seen is not None
    assert group.seen.flatten().tolist() == [True, False, True, True]
    assert group.mask is not None
    assert group.mask[:, 0].tolist() == [[[True, False], [True, True]], [[False, True], [True] * 2]]
    added = group.hidden(torch.float32)
    assert torch.equal(added == 0, group.mask)
    assert added is group.hidden(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_lowest_score_is_finite_and_gets_no_weight(dtype: torch.dtype):
    score = torch.tensor([lowest(dtype), 0.0], dtype=dtype)
    assert bool(score.isfinite().all())
    assert score.softmax(0).tolist() == [0, 1]
    if dtype != torch.float16:
        assert bool(score.bfloat16().isfinite().all())


def test_distances():
    assert distances(2, 3, torch.tensor([1])).tolist() == [[[1, 0, -1], [2, 1, 0]]]
    assert distances(1, 2, torch.tensor([0, 5])).tolist() == [[[0, -1]], [[5, 4]]]


def test_sequences_and_moving():
    layout = replace(make_layout([2, 1]), keys=make_layout([3, 4]), causal=True)
    assert layout.sequences.tolist() == [0, 0, 1]
    assert layout.max_seqlen == 2
    moved = replace(layout, keys=None, mask=None).to("meta")
    assert moved.cu_seqlens.device.type == "meta"
    assert moved.causal
    mask = torch.ones(2, 1, 3, dtype=torch.bool)
    dense = replace(make_layout([2, 2]), keys=make_layout([3, 3]), mask=mask).to("meta")
    assert dense.keys is not None
    assert dense.mask is not None
    assert dense.keys.cu_seqlens.device.type == dense.mask.device.type == "meta"
