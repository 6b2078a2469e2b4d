"""Batches requests of all clients by tokens and computes one batch at a time.

A single thread computes, because torch uses all cores for a batch. Everything in the queue when it
becomes free forms the next batch, so a single request never waits for others. It must be the main
thread: with a second thread team, OpenMP lets all threads sleep between operations, and short texts
take 50% longer.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ownbert.exceptions import InputError, is_out_of_memory
from ownbert.serve.exchange import Refusal, bad_field

# Computes the results of several items, in order.
Compute = Callable[[list[Any]], Sequence[Any]]
# Weight of the last batch in the running average of the speed.
_LAST = 0.2
# Requests resumed in one turn of the event loop: each takes about a millisecond.
_REQUESTS_PER_TURN = 8


@dataclass(eq=False)
class QueuedRequest:
    """A job: items of a request that are computed together.

    Args:
        key: jobs with equal keys may share a batch, which ``compute`` computes.
        deadline: time (``time.monotonic``) after which the result is not needed.
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
    """A queue limited by tokens, processed by ``run``.

    Args:
        batch_tokens: maximum tokens of a batch, unless a single job has more.
        queue_tokens: maximum tokens in the queue; further jobs are rejected.
        on_batch: called after each batch with its tokens and seconds.
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
        """Append a job to the queue; a ``Refusal`` if the queue is full, or too long for the job's
        deadline."""
        with self._changed:
            if self._closed:
                raise Refusal(503, "the server is shutting down", "shutting_down", retry_after=1)
            # An empty queue accepts a request of any permitted size.
            full = self.waiting + job.tokens > self.queue_tokens
            if self._jobs and (full or self._would_be_late(job)):
                message = f"{self.waiting:,} tokens are queued; try again later"
                seconds = math.ceil(self.waiting / self.speed) if self.speed else 1
                raise Refusal(429, message, "queue_full", retry_after=max(1, min(60, seconds)))
            self._jobs.append(job)
            self.waiting += job.tokens
            self._changed.notify()

    def _would_be_late(self, job: QueuedRequest) -> bool:
        """Whether the queue would take more than about a quarter of the job's time."""
        left = job.deadline - time.monotonic()
        return 0 < self.speed * left / 4 < self.waiting + self._computing

    async def answer(
        self, key: Hashable, compute: Compute, items: list[Any], tokens: int, seconds: float
    ) -> QueuedRequest:
        """Wait for the results of items, or raise the ``Refusal`` that prevents them; if the caller
        is cancelled, the job leaves the queue."""
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
            raise bad_field(job.error.message)
        if job.error is not None and is_out_of_memory(job.error):
            raise Refusal(
                503,
                "the server is out of memory; send fewer or shorter texts, or start it with a "
                f"lower --batch-tokens (now {self.batch_tokens:,})",
                "out_of_memory",
            ) from job.error
        if job.error is not None:
            raise Refusal(500, "the model failed on this request", "failed") from job.error
        return job

    def close(self) -> None:
        """Reject new jobs; jobs in the queue are still computed."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def run(self) -> None:
        """Compute jobs until the queue is closed and empty."""
        ended = 0.0
        while batch := self._next_batch():
            start = time.monotonic()
            tokens = self._computing
            _compute(batch)
            seconds = time.monotonic() - start
            self.on_batch(tokens, seconds)
            for job in batch:
                job.waited, job.computed = start - job.queued, seconds
                job.done(job)
            # Includes the time between batches, in which other threads may use the processor.
            started, ended = max(ended, batch[0].queued), time.monotonic()
            measured = tokens / max(ended - started, 1e-6)
            self.speed += (measured - self.speed) * (_LAST if self.speed else 1)

    def _next_batch(self) -> list[QueuedRequest]:
        """The oldest job and others that fit beside it; empty at the end."""
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
    """Compute jobs together; if that fails, one by one, so that a bad job does not affect
    others."""
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


class Turns:
    """Resumes a few of the waiting requests in each turn of the event loop.

    If hundreds were resumed at once, requests that arrive meanwhile would wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Wait for the caller's turn, first come, first served."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._release_next)
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _release_next(self) -> None:
        for _ in range(min(_REQUESTS_PER_TURN, len(self._waiting))):
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled
                turn.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._release_next)
