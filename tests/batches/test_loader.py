"""The loader: every example once an epoch, and a position is enough to resume from."""

import threading
import time
from itertools import islice

import numpy as np
import pytest

from ownbert.batches.batch import Batch, Example
from ownbert.batches.loader import Loader, Position, batches_once

BY = [{"batch_tokens": 40}, {"batch_size": 7}]
IDS = ["batch_tokens", "batch_size"]


class Numbers:
    """Example i of epoch e holds i + 1 tokens at most, says i everywhere and e as its label."""

    def __init__(self, size: int, broken: int | None = None) -> None:
        self.size, self.broken = size, broken

    def __len__(self) -> int:
        return self.size

    @property
    def sizes(self) -> np.ndarray:
        return 1 + np.arange(self.size) % 9

    def example(self, epoch: int, index: int) -> Example:
        if index == self.broken:
            raise OSError(f"example {index} cannot be read")
        ids = np.full(1 + index % 9, index)
        return Example(ids, np.zeros(len(ids), int), label=epoch)


def numbers(batch: Batch) -> list[tuple[int, int]]:
    """(epoch, index) of every example of a batch."""
    assert batch.labels is not None
    ids = batch.token_ids[batch.first].tolist()
    return list(zip(batch.labels.tolist(), ids, strict=True))


@pytest.mark.parametrize("by", BY, ids=IDS)
def test_each_example_once_an_epoch_in_another_order(by: dict[str, int]):
    batches = Loader(Numbers(100), seed=1, **by).batches(Position())
    seen: list[tuple[int, int]] = []
    while len(seen) < 300:
        batch, _ = next(batches)
        seen += numbers(batch)
    orders = [[i for epoch, i in seen[:300] if epoch == e] for e in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in [*orders, range(100)]}) == 4
    assert [epoch for epoch, _ in seen] == sorted(epoch for epoch, _ in seen)
    other = numbers(next(Loader(Numbers(100), seed=2, **by).batches(Position()))[0])
    assert other != seen[: len(other)]


@pytest.mark.parametrize("by", BY, ids=IDS)
def test_a_position_is_enough_to_go_on(by: dict[str, int]):
    loader = Loader(Numbers(53), seed=3, **by)
    whole = list(islice(loader.batches(Position()), 30))
    for at in (0, 3, 11, 23):
        rest = list(islice(loader.batches(whole[at][1]), 29 - at))
        assert [p for _, p in rest] == [p for _, p in whole[at + 1 :]]
        for (again, _), (first, _) in zip(rest, whole[at + 1 :], strict=True):
            assert numbers(again) == numbers(first)
            assert again.token_ids.equal(first.token_ids)
            assert again.layout.lengths == first.layout.lengths


def test_batches_by_the_token_fill_up():
    loader = Loader(Numbers(100), seed=0, batch_tokens=40)
    batches = list(islice(loader.batches(Position()), 40))
    assert all(32 <= batch.tokens <= 40 for batch, _ in batches)
    # The last batch of an epoch runs on into the next one.
    assert any(len({epoch for epoch, _ in numbers(batch)}) == 2 for batch, _ in batches)
    long = Loader(Numbers(9), seed=0, batch_tokens=4).batches(Position())
    sizes = sorted(next(long)[0].tokens for _ in range(6))
    assert sizes[-1] > 4  # an example that is too long is a batch of its own


def test_batches_by_the_example_end_with_the_epoch():
    loader = Loader(Numbers(20), seed=0, batch_size=8)
    assert loader.batches_per_epoch() == 3
    batches = list(islice(loader.batches(Position()), 6))
    assert [batch.sequences for batch, _ in batches] == [8, 8, 4] * 2
    assert batches[2][1] == Position(1, 0)


def test_once_is_every_example_in_order():
    batches = list(batches_once(Numbers(30), batch_tokens=25))
    assert [n for batch in batches for n in numbers(batch)] == [(0, i) for i in range(30)]
    assert all(batch.tokens <= 25 for batch in batches)
    assert list(batches_once(Numbers(0), batch_tokens=25)) == []


def loader_threads() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t is not threading.current_thread()}


def test_the_thread_ends_when_the_batches_are_closed():
    before = loader_threads()
    batches = Loader(Numbers(1000), seed=0, batch_size=2).batches(Position())
    next(batches)
    started = loader_threads() - before
    assert len(started) == 1
    batches.close()  # pyright: ignore[reportAttributeAccessIssue]
    deadline = time.monotonic() + 20
    while any(t.is_alive() for t in started) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(t.is_alive() for t in started)


def test_an_error_in_the_data_reaches_the_caller():
    loader = Loader(Numbers(20, broken=13), seed=0, batch_size=1)
    batches = loader.batches(Position())
    order = np.random.default_rng((0, 0)).permutation(20).tolist()
    for index in order[: order.index(13)]:
        assert numbers(next(batches)[0]) == [(0, index)]
    with pytest.raises(OSError, match="example 13 cannot be read"):
        next(batches)


def test_a_batch_without_a_size_is_refused():
    with pytest.raises(ValueError, match="give batch_tokens or batch_size"):
        Loader(Numbers(20), seed=0)


@pytest.mark.parametrize("by", BY, ids=IDS)
def test_no_examples_are_an_error_not_a_wait(by: dict[str, int]):
    with pytest.raises(ValueError, match="no examples"):
        next(Loader(Numbers(0), seed=0, **by).batches(Position()))


def test_a_batch_of_many_tokens_comes_in_pieces():
    whole = Loader(Numbers(50), seed=4, batch_size=12)
    loader = Loader(Numbers(50), seed=4, batch_size=12, most_tokens=20)
    pieces = loader.batches(Position())
    for batch, after in islice(whole.batches(Position()), 9):
        seen, continues_step = [], True
        while continues_step:
            piece, place = next(pieces)
            assert piece.tokens <= 20
            seen += numbers(piece)
            continues_step = piece.continues_step
        assert seen == numbers(batch)
        assert place == after
        assert not batch.continues_step
    long, _ = next(Loader(Numbers(9), seed=0, batch_size=9, most_tokens=3).batches(Position()))
    assert long.sequences == 1 or long.tokens <= 3


def test_a_batch_holds_its_examples_twice_in_the_same_order():
    once_each, _ = next(Loader(Numbers(30), seed=5, batch_size=6).batches(Position()))
    twice, _ = next(Loader(Numbers(30), seed=5, batch_size=6, repeat=2).batches(Position()))
    assert numbers(twice) == numbers(once_each) * 2


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_sequences_are_grouped_ahead_for_a_cpu_alone(device: str):
    batches = Loader(Numbers(20), seed=1, batch_size=5, device=device).batches(Position())
    batch, _ = next(batches)
    batches.close()
    assert ("grouping" in vars(batch.layout)) == (device == "cpu")
