"""Examples in a shuffled order, packed into batches; the position in them is two numbers."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from ownbert.batches.batch import Batch, Example, pack
from ownbert.errors import InputError

# Batches prepared ahead of the step that uses them.
_PREFETCHED = 4


class Dataset(Protocol):
    """Examples by number; ``example`` must be a pure function.

    Attributes:
        sizes: (examples), their lengths in tokens, exact or nominal; batches are formed by them, so
            that no example has to be made for that.
    """

    @property
    def sizes(self) -> Any: ...  # an array
    def __len__(self) -> int: ...
    def example(self, epoch: int, index: int) -> Example: ...


@dataclass(frozen=True)
class Position:
    """The next example: number ``index`` of the shuffled ``epoch``."""

    epoch: int = 0
    index: int = 0


# An example that is not made yet: its epoch and its number.
_Key = tuple[int, int]


@dataclass(frozen=True)
class Loader:
    """Endless batches of examples, by the number of tokens or of examples.

    Args:
        data: the examples.
        seed: of the order.
        batch_tokens: a batch takes examples while they fit, and continues into the next epoch.
        batch_size: a batch has this many examples, and the last one of an epoch is smaller.
        process, processes: each process gets its share of every batch, about equal in tokens; which
            batches there are does not depend on how many processes share them.
        repeat: how often each batch holds its examples, one time after the other.
        most_tokens: a larger batch is split into several, which together replace it
            (``Batch.continues_step``).
        device: the type of the device that batches go to; for a CPU the loader also groups their
            sequences, for another one that is done there, and often not needed.
        precision: that they are computed in, on which their groups depend.

    Raises:
        ValueError: neither ``batch_tokens`` nor ``batch_size`` is given.
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
        """Batches from a position on, prefetched by a thread.

        Close the generator when done, or a thread of torch outlives its interpreter and aborts the
        process.

        Yields:
            (batch, position after it).

        Raises:
            InputError: there is no example.
        """
        return _prefetch(
            (batch, after) for keys, after in self._keys(position) for batch in self._make(keys)
        )

    def _keys(self, position: Position) -> Iterator[tuple[list[_Key], Position]]:
        """The examples of each batch, and the position after it."""
        keys: list[_Key] = []
        tokens, epoch, index = 0, position.epoch, position.index
        if not len(self.data):
            raise InputError("there are no examples to learn from")
        sizes = self.data.sizes
        while True:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(sizes))
            for place in range(index, len(order)):
                number = int(order[place])
                if keys and self.batch_tokens and tokens + sizes[number] > self.batch_tokens:
                    yield keys, Position(epoch, place)
                    keys, tokens = [], 0
                keys.append((epoch, number))
                tokens += int(sizes[number])
                if len(keys) == self.batch_size:
                    yield keys, Position(epoch, place + 1)
                    keys, tokens = [], 0
            epoch, index = epoch + 1, 0
            if self.batch_size and keys:
                yield keys, Position(epoch, index)
                keys, tokens = [], 0

    def _make(self, keys: Sequence[_Key]) -> Iterator[Batch]:
        share = self._share(keys)
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
        """The examples of a batch, split where they would have more than ``most_tokens``."""
        start = tokens = 0
        for place, (_, number) in enumerate(keys):
            size = int(self.data.sizes[number]) * self.repeat
            if self.most_tokens and place > start and tokens + size > self.most_tokens:
                yield keys[start:place]
                start, tokens = place, 0
            tokens += size
        yield keys[start:]

    def _share(self, keys: Sequence[_Key]) -> Sequence[_Key]:
        """The examples of this process: each goes, longest first, to the one with the least."""
        if self.processes == 1:
            return keys
        sizes = self.data.sizes[[number for _, number in keys]]
        loads, mine = [0] * self.processes, []
        for place in np.argsort(-sizes, kind="stable"):
            least = loads.index(min(loads))
            loads[least] += int(sizes[place])
            if least == self.process:
                mine.append(place)
        return [keys[place] for place in sorted(mine)]

    def batches_per_epoch(self) -> int:
        """How many batches an epoch has.

        With ``batch_tokens`` the first epoch, including the batch that continues into the second.
        """
        if self.batch_size:
            return -(-len(self.data) // self.batch_size)
        batches = enumerate(self._keys(Position()), 1)
        return next(number for number, (_, after) in batches if after.epoch)


def batches_once(data: Dataset, *, batch_tokens: int, epoch: int = 0) -> Iterator[Batch]:
    """Every example once, in order, for evaluation.

    Args:
        data: the examples.
        batch_tokens: how many tokens a batch has at most, unless one example alone has more.
        epoch: of the examples.
    """
    examples: list[Example] = []
    tokens = 0
    for index in range(len(data)):
        example = data.example(epoch, index)
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
    # Computed here, in the thread, and cached with the layouts.
    for layout in (batch.layout, batch.cross, batch.source and batch.source.layout):
        _ = layout and layout.grouping
    return batch


def _prefetch(
    batches: Iterator[tuple[Batch, Position]],
) -> Generator[tuple[Batch, Position], None, None]:
    """Run an iterator in a thread; its exception is raised in place of its next item."""
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
        # Room for the item that the thread may be waiting to hand over; it makes no other.
        with contextlib.suppress(queue.Empty):
            ready.get_nowait()
        # A thread that is still inside torch when the interpreter ends aborts the process.
        thread.join()
