"""Loads examples in shuffled order as packed batches; a position is an epoch and an index."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.exceptions import InputError

# Number of batches prepared in advance.
_PREFETCHED = 4


class Dataset(Protocol):
    """Examples by index; ``example`` must be a pure function. ``sizes`` (examples) are lengths in
    tokens, exact or nominal, for forming batches without creating examples."""

    @property
    def sizes(self) -> Any: ...  # an array
    def __len__(self) -> int: ...
    def example(self, epoch: int, index: int) -> Example: ...


@dataclass(frozen=True)
class Position:
    """The next example: number ``index`` of the shuffled ``epoch``."""

    epoch: int = 0
    index: int = 0


# An example that is not created yet: its epoch and index.
_Key = tuple[int, int]


@dataclass(frozen=True)
class Loader:
    """Endless batches, limited by the number of tokens or of examples.

    Args:
        seed: seed of the order.
        batch_tokens: maximum tokens of a batch, which may continue into the next epoch.
        batch_size: number of examples per batch; the last batch of an epoch is smaller.
        process, processes: index of this process, and number of processes. Each gets a share of
            every batch, with about equal numbers of tokens; the batches do not depend on the number
            of processes.
        repeat: number of copies of the examples in each batch, one after the other.
        most_tokens: larger batches are split into several for one step (``Batch.continues_step``);
            0: never.
        device: type of the target device; for a CPU the loader also groups sequences, which other
            devices do themselves, if at all.
        precision: precision of the computation, which affects the groups.
    """

    data: Dataset
    seed: int
    batch_tokens: int = 0
    batch_size: int = 0
    process: int = 0
    processes: int = 1
    repeat: int = 1
    most_tokens: int = 0
    device: str = "cpu"
    precision: str = "float32"

    def __post_init__(self) -> None:
        if self.batch_tokens < 1 and self.batch_size < 1:
            raise ValueError("a batch would never be full; give batch_tokens or batch_size")

    def batches(self, position: Position) -> Generator[tuple[Batch, Position], None, None]:
        """Yield batches from a position on, prefetched by a thread, each with the position after
        it.

        Close the generator when done; otherwise a thread of torch may outlive the interpreter and
        abort the process.
        """
        return _prefetch(
            (batch, after) for keys, after in self._keys(position) for batch in self._make(keys)
        )

    def _keys(self, position: Position) -> Iterator[tuple[list[_Key], Position]]:
        """Yield the examples of each batch, and the position after it."""
        keys: list[_Key] = []
        tokens, epoch, index = 0, position.epoch, position.index
        if not len(self.data):
            raise InputError("there are no examples to learn from")
        sizes = self.data.sizes
        while True:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(sizes))
            for i in range(index, len(order)):
                number = int(order[i])
                if keys and self.batch_tokens and tokens + sizes[number] > self.batch_tokens:
                    yield keys, Position(epoch, i)
                    keys, tokens = [], 0
                keys.append((epoch, number))
                tokens += int(sizes[number])
                if len(keys) == self.batch_size:
                    yield keys, Position(epoch, i + 1)
                    keys, tokens = [], 0
            epoch, index = epoch + 1, 0
            if self.batch_size and keys:
                yield keys, Position(epoch, index)
                keys, tokens = [], 0

    def _make(self, keys: Sequence[_Key]) -> Iterator[Batch]:
        share = self._examples_of_process(keys)
        if not share:
            batch = self._packed(keys[:1])
            yield replace(batch, dummy=True)
            return
        splits = list(self._split(share))
        for number, split in enumerate(splits, 1):
            yield replace(self._packed(split), continues_step=number < len(splits))

    def _packed(self, keys: Sequence[_Key]) -> Batch:
        examples = [self.data.example(*key) for key in keys] * self.repeat
        with torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16"):
            return _pack(examples, self.device)

    def _split(self, keys: Sequence[_Key]) -> Iterator[Sequence[_Key]]:
        """Split the examples of a batch that exceed ``most_tokens``."""
        start = tokens = 0
        for i, (_, number) in enumerate(keys):
            size = int(self.data.sizes[number]) * self.repeat
            if self.most_tokens and i > start and tokens + size > self.most_tokens:
                yield keys[start:i]
                start, tokens = i, 0
            tokens += size
        yield keys[start:]

    def _examples_of_process(self, keys: Sequence[_Key]) -> Sequence[_Key]:
        """The examples of this process; the longest are assigned first, each to the process with
        the fewest tokens."""
        if self.processes == 1:
            return keys
        sizes = self.data.sizes[[number for _, number in keys]]
        loads, mine = [0] * self.processes, []
        for i in np.argsort(-sizes, kind="stable"):
            lightest = loads.index(min(loads))
            loads[lightest] += int(sizes[i])
            if lightest == self.process:
                mine.append(i)
        return [keys[i] for i in sorted(mine)]

    def batches_per_epoch(self) -> int:
        """Number of batches per epoch; with ``batch_tokens``, that of the first epoch, including
        the batch that continues into the second."""
        if self.batch_size:
            return -(-len(self.data) // self.batch_size)
        batches = enumerate(self._keys(Position()), 1)
        return next(number for number, (_, after) in batches if after.epoch)


def batches_once(data: Dataset, *, batch_tokens: int) -> Iterator[Batch]:
    """Yield every example of epoch 0 once, in order, for evaluation, with at most ``batch_tokens``
    tokens in a batch, unless a single example has more."""
    examples: list[Example] = []
    tokens = 0
    for index in range(len(data)):
        example = data.example(0, index)
        if examples and tokens + len(example.token_ids) > batch_tokens:
            yield _pack(examples)
            examples, tokens = [], 0
        examples.append(example)
        tokens += len(example.token_ids)
    if examples:
        yield _pack(examples)


def _pack(examples: list[Example], device: str = "cpu") -> Batch:
    batch = pack(examples)
    if device != "cpu":
        return batch
    # Computed in the loader's thread, and cached in the layouts.
    for layout in (batch.layout, batch.cross, batch.source and batch.source.layout):
        _ = layout and layout.grouping
    return batch


def _prefetch(
    batches: Iterator[tuple[Batch, Position]],
) -> Generator[tuple[Batch, Position], None, None]:
    """Run an iterator in a thread; its exception is raised instead of the next item."""
    ready: queue.Queue = queue.Queue(_PREFETCHED)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in batches:
                ready.put(item)
                if stop.is_set():
                    return
        except BaseException as error:
            ready.put(error)

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
        # Make room for an item that the thread may be waiting to add.
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()
        # A thread that is inside torch when the interpreter exits aborts the process.
        thread.join()
