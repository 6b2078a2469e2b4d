"""A server in a process of its own, as users start it."""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_SECONDS = 180


@dataclass
class Served:
    """A running server.

    Args:
        url: without a slash at its end.
        process: of the server.
        log: what it has written to standard error so far.
    """

    url: str
    process: subprocess.Popen[str]
    log: list[str]

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
        """Status, answer and headers; ``body`` is sent as JSON, or as it is if it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {key.replace("_", "-"): value for key, value in headers.items()}
        own.setdefault("content-type", "application/json")
        return self._ask(urllib.request.Request(self.url + path, data=data, headers=own))

    def get(self, path: str, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
        """Status, answer and headers."""
        return self._ask(urllib.request.Request(self.url + path, headers=headers))

    def _ask(self, request: urllib.request.Request) -> tuple[int, Any, Mapping[str, str]]:
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                status, data, headers = answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            status, data, headers = error.code, error.read(), error.headers
        found = {key.lower(): value for key, value in headers.items()}
        if found.get("content-type", "").startswith("application/json"):
            return status, json.loads(data), found
        return status, data.decode(), found


@contextlib.contextmanager
def served(*arguments: object, env: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A server on a free port; it is stopped by SIGTERM, and must end well."""
    command = [sys.executable, "-m", "ownbert", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)  # type: ignore[arg-type]
    reader.start()
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=lambda: lines.put(process.stdout.readline()), daemon=True).start()  # type: ignore[union-attr]
    try:
        first = lines.get(timeout=_SECONDS)
        assert " at http://" in first, "".join(log)
        yield Served(first.rsplit(" at ", 1)[1].strip(), process, log)
        if process.poll() is None:
            process.terminate()
        assert process.wait(_SECONDS) == 0, "".join(log)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()
