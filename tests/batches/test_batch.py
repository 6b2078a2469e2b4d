"""Packing and padding."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ownbert.batches.batch import Batch, Example, from_padded, pack, to_padded
from ownbert.batches.layout import make_layout
from ownbert.exceptions import InputError


def test_pack_lays_examples_end_to_end():
    first = Example(
        np.array([2, 7, 8, 3]), np.zeros(4, int), np.array([1, 2]), np.array([70, 80]), 1, 5
    )
    second = Example(np.array([2, 9, 3]), np.array([0, 0, 1]), np.array([1]), np.array([90]), 0, 6)
    batch = pack([first, second])
    assert batch.token_ids.tolist() == [2, 7, 8, 3, 2, 9, 3]
    assert batch.type_ids.tolist() == [0, 0, 0, 0, 0, 0, 1]
    assert batch.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert batch.layout.cu_seqlens.tolist() == [0, 4, 7]
    assert (batch.layout.lengths, batch.layout.max_seqlen) == ((4, 3), 4)
    assert (batch.tokens, batch.sequences, batch.first.tolist()) == (7, 2, [0, 4])
    assert batch.masked_positions is not None
    assert batch.masked_positions.tolist() == [1, 2, 5]
    assert batch.masked_ids is not None
    assert batch.masked_ids.tolist() == [70, 80, 90]
    assert batch.next_sentence is not None
    assert batch.next_sentence.tolist() == [1, 0]
    assert batch.labels is not None
    assert batch.labels.tolist() == [5, 6]
    assert all(x.dtype == torch.int64 for x in (batch.token_ids, batch.positions, batch.labels))


def test_pack_without_targets():
    batch = pack([Example(np.array([1, 2], dtype=np.uint16), np.zeros(2, int))] * 2)
    targets = (batch.masked_positions, batch.masked_ids, batch.next_sentence, batch.labels)
    assert targets == (None, None, None, None)
    assert batch.token_ids.dtype == torch.int64


def test_an_example_may_have_no_target():
    none = np.array([], dtype=np.int64)
    batch = pack(
        [
            Example(np.array([1]), np.zeros(1, int), none, none),
            Example(np.array([1, 2]), np.zeros(2, int), np.array([1]), np.array([4])),
        ]
    )
    assert batch.masked_positions is not None
    assert batch.masked_positions.tolist() == [2]


def test_a_batch_moves_whole():
    batch = pack([Example(np.array([1, 2]), np.zeros(2, int), label=3)])
    assert batch.to("cpu") is batch
    moved = batch.to("meta")
    assert moved.token_ids.device.type == moved.layout.cu_seqlens.device.type == "meta"
    assert moved.labels is not None
    assert moved.labels.device.type == "meta"
    assert moved.layout.lengths == (2,)


def test_empty_batches_and_rows_are_refused():
    for lengths in ([], [3, 0, 2]):
        with pytest.raises(InputError, match="every sequence one token"):
            make_layout(lengths)
    mask = torch.tensor([[1, 1], [0, 0]])
    with pytest.raises(InputError, match="every sequence one token"):
        from_padded(torch.ones(2, 2, dtype=torch.int64), mask)


def unpacked(batch: Batch, values: torch.Tensor) -> list[list[int]]:
    return [part.tolist() for part in values.split(batch.layout.lengths)]


def test_from_padded_right_left_and_with_holes():
    ids = torch.tensor([[5, 6, 0, 0], [0, 0, 0, 7], [8, 0, 9, 0]])
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    types = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]])
    batch, index = from_padded(ids, mask, types)
    assert unpacked(batch, batch.token_ids) == [[5, 6], [7], [8, 9]]
    assert unpacked(batch, batch.type_ids) == [[0, 1], [1], [1, 0]]
    # A token keeps the position of its place, as in Transformers.
    assert unpacked(batch, batch.positions) == [[0, 1], [3], [0, 2]]
    assert to_padded(batch.token_ids, index, (3, 4)).tolist() == ids.tolist()


def test_from_padded_defaults():
    ids = torch.tensor([[5, 6], [7, 8]])
    batch, index = from_padded(ids)
    assert batch.type_ids.tolist() == [0] * 4
    assert batch.positions.tolist() == [0, 1, 0, 1]
    assert index.tolist() == [0, 1, 2, 3]
    batch, _ = from_padded(ids, position_ids=torch.tensor([[4, 2]]))
    assert batch.positions.tolist() == [4, 2, 4, 2]
    assert (batch.task_ids, batch.embeds) == (None, None)


def test_from_padded_takes_tasks_and_embeddings_along():
    ids, mask = torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[1, 1, 0], [1, 1, 1]])
    tasks, embeds = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.randn(2, 3, 4)
    batch, _ = from_padded(ids, mask, task_type_ids=tasks, inputs_embeds=embeds)
    assert batch.task_ids is not None
    assert batch.task_ids.tolist() == [0, 1, 3, 4, 5]
    assert batch.embeds is not None
    assert torch.equal(batch.embeds, embeds[mask.bool()])
    batch, _ = from_padded(ids, mask, task_type_ids=tasks[:1])
    assert batch.task_ids is not None
    assert batch.task_ids.tolist() == [0, 1, 0, 1, 2]


@given(data=st.data(), rows=st.integers(1, 6), width=st.integers(1, 9))
@settings(max_examples=60)
def test_padded_round_trip(data: st.DataObject, rows: int, width: int):
    flags = st.lists(st.booleans(), min_size=width, max_size=width).filter(any)
    mask = torch.tensor(data.draw(st.lists(flags, min_size=rows, max_size=rows)))
    hidden = torch.randn(rows, width, 3) * mask[..., None]
    ids = torch.arange(rows * width).view(rows, width)
    batch, index = from_padded(ids, mask)
    assert batch.layout.lengths == tuple(mask.sum(1).tolist())
    packed = hidden.flatten(0, 1)[batch.token_ids]
    torch.testing.assert_close(to_padded(packed, index, (rows, width)), hidden, rtol=0, atol=0)
