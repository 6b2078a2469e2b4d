"""A server in a process of its own."""

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ownbert.inference.exported_network import ENGINE_POSITIONS
from support.forks import ForkedCommand

_SECONDS = 180


@dataclass
class Served:
    """A running server.

    Args:
        url: without a slash at its end.
        process: of the server.
    """

    url: str
    process: ForkedCommand

    @property
    def log(self) -> list[str]:
        """The lines that it has written to standard error so far."""
        return self.process.output()[1].splitlines()

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any, Mapping[str, str]]:
        """Status, answer and headers; ``body`` is sent as JSON, or as it is if it is bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {key.replace("_", "-"): value for key, value in headers.items()}
        own.setdefault("content-type", "application/json")
        return self._ask(urllib.request.Request(self.url + path, data=data, headers=own))

    def answer(self, path: str, body: Any, **headers: str) -> Any:
        """The answer to a request with status 200."""
        status, answer, _ = self.post(path, body, **headers)
        assert status == 200, answer
        return answer

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
    # A fork has what is imported here; otherwise every server would import it, for a second.
    import prometheus_client  # noqa: F401
    import uvicorn  # noqa: F401

    import ownbert.serve.app  # noqa: F401

    ENGINE_POSITIONS.clear()  # what engines have computed here is not the server's
    process = ForkedCommand("serve", *arguments, "--port", 0, env=env)
    try:
        end = time.monotonic() + _SECONDS
        while not (out := process.output()[0]).endswith("\n"):
            assert process.poll() is None, process.output()
            assert time.monotonic() < end, process.output()
            time.sleep(0.01)
        assert " at http://" in out, process.output()
        yield Served(out.splitlines()[0].rsplit(" at ", 1)[1].strip(), process)
        process.terminate()
        assert process.wait(_SECONDS) == 0, process.output()
    finally:
        process.kill()
        process.wait()
