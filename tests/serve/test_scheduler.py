"""The queue: common batches, its bound in tokens, deadlines, and what leaves it."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ownbert.exceptions import InputError
from ownbert.serve.exchange import Refusal
from ownbert.serve.scheduler import QueuedRequest, Scheduler


class Worker:
    """Doubles numbers, once it may; remembers what came together."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.started = threading.Event()
        self.batches: list[list[Any]] = []

    def __call__(self, items: list[Any]) -> list[Any]:
        self.started.set()
        assert self.may.wait(20)
        self.batches.append(items)
        if "bad" in items:
            raise InputError("bad is no number")
        if "large" in items:
            torch.empty(1 << 60)
        if "odd" in items:
            raise ZeroDivisionError
        return [2 * item for item in items]


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def scheduler(worker: Worker) -> Iterator[Scheduler]:
    made = Scheduler(batch_tokens=10, queue_tokens=20)
    thread = threading.Thread(target=made.run)
    thread.start()
    yield made
    worker.may.set()
    made.close()
    thread.join()


async def answers(scheduler: Scheduler, worker: Worker, *requests: Any, seconds: float = 20) -> Any:
    """The answers to (items, tokens), which come while the first of them is being computed."""

    async def one(items: list[Any], tokens: int) -> Any:
        job = await scheduler.answer("key", worker, items, tokens, seconds)
        return list(job.answers or ())

    first = asyncio.ensure_future(one(*requests[0]))
    await asyncio.to_thread(worker.started.wait, 20)
    rest = [asyncio.ensure_future(one(*each)) for each in requests[1:]]
    await asyncio.sleep(0.05)
    worker.may.set()
    return await asyncio.gather(first, *rest, return_exceptions=True)


def test_what_waits_is_computed_together_up_to_the_tokens_of_a_batch(scheduler, worker: Worker):
    requests = [([1], 1), ([2, 3], 4), ([4], 5), ([5], 3), ([6], 7)]
    assert asyncio.run(answers(scheduler, worker, *requests)) == [[2], [4, 6], [8], [10], [12]]
    assert worker.batches == [[1], [2, 3, 4], [5, 6]]


def test_a_full_queue_refuses_and_says_when_to_come_back(scheduler, worker: Worker):
    found = asyncio.run(answers(scheduler, worker, ([1], 1), ([2], 15), ([3], 6), ([4], 5)))
    assert found[:2] == [[2], [4]]
    assert isinstance(found[2], Refusal)
    assert (found[2].status, found[2].retry_after) == (429, 1)
    assert found[3] == [8]


def test_a_request_larger_than_the_queue_is_taken_where_nothing_waits(scheduler, worker: Worker):
    worker.may.set()
    job = asyncio.run(scheduler.answer("key", worker, [1], 1000, 20))
    assert list(job.answers or ()) == [2]
    assert scheduler.waiting == 0


def test_a_bad_request_spoils_no_other(scheduler, worker: Worker):
    found = asyncio.run(
        answers(scheduler, worker, ([1], 1), ([2], 2), (["bad"], 2), (["odd"], 2), ([3], 2))
    )
    assert [found[i] for i in (0, 1, 4)] == [[2], [4], [6]]
    assert [error.status for error in found[2:4]] == [422, 500]
    assert found[2].message == "bad is no number"


def test_a_request_for_which_memory_does_not_suffice_is_told_what_to_lower(scheduler, worker):
    found = asyncio.run(answers(scheduler, worker, ([1], 1), (["large"], 2), ([3], 2)))
    assert (found[0], found[2]) == ([2], [6])
    assert (found[1].status, found[1].code) == (503, "out_of_memory")
    assert "lower --batch-tokens (now 10)" in found[1].message


def test_nothing_is_computed_for_who_no_longer_waits(scheduler, worker: Worker):
    async def run() -> list[Any]:
        first = asyncio.ensure_future(scheduler.answer("key", worker, [1], 1, 20))
        await asyncio.to_thread(worker.started.wait, 20)
        cancelled = asyncio.ensure_future(scheduler.answer("key", worker, [2], 1, 20))
        late = asyncio.ensure_future(scheduler.answer("key", worker, [3], 1, 0.02))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.sleep(0.05)
        worker.may.set()
        return await asyncio.gather(first, cancelled, late, return_exceptions=True)

    found = asyncio.run(run())
    assert isinstance(found[1], asyncio.CancelledError)
    assert (found[2].status, found[2].code) == (504, "deadline")
    assert worker.batches == [[1]]
    assert scheduler.waiting == 0


def test_what_waits_is_answered_before_the_end(worker: Worker):
    scheduler = Scheduler(batch_tokens=1, queue_tokens=100)
    thread = threading.Thread(target=scheduler.run)
    thread.start()

    async def run() -> list[Any]:
        waiting = [
            asyncio.ensure_future(scheduler.answer("key", worker, [i], 1, 20)) for i in range(5)
        ]
        await asyncio.sleep(0)
        scheduler.close()
        with pytest.raises(Refusal, match="shutting down"):
            await scheduler.answer("key", worker, [9], 1, 20)
        worker.may.set()
        await asyncio.to_thread(thread.join)
        return [list(job.answers or ()) for job in await asyncio.gather(*waiting)]

    assert asyncio.run(run()) == [[0], [2], [4], [6], [8]]


def test_what_would_wait_too_long_is_refused_at_once():
    scheduler = Scheduler(batch_tokens=10, queue_tokens=1000)
    scheduler.speed = 10.0
    added = []
    for seconds in (1, 1, 10):  # tokens wait for 0, 2 and 2 seconds
        job = QueuedRequest("key", list, [1], 20, time.monotonic() + seconds, added.append)
        if len(scheduler._jobs) == 1 and seconds == 1:
            with pytest.raises(Refusal) as refused:
                scheduler.submit(job)
            assert (refused.value.status, refused.value.retry_after) == (429, 2)
        else:
            scheduler.submit(job)
    assert scheduler.waiting == 40
