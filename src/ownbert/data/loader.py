"""Examples in a shuffled order, packed into batches; where it stands is two numbers."""

import contextlib
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ownbert.data.batch import Batch, Example, pack
from ownbert.errors import InputError

# Batches made ahead of the step that uses them.
_AHEAD = 4


class Data(Protocol):
    """Examples by number; ``example`` must be a pure function. ``sizes`` (N) are the lengths of
    the examples, or about that: batches are cut by them, so that nothing need be made for it."""

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
_Draw = tuple[int, int]


@dataclass(frozen=True)
class Loader:
    """Batches without end from ``data``, by the token or by the example.

    With ``batch_tokens`` a batch takes examples while they fit and runs on into the next epoch;
    with ``batch_size`` the last batch of an epoch is smaller. Of ``processes`` each gets its
    share of every batch, about equal in tokens; which batches there are does not depend on how
    many share them. repeat: how often each batch holds its examples, one time after the other.
    most_tokens: a batch of more is cut into several, which together are it
    (``Batch.continues_step``).
    """

    data: Data
    seed: int
    batch_tokens: int = 0
    batch_size: int = 0
    process: int = 0
    processes: int = 1
    repeat: int = 1
    most_tokens: int = 0

    def batches(self, position: Position) -> Generator[tuple[Batch, Position], None, None]:
        """(batch, position after it) from ``position`` on, made ahead in a thread; close it when
        done, or a thread of torch outlives its interpreter and aborts the process."""
        return _ahead(
            (batch, after) for draws, after in self._draws(position) for batch in self._made(draws)
        )

    def _draws(self, position: Position) -> Iterator[tuple[list[_Draw], Position]]:
        """What is in each batch, and the position after it."""
        draws: list[_Draw] = []
        tokens, epoch, index = 0, position.epoch, position.index
        if not len(self.data):
            raise InputError("there are no examples to learn from")
        sizes = self.data.sizes
        while True:
            order = np.random.default_rng((self.seed, epoch)).permutation(len(sizes))
            for place in range(index, len(order)):
                number = int(order[place])
                if draws and self.batch_tokens and tokens + sizes[number] > self.batch_tokens:
                    yield draws, Position(epoch, place)
                    draws, tokens = [], 0
                draws.append((epoch, number))
                tokens += int(sizes[number])
                if len(draws) == self.batch_size:
                    yield draws, Position(epoch, place + 1)
                    draws, tokens = [], 0
            epoch, index = epoch + 1, 0
            if self.batch_size and draws:
                yield draws, Position(epoch, index)
                draws, tokens = [], 0

    def _made(self, draws: Sequence[_Draw]) -> Iterator[Batch]:
        share = self._share(draws)
        if not share:
            yield replace(_packed([self.data.example(*draws[0])] * self.repeat), dummy=True)
            return
        pieces = list(self._pieces(share))
        for number, piece in enumerate(pieces, 1):
            batch = _packed([self.data.example(*draw) for draw in piece] * self.repeat)
            yield replace(batch, continues_step=number < len(pieces))

    def _pieces(self, draws: Sequence[_Draw]) -> Iterator[Sequence[_Draw]]:
        """The examples of a batch, cut where they would be more than ``most_tokens``."""
        start = tokens = 0
        for place, (_, number) in enumerate(draws):
            size = int(self.data.sizes[number]) * self.repeat
            if self.most_tokens and place > start and tokens + size > self.most_tokens:
                yield draws[start:place]
                start, tokens = place, 0
            tokens += size
        yield draws[start:]

    def _share(self, draws: Sequence[_Draw]) -> Sequence[_Draw]:
        """The examples of this process: the longest first, each goes to who has least so far."""
        if self.processes == 1:
            return draws
        sizes = self.data.sizes[[number for _, number in draws]]
        loads, mine = [0] * self.processes, []
        for place in np.argsort(-sizes, kind="stable"):
            least = loads.index(min(loads))
            loads[least] += int(sizes[place])
            if least == self.process:
                mine.append(place)
        return [draws[place] for place in sorted(mine)]

    def batches_per_epoch(self) -> int:
        """How many batches an epoch has; of ``batch_tokens`` the first, which runs on into the
        second."""
        if self.batch_size:
            return -(-len(self.data) // self.batch_size)
        draws = enumerate(self._draws(Position()), 1)
        return next(number for number, (_, after) in draws if after.epoch)


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
    # Made here, in the thread, and kept with the layouts.
    for layout in (batch.layout, batch.cross, batch.source and batch.source.layout):
        _ = layout and layout.grouping
    return batch


def _ahead(
    batches: Iterator[tuple[Batch, Position]],
) -> Generator[tuple[Batch, Position], None, None]:
    """Run an iterator in a thread; its exception is raised where its item would have come."""
    ready: queue.Queue = queue.Queue(_AHEAD)
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
