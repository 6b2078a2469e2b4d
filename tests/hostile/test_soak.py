"""A server at four times its capacity, for as long as ``OWNBERT_SOAK_SECONDS`` says: whatever it
accepts is answered, it stays alive, and its memory does not grow."""

import asyncio
import json
import os
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from hostile.test_requests import longest_wait, resident
from support.serving import Served, served
from support.tiny import made

SECONDS = float(os.environ.get("OWNBERT_SOAK_SECONDS", "60"))
# Seconds in which the capacity is measured, and clients that do so.
MEASURED, CLIENTS = 5.0, 16
OVERLOAD = 4
# Connections, a few less than a server takes by default, and the share of clients that leave.
CONNECTIONS, LEAVING = 900, 0.02
# Megabytes: above the loaded model, and from the first half of the soak to the second.
MOST, GROWTH = 500, 100


def bodies() -> list[tuple[float, str, Any]]:
    """Requests of all sizes: how often each is sent, its path and its body."""
    rng = random.Random(0)
    words = [" ".join(rng.choices("abcdef", k=k)) for k in (2, 5, 10, 20, 50, 100, 200)]
    return [
        (50, "/embed?model=vectors", {"inputs": words[2]}),
        (20, "/embed?model=vectors", {"inputs": words[5]}),
        (15, "/v1/classify", {"inputs": words, "model": "topics"}),
        (5, "/embed?model=vectors", {"inputs": [words[3]] * 64}),
        (5, "/tokenize?model=vectors", {"inputs": words[6] * 20}),
        (2, "/v1/classify", {"inputs": "a b c d " * 12_000, "model": "topics"}),
        (1, "/embed?model=vectors", {"inputs": ["a b c d " * 8_000] * 2}),
        (1, "/tokenize?model=vectors", {"inputs": "a b c d " * 30_000}),
        (1, "/rerank?model=vectors", {"query": words[3], "texts": words * 16}),
    ]


class Load:
    """Requests on connections that are kept open, and how many had which answer."""

    def __init__(self, server: Served) -> None:
        address = urlsplit(server.url)
        self.address = address.hostname, address.port
        self.status: Counter[int | str] = Counter()
        self.left = self.unsent = 0
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        rng, kinds = random.Random(1), bodies()
        chosen = rng.choices(kinds, [kind[0] for kind in kinds], k=1000)
        self._requests: Iterator[bytes] = iter(())
        self._chosen = [self._bytes(path, body) for _, path, body in chosen]

    @staticmethod
    def _bytes(path: str, body: Any) -> bytes:
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data

    def next_request(self) -> bytes:
        while (found := next(self._requests, None)) is None:
            self._requests = iter(self._chosen)
        return found

    async def ask(self, *, leave: bool = False) -> None:
        """Send the next request and wait for its answer, or leave at once."""
        try:
            given = self._free.pop() if self._free else None
            reader, writer = given or await asyncio.open_connection(*self.address)
            writer.write(self.next_request())
            await writer.drain()
            if leave:
                self.left += 1
                writer.close()
                return
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]
            await reader.readexactly(int(size))
            self.status[int(head.split(b" ", 2)[1])] += 1
            if b"connection: close" in head:
                writer.close()
            else:
                self._free.append((reader, writer))
        except (OSError, asyncio.IncompleteReadError) as error:
            self.status[type(error).__name__] += 1

    async def closed_loop(self, seconds: float) -> float:
        """Requests that are answered in a second."""
        ends = time.monotonic() + seconds

        async def client() -> None:
            while time.monotonic() < ends:
                await self.ask()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        return self.status[200] / seconds

    async def open_loop(self, rate: float, seconds: float) -> None:
        """Requests at random times, whether or not others are answered; some clients leave."""
        rng, due = random.Random(2), time.monotonic()
        ends, running = due + seconds, set[asyncio.Task[None]]()
        while (due := due + rng.expovariate(rate)) < ends:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if len(running) >= CONNECTIONS:
                self.unsent += 1
                continue
            task = asyncio.ensure_future(self.ask(leave=rng.random() < LEAVING))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)
        for _, writer in self._free:
            writer.close()


def answers(server: Served) -> Counter[int]:
    """How many requests of the load the server has answered with each status."""
    found: Counter[int] = Counter()
    paths = {path.partition("?")[0] for _, path, _ in bodies()}
    pattern = r'^ownbert_requests_total{path="(.+)",status="(\d+)"} (.+)$'
    for path, status, count in re.findall(pattern, server.get("/metrics")[1], re.M):
        if path in paths:
            found[int(status)] += int(float(count))
    return found


@pytest.mark.slow
def test_four_times_the_capacity(tmp_path: Path):
    size = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 512}
    made(tmp_path / "vectors", max_position_embeddings=256, **size)
    made(tmp_path / "topics", "classification", max_position_embeddings=256, **size)
    folders = [f"{name}={tmp_path / name}" for name in ("vectors", "topics")]
    with served(*folders, "--quiet") as server:
        before = resident(server.process.pid)
        first = Load(server)
        capacity = asyncio.run(first.closed_loop(MEASURED))
        stop, waits, memory, crashed = threading.Event(), [], [], []

        def watch_liveness() -> None:
            try:
                longest_wait(server, stop, waits)
            except (AssertionError, OSError) as error:
                crashed.append(error)

        def watch_memory() -> None:
            while not stop.wait(0.5):
                memory.append(resident(server.process.pid) - before)

        watches = [threading.Thread(target=watch_liveness), threading.Thread(target=watch_memory)]
        for watch in watches:
            watch.start()
        load = Load(server)
        try:
            asyncio.run(load.open_loop(OVERLOAD * capacity, SECONDS))
        finally:
            stop.set()
            for watch in watches:
                watch.join()
        halves = [max(half) for half in np.array_split(memory, 2)]
        print(
            f"{capacity:.0f} requests/s, {OVERLOAD} times as many for {SECONDS:.0f} s: "
            f"{dict(load.status)}, {load.left} left, {load.unsent} not sent; /livez "
            f"{len(waits)} times, median {np.median(waits):.3f} s, max {max(waits):.3f}; MB above "
            f"{before:.0f} in each half: {halves[0]:.0f} {halves[1]:.0f}"
        )
        assert not crashed
        # No connection was lost either. Where other programs take the processor, some requests
        # reach their deadline, which is an answer too; most are refused before.
        assert set(load.status) <= {200, 413, 429, 504}
        assert load.status[504] < load.status[200] / 4
        assert load.status[200] > 0.5 * capacity * SECONDS / OVERLOAD
        # What the server counts as answered has arrived, but for those who had left.
        sent = answers(server)
        assert 0 <= sent[200] - load.status[200] - first.status[200] <= load.left
        assert set(sent) <= {200, 413, 429, 499, 504}
        assert max(halves) < MOST
        assert halves[1] - halves[0] < GROWTH
