"""Examples in a shuffled order, packed into batches; where it stands is two numbers."""

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ownbert.data.batch import Batch, Example, pack
from ownbert.errors import InputError

# Batches made ahead of the step that uses them.
_AHEAD = 4


class Data(Protocol):
    """Examples by number; ``example`` must be a pure function."""

    def __len__(self) -> int: ...
    def example(self, epoch: int, index: int) -> Example: ...


@dataclass(frozen=True)
class Position:
    """The next example: number ``index`` of the shuffled ``epoch``."""

    epoch: int = 0
    index: int = 0


@dataclass(frozen=True)
class Loader:
    """Batches without end from ``data``, by the token or by the example.

    With ``batch_tokens`` a batch takes examples while they fit and runs on into the next epoch;
    with ``batch_size`` the last batch of an epoch is smaller.
    """

    data: Data
    seed: int
    batch_tokens: int = 0
    batch_size: int = 0

    def batches(self, position: Position) -> Generator[tuple[Batch, Position], None, None]:
        """(batch, position after it) from ``position`` on, made ahead in a thread; close it when
        done, or a thread of torch outlives its interpreter and aborts the process."""
        return _ahead(self._batches(position))

    def _batches(self, position: Position) -> Iterator[tuple[Batch, Position]]:
        examples: list[Example] = []
        tokens, epoch, index = 0, position.epoch, position.index
        if not len(self.data):
            raise InputError("there are no examples to learn from")
        while True:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(self.data))
            while index < len(order):
                example = self.data.example(epoch, int(order[index]))
                size = len(example.token_ids)
                if examples and self.batch_tokens and tokens + size > self.batch_tokens:
                    yield _packed(examples), Position(epoch, index)
                    examples, tokens = [], 0
                examples.append(example)
                tokens += size
                index += 1
                if len(examples) == self.batch_size:
                    yield _packed(examples), Position(epoch, index)
                    examples, tokens = [], 0
            epoch, index = epoch + 1, 0
            if self.batch_size and examples:
                yield _packed(examples), Position(epoch, index)
                examples, tokens = [], 0

    def batches_per_epoch(self) -> int:
        """How many batches of ``batch_size`` an epoch has."""
        return -(-len(self.data) // self.batch_size)


def once(data: Data, *, batch_tokens: int, epoch: int = 0) -> Iterator[Batch]:
    """Every example once, in order, in batches of about ``batch_tokens`` (for evaluation)."""
    examples: list[Example] = []
    tokens = 0
    for index in range(len(data)):
        example = data.example(epoch, index)
        if examples and tokens + len(example.token_ids) > batch_tokens:
            yield _packed(examples)
            examples, tokens = [], 0
        examples.append(example)
        tokens += len(example.token_ids)
    if examples:
        yield _packed(examples)


def _packed(examples: list[Example]) -> Batch:
    batch = pack(examples)
    _ = batch.layout.grouping  # made here, in the thread, and kept with the layout
    return batch


def _ahead(
    batches: Iterator[tuple[Batch, Position]],
) -> Generator[tuple[Batch, Position], None, None]:
    """Run an iterator in a thread; its exception is raised where its item would have come."""
    ready: queue.Queue = queue.Queue(_AHEAD)
    stop = threading.Event()

    def put(item: object) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in batches:
                if not put(item):
                    return
        except BaseException as error:
            put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        # A thread that is still inside torch when the interpreter ends aborts the process.
        thread.join()
