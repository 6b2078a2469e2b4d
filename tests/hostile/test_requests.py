"""Requests that nobody sends by accident: huge fields, crafted heads, clients that leave. Each is
answered or refused in bounds, and the server goes on."""

import json
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.serving import Served, served
from support.tiny import made

# Seconds that no request may hold up the others; a busy machine takes most of it.
PATIENCE = 2.0
LONG = "a b c d " * 62_500
# Bodies that are allowed to be sent; what is read as JSON, as a text, or refused by its fields.
BODIES: dict[str, tuple[str, Any]] = {
    "half a megabyte of tokens": ("/tokenize?model=vectors", {"inputs": LONG}),
    "many tokens": ("/tokenize?model=vectors", {"inputs": "a b c d " * 16_000}),
    "a text of eight megabytes": (
        "/v1/classify",
        {"inputs": "a b c d " * 980_000, "model": "topics"},
    ),
    "a long row": ("/v1/classify", {"inputs": LONG, "model": "topics"}),
    "many texts": ("/embed?model=vectors", {"inputs": ["a b c d"] * 150_000}),
    "numbers for texts": ("/rerank?model=vectors", {"query": "a", "texts": [1] * 200_000}),
    "texts for numbers": ("/decode?model=vectors", {"ids": ["a"] * 200_000}),
    "objects for texts": ("/v1/embeddings", {"input": [{}] * 100_000, "model": "vectors"}),
    "many keys": (
        "/v1/classify",
        b'{"inputs": {%s}}' % b",".join(b'"k%d": 1' % i for i in range(400_000)),
    ),
    "a long query": ("/rerank?model=vectors", {"query": LONG, "texts": [LONG] * 3}),
    "one word": ("/tokenize?model=vectors", {"inputs": "a" * 900_000}),
    "no end": ("/v1/classify", b'{"inputs": ' + b"[" * 2_000_000),
    "escapes": ("/tokenize?model=vectors", b'{"inputs": "' + b"\\\\ud800 " * 800_000 + b'"}'),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    base = tmp_path_factory.mktemp("hostile")
    made(base / "vectors")
    made(base / "topics", "classification")
    models = f"vectors={base / 'vectors'}", f"topics={base / 'topics'}"
    with served(*models, "--idle-seconds", 600) as found:  # however busy the machine is
        yield found


def longest_wait(server: Served, stop: threading.Event, waits: list[float]) -> None:
    while not stop.is_set():
        began = time.monotonic()
        assert server.get("/livez")[0] == 200
        waits.append(time.monotonic() - began)
        time.sleep(0.01)


def resident(pid: int) -> float:
    """Megabytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise ValueError(pid)


@pytest.mark.parametrize("name", BODIES)
def test_huge_fields_hold_up_nobody(name: str, server: Served):
    path, body = BODIES[name]
    stop, waits = threading.Event(), []
    watch = threading.Thread(target=longest_wait, args=(server, stop, waits))
    before = resident(server.process.pid)
    watch.start()
    try:
        status, answer, _ = server.post(path, body)
    finally:
        stop.set()
        watch.join()
    assert status in (200, 400, 404, 413, 422), answer
    assert max(waits) < PATIENCE, f"median {statistics.median(waits):.3f}, max {max(waits):.3f}"
    assert resident(server.process.pid) - before < 400
    assert server.post("/embed?model=vectors", {"inputs": "a"})[0] == 200


def test_the_limits_are_named(server: Served):
    for body, said in (
        ({"inputs": "a " * 600_000}, "1,200,000 characters; at most 1,000,000 in a request"),
        ({"inputs": LONG}, "the request has more than 131,072 tokens"),
        ({"inputs": ["a"] * 3000}, "3,000 texts; at most 2,048 in a request"),
        ({"inputs": ["a"] * 400_000}, "at most 262,144 values in a request"),
    ):
        status, error, _ = server.post("/tokenize?model=vectors", body)
        assert (status, error["error"]) == (413, said)


def send(server: Served, head: str, body: bytes = b"") -> socket.socket:
    """A connection on which a request as it stands here was sent."""
    address = urlsplit(server.url)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port or 80), timeout=60)
    connection.sendall(head.encode("latin-1") + body)
    return connection


def test_clients_that_leave_are_forgotten(server: Served):
    """What they have asked for is not computed to its end."""
    body = json.dumps({"inputs": "a b c d " * 120_000}).encode()
    head = (
        "POST /tokenize?model=vectors HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    for _ in range(30):
        send(server, head, body).close()
    began = time.monotonic()
    with ThreadPoolExecutor(4) as clients:
        small = {"inputs": "a b c d " * 2000}
        found = [clients.submit(server.post, "/tokenize?model=vectors", small) for _ in range(4)]
        assert [each.result()[0] for each in found] == [200] * 4
    assert time.monotonic() - began < 60
    assert server.get("/livez")[0] == 200


def test_bodies_of_all_requests_are_bounded(server: Served):
    """Clients that send most of a body, and wait: the bytes of all are counted."""
    head = "POST /tokenize HTTP/1.1\r\nhost: a\r\ncontent-length: 7900000\r\n\r\n"
    waiting = [send(server, head, b" " * 7_800_000) for _ in range(8)]
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            status, error, headers = server.post("/tokenize", b" " * 4_000_000)
            if status == 429:
                break
        assert (status, error["error"].endswith("try again later")) == (429, True)
        assert headers["retry-after"] == "1"
    finally:
        for connection in waiting:
            connection.close()
    until = time.monotonic() + 60
    while server.post("/tokenize", b" " * 4_000_000)[0] == 429 and time.monotonic() < until:
        time.sleep(0.05)
    assert server.post("/embed?model=vectors", {"inputs": "a"})[0] == 200


def test_the_head_decides_the_path(tmp_path: Path):
    made(tmp_path / "m")
    key = tmp_path / "key"
    key.write_text("open-sesame")
    key.chmod(0o600)
    with served(tmp_path / "m", "--key-file", key) as server:
        for host in ("a/livez?", "a/livez#", "livez", "/livez?x=", "a:80/livez?", "[/livez?"):
            for line in ("GET /metrics", "GET /info", "POST /tokenize"):
                head = f"{line} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
                with send(server, head) as connection:
                    first = connection.makefile("rb").readline().split()
                assert first[1] in (b"401", b"400"), (host, line, first)
