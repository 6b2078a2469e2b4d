"""Requests of all clients, joined into batches by their tokens and computed one after the other.

One thread computes, since torch uses all cores for a batch. Whatever waits when it is free makes
the next batch, so a single request never waits for others to come. It has to be the main thread:
with a second team of threads OpenMP lets all of them sleep between operations, which makes short
texts half as slow again.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ownbert.errors import InputError
from ownbert.serve.api.refusals import Refusal, bad_field

# Computes the answers to several items, in their order.
Compute = Callable[[list[Any]], Sequence[Any]]
# Of the measured speed, how much the last batch counts.
_LAST = 0.2


@dataclass(eq=False)
class QueuedRequest:
    """Items of one request that are answered together.

    Args:
        key: jobs of the same key may be in one batch.
        compute: answers the items of such jobs.
        items: what to answer.
        tokens: of all items.
        deadline: the time (``time.monotonic``) at which nobody waits any longer.
        done: called in the computing thread with the finished job.
    """

    key: Hashable
    compute: Compute
    items: list[Any]
    tokens: int
    deadline: float
    done: Callable[["QueuedRequest"], None]
    queued: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    answers: Sequence[Any] | None = None
    error: BaseException | None = None
    waited: float = 0.0
    computed: float = 0.0


class Scheduler:
    """A queue that is bounded in tokens; ``run`` empties it.

    Args:
        batch_tokens: of one batch, unless a single job has more.
        queue_tokens: that may wait; what comes beyond is refused.
        on_batch: called after each batch with its tokens and its seconds.
    """

    def __init__(
        self,
        *,
        batch_tokens: int,
        queue_tokens: int,
        on_batch: Callable[[int, float], None] = lambda tokens, seconds: None,
    ) -> None:
        self.batch_tokens, self.queue_tokens = batch_tokens, queue_tokens
        self.on_batch = on_batch
        self.waiting = 0  # tokens
        self.speed = 0.0  # tokens per second
        self._computing = 0  # tokens
        self._jobs: deque[QueuedRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def submit(self, job: QueuedRequest) -> None:
        """Put a job at the end of the queue.

        Raises:
            Refusal: the queue is full, or too long for the job's deadline; the refusal says when to
                come back.
        """
        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is shutting down", "shutting_down", retry_after=1)
            # An empty queue takes whatever a request may have.
            full = self.waiting + job.tokens > self.queue_tokens
            if self._jobs and (full or self._late(job)):
                raise Refusal(
                    429,
                    f"{self.waiting:,} tokens are waiting; come back later",
                    "queue_full",
                    retry_after=self._seconds_until_free(),
                )
            self._jobs.append(job)
            self.waiting += job.tokens
            self._changed.notify()

    def _late(self, job: QueuedRequest) -> bool:
        """Whether what waits takes a quarter of the time that a job has, about, or more."""
        left = job.deadline - time.monotonic()
        return 0 < self.speed * left / 4 < self.waiting + self._computing

    def _seconds_until_free(self) -> int:
        return max(1, min(60, math.ceil(self.waiting / self.speed))) if self.speed else 1

    async def answer(
        self, key: Hashable, compute: Compute, items: list[Any], tokens: int, seconds: float
    ) -> QueuedRequest:
        """Wait for the answers to some items; a caller that is cancelled leaves the queue.

        Raises:
            Refusal: the queue is full, the seconds are over, or the items cannot be answered.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[QueuedRequest] = loop.create_future()

        def done(job: QueuedRequest) -> None:
            loop.call_soon_threadsafe(lambda: future.done() or future.set_result(job))

        job = QueuedRequest(key, compute, items, tokens, time.monotonic() + seconds, done)
        self.submit(job)
        try:
            await asyncio.wait_for(future, seconds)
        except (TimeoutError, asyncio.TimeoutError):  # two classes before Python 3.11
            raise Refusal(504, f"no answer within {seconds:g} seconds", "deadline") from None
        finally:
            job.cancelled = not future.done() or future.cancelled()
        if isinstance(job.error, Refusal):
            raise job.error
        if isinstance(job.error, InputError):
            raise bad_field(str(job.error))
        if job.error is not None:
            raise Refusal(500, "the model failed on this request", "failed") from job.error
        return job

    def close(self) -> None:
        """Accept nothing more; what waits is answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Compute what comes, until the queue is closed and empty."""
        ended = 0.0
        while batch := self._next_batch():
            began = time.monotonic()
            tokens = self._computing
            _compute(batch)
            seconds = time.monotonic() - began
            self.on_batch(tokens, seconds)
            for job in batch:
                job.waited, job.computed = began - job.queued, seconds
                job.done(job)
            # What lies between two batches counts: other threads may have the processor then.
            started, ended = max(ended, batch[0].queued), time.monotonic()
            measured = tokens / max(ended - started, 1e-6)
            self.speed += (measured - self.speed) * (_LAST if self.speed else 1)

    def _next_batch(self) -> list[QueuedRequest]:
        """The oldest job and those that fit beside it; none at the end."""
        with self._changed:
            while True:
                self._drop_abandoned()
                self._computing = 0
                if self._jobs:
                    break
                if self._closed:
                    return []
                self._changed.wait()
            first = self._jobs[0]
            batch, rest, tokens = [], deque(), 0
            for job in self._jobs:
                fits = not batch or tokens + job.tokens <= self.batch_tokens
                if job.key == first.key and fits:
                    batch.append(job)
                    tokens += job.tokens
                else:
                    rest.append(job)
            self._jobs = rest
            self.waiting -= tokens
            self._computing = tokens
            return batch

    def _drop_abandoned(self) -> None:
        now = time.monotonic()
        kept = deque(job for job in self._jobs if not job.cancelled and job.deadline > now)
        self._jobs, self.waiting = kept, sum(job.tokens for job in kept)


def _compute(batch: Sequence[QueuedRequest]) -> None:
    """Answer the jobs together, or, if that fails, each by itself: a bad one spoils no other."""
    try:
        answers = batch[0].compute([item for job in batch for item in job.items])
    except Exception as error:
        if len(batch) == 1:
            batch[0].error = error
        else:
            for job in batch:
                _compute([job])
        return
    at = 0
    for job in batch:
        job.answers = answers[at : at + len(job.items)]
        at += len(job.items)
