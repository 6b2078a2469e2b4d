"""A server under load, at its limits, and at its end."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ownbert
from ownbert.exceptions import InputError
from ownbert.serve.exchange import Refusal
from ownbert.serve.served_model import ServedModel
from ownbert.serve.server import require_memory
from ownbert.serve.server_settings import ServeSettings
from ownbert.serve.service import ModelRequest, Service
from support.cli import run_cli
from support.serving import Served, served
from support.tiny import change_weights, made

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def test_many_clients_get_the_answers_of_one(classifier: Path):
    texts = [f"red{i % 12} 9 " + "w1 " * (i % 20) for i in range(48)]
    expected = [each["label"] for each in ownbert.predict(classifier, texts)]
    # On a busy machine the queue would be too long for the usual timeout.
    slow = ("--batch-tokens", 64, "--timeout", 600)
    with served(classifier, *slow) as server, ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda text: server.post("/v1/classify", {"inputs": text}), texts))
        assert [answer["answers"][0]["label"] for _, answer, _ in found] == expected
        metrics = server.get("/metrics")[1]
        assert 'ownbert_requests_total{path="/v1/classify",status="200"} 48.0' in metrics
        assert "ownbert_padding_share 0.0" in metrics
        # SIGTERM in the middle: whoever was accepted is answered.
        one = {"inputs": texts * 4}
        waiting = [clients.submit(server.post, "/v1/classify", one) for _ in range(8)]
        while "ownbert_batch_tokens_count 0.0" in metrics or not any(w.running() for w in waiting):
            time.sleep(0.01)
        time.sleep(0.05)
        server.process.terminate()
        done = [each.result() for each in waiting if not each.exception()]
        assert done
        assert all(status == 200 for status, _, _ in done)
        assert server.process.wait(30) == 0


def test_answers_may_be_refused_and_be_sets_of_labels(
    classifier: Path, topics: Path, tmp_path: Path
):
    folder = Path(shutil.copytree(classifier, tmp_path / "model"))
    ownbert.Predictor(folder).calibrate(topics / "test.csv")
    with served(folder) as server:
        body = {"inputs": ["red1 red2", "w1"], "unknown": 0.2, "coverage": 0.8}
        _, found, _ = server.post("/v1/classify", body)
        assert found["answers"] == ownbert.predict(
            folder, body["inputs"], unknown=0.2, coverage=0.8
        )
        status, refused, _ = server.post("/v1/classify", body | {"coverage": 0.999})
        assert status == 422
        assert "too few for a coverage of 0.999" in json.dumps(refused)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server with limits, and the folder of its model m."""
    folder = tmp_path_factory.mktemp("limited") / "m"
    made(folder)
    limits = ("--request-tokens", 50, "--queue-tokens", 100, "--timeout", 5)
    with served(folder, *limits) as server:
        yield server, folder


def test_requests_beyond_the_limits(limited: tuple[Served, Path]):
    server, _ = limited
    status, error, _ = server.post("/embed", {"inputs": ["a b c"] * 20})
    assert (status, error["error"]) == (413, "100 tokens; at most 50 in a request")
    status, error, _ = server.post("/embed", b"x" * 9_000_000)
    assert (status, error["error_type"]) == (413, "too_large")
    for body in (b"\xff", b"{bad", b"[" * 100_000, b'{"inputs": ' + b"9" * 6000 + b"}"):
        status, error, _ = server.post("/v1/embed", body)
        assert status in (400, 422)
        assert error["error"]["message"]
    for body, field in (
        ({"inputs": 7}, "inputs"),
        ({"input": "a"}, "inputs"),
        ({"inputs": "a", "nix": 1}, "nix"),
        ({"inputs": "a", "dimensions": 0}, "dimensions"),
    ):
        status, error, _ = server.post("/v1/embed", body)
        assert (status, error["error"]["param"]) == (422, field)
    assert server.post("/nix", {})[0] == 404
    assert server.get("/v1/embed")[0] == 405
    # It still answers.
    assert server.post("/embed", {"inputs": "a"})[0] == 200
    name = server.post("/embed", {"inputs": "a"}, x_request_id="mine-7")[2]["x-request-id"]
    assert name == "mine-7"


def test_a_key_in_a_file_that_nobody_else_reads(tmp_path: Path):
    made(tmp_path / "m")
    key = tmp_path / "key"
    key.write_text("open-sesame\n")
    key.chmod(0o644)
    refused = run_cli("serve", tmp_path / "m", "--key-file", key)
    assert (refused.returncode, "can be read by others; chmod 600" in refused.stderr) == (2, True)
    key.chmod(0o600)
    with served(tmp_path / "m", env={"OWNBERT_KEY_FILE": str(key)}) as server:
        assert server.post("/embed", {"inputs": "a"})[0] == 401
        wrong = {"Authorization": "Bearer open-sesam"}
        assert server.post("/embed", {"inputs": "a"}, **wrong)[0] == 401
        for scheme in ("Bearer", "bearer"):  # case does not matter (RFC 9110)
            right = {"Authorization": f"{scheme} open-sesame"}
            assert server.post("/embed", {"inputs": "a"}, **right)[0] == 200
        assert server.post("/embed", {"inputs": "a"}, x_api_key="open-sesame")[0] == 200
        assert [
            server.get(path)[0] for path in ("/livez", "/readyz", "/", "/metrics", "/info")
        ] == [*(200, 200, 200), *(401, 401)]


@pytest.mark.slow
def test_slow_clients_are_closed_and_the_others_are_answered(tmp_path: Path):
    made(tmp_path / "m")
    with served(tmp_path / "m", "--idle-seconds", 1, "--connections", 40) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        slow = [socket.create_connection(address) for _ in range(20)]
        for each in slow[::2]:
            each.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\n")
        body = socket.create_connection(address)
        body.sendall(b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{")
        assert server.post("/embed", {"inputs": "a"})[0] == 200
        assert b" 408 " in body.recv(100)
        for each in (*slow, body):
            each.settimeout(10)
            while each.recv(1000):  # until it is closed
                pass
            each.close()
        assert server.post("/embed", {"inputs": "a"})[0] == 200


@pytest.mark.slow
def test_connections_are_bounded(tmp_path: Path):
    """Clients that say nothing, hundreds of them at once, and one that never reads its answer."""
    made(tmp_path / "m", max_position_embeddings=1100)
    with served(tmp_path / "m", "--idle-seconds", 1, "--connections", 40) as server:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        silent = [socket.create_connection(address) for _ in range(300)]
        assert server.post("/embed", {"inputs": "a"})[0] == 200
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(address)
        body = json.dumps({"inputs": "a " * 1098, "layers": [0], "heads": [0]}).encode()
        head = f"POST /v1/attention HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
        reader.sendall(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        for each in silent:
            each.settimeout(10)
            assert each.recv(1) == b""
            each.close()
        # A connection whose answer stays unread is given up, and not only closed: that would wait.
        deadline = time.monotonic() + 30
        while _connections(server) and time.monotonic() < deadline:
            time.sleep(0.05)
        reader.settimeout(10)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while part := reader.recv(1 << 20):
                received += len(part)
        assert received < 8_000_000  # of about 11
        reader.close()


def _connections(server: Served) -> int:
    """The connections of a server without this one that asks."""
    found = server.get("/metrics")[1]
    return int(float(re.findall(r"^ownbert_connections (.+)$", found, re.M)[0])) - 1


def test_a_folder_is_exchanged_while_it_is_served(limited: tuple[Served, Path]):
    server, folder = limited
    before = server.post("/embed", {"inputs": "a b"})[1]
    made(folder, seed=1)
    assert server.post("/embed", {"inputs": "a b"})[1] == before
    assert server.post("/reload", {})[1] == {"model": "m", "reloaded": True}
    after = server.post("/embed", {"inputs": "a b"})[1]
    np.testing.assert_allclose(
        after[0], ownbert.Embedder(folder).encode("a b", normalize=True), atol=1e-5
    )
    assert not np.allclose(after, before, atol=1e-3)
    (folder / "model.safetensors").write_bytes(b"damaged")
    status, error, _ = server.post("/reload", {})
    assert (status, "m was not reloaded" in error["error"]) == (409, True)
    assert server.post("/embed", {"inputs": "a b"})[1] == after


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing"], "no such folder: missing"),
        (["{m}", "{m}"], "two models are named m; write OTHER="),
        (["a//b={m}"], "cannot be the name of a model"),
        (["../b={m}"], "cannot be the name of a model"),
        (["{m}", "--port", "70000"], "--port"),
        (["{m}", "--port", "{taken}"], "the port is in use; choose another --port"),
        (["{m}", "--host", "203.0.113.7"], "cannot listen on 203.0.113.7"),
        (["{m}", "--max-memory", "0.0000001"], "and --max-memory is 1e-07; serve fewer"),
        (["{m}", "--precision", "foo"], "precision 'foo' is not known"),
        (["{m}", "--key-file", "missing"], "no such file: missing"),
    ],
)
def test_what_cannot_be_served_is_one_line(arguments: list[str], message: str, tmp_path: Path):
    made(tmp_path / "m")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run_cli("serve", *(a.format(m=tmp_path / "m", taken=port) for a in arguments))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr


def test_an_index_is_refused_with_its_model(tmp_path: Path):
    made(tmp_path / "m")
    ownbert.build_index(tmp_path / "m", ["a b", "c"], tmp_path / "index")
    line = ("serve", tmp_path / "index")
    small = run_cli(*line, "--max-memory", "0.0000001")
    (tmp_path / "m").rename(tmp_path / "moved")
    moved = run_cli(*line)
    for done, message in ((small, "serve fewer"), (moved, "the model of the index is not")):
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
        assert message in done.stderr


def test_the_command_serves_until_ctrl_c(classifier: Path):
    """As a process of its own; the other tests fork this one."""
    command = [sys.executable, "-m", "ownbert", "serve", str(classifier), "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().rsplit(" at ", 1)[1].strip()
            body = json.dumps({"inputs": "red1 9"}).encode()
            asked = urllib.request.Request(url + "/v1/classify", body)
            asked.add_header("content-type", "application/json")
            with urllib.request.urlopen(asked, timeout=60) as answer:
                (found,) = json.load(answer)["answers"]
            assert found["label"] == ownbert.predict(classifier, ["red1 9"])[0]["label"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_the_log_has_no_texts(tmp_path: Path):
    made(tmp_path / "m")
    with served(tmp_path / "m") as server:
        server.post("/embed?secret=a", {"inputs": "a b secret"}, x_request_id="r1")
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(30) == 0
        time.sleep(0.2)
        rows = [json.loads(line) for line in server.log]
    (row,) = [row for row in rows if row["id"] == "r1"]
    assert (row["method"], row["path"], row["status"], row["tokens"]) == ("POST", "/embed", 200, 5)
    assert "secret" not in "".join(server.log)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_in_a_browser(classifier: Path):
    """Headless Chromium types nothing by itself, so the page's own script is given a text."""
    with served(classifier) as server:
        found = _dumped(server, "?text=red1+9")
        explained = _dumped(server, "?text=%F0%9F%98%80+red1+9&explain")
    label = ownbert.predict(classifier, "red1 9")[0]["label"]
    assert "OwnBERT" in found
    assert "classify" in found
    assert f"<span>{label}</span>" in found
    assert 'class="bar" style="width:' in found
    assert "tokens," in found
    assert "Which words matter?</button>" in found
    # Positions count characters, also beyond the 16 bits of JavaScript's.
    (why,) = ownbert.explain(classifier, "\U0001f600 red1 9")
    shares = [f"{abs(value) / np.abs(why.values).max():.3f}" for value in why.values]
    marks = re.findall(r"--share: ([\d.]+);\">(\S+)</mark>", explained)
    assert marks == list(zip(shares, ["\U0001f600", "red1", "9"], strict=True))


def _dumped(server: Served, query: str) -> str:
    """The page after its script has run."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu"]
    command += ["--virtual-time-budget=8000", "--dump-dom", f"{server.url}/{query}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True).stdout


@pytest.mark.parametrize("key", ["", " ", "a b", "\u00e9", "\udcff"])
def test_a_key_that_no_header_has(key: str):
    with pytest.raises(InputError, match="the key"):
        ServeSettings(key=key)


def test_one_model_is_loaded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made(tmp_path)
    service = Service([ServedModel("m", tmp_path)], ServeSettings())
    loading, go_on, load = threading.Event(), threading.Event(), ServedModel.reloaded

    def slowly(served: ServedModel) -> ServedModel:
        loading.set()
        assert go_on.wait(30)
        return load(served)

    monkeypatch.setattr(ServedModel, "reloaded", slowly)
    with ThreadPoolExecutor(1) as other:
        first = other.submit(service.reload, "m")
        assert loading.wait(30)
        with pytest.raises(Refusal, match="a model is being loaded") as refused:
            service.reload("m")
        assert (refused.value.status, refused.value.retry_after) == (429, 1)
        go_on.set()
        assert first.result() is service.model("m")


def test_weights_of_another_model_explain_nothing(tmp_path: Path):
    made(tmp_path, "classification")
    first, second = ServedModel("m", tmp_path), ServedModel("m", tmp_path)
    before = first.explain(["a b"], "gradient_x_input")
    made(tmp_path, "classification", seed=1)
    assert first.explain(["a b"], "gradient_x_input") == before
    with pytest.raises(Refusal, match="m has changed since it was read; POST /reload first"):
        second.explain(["a b"], "gradient_x_input")
    assert second.reloaded().explain(["a b"], "gradient_x_input") != before


def test_a_prompt_that_cannot_be_used_is_refused(tmp_path: Path):
    made(tmp_path)
    (tmp_path / "modules.json").write_text('[{"type": "Pooling", "path": "1_Pooling"}]')
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_text('{"include_prompt": false}')
    service = Service([ServedModel("m", tmp_path)], ServeSettings())
    request: Any = None
    with pytest.raises(Refusal, match="excludes the tokens of a prompt from pooling"):
        asyncio.run(ModelRequest(service, request, None).embed(["a"], prompt="b "))


def test_memory_is_limited_whatever_folders_are_called(tmp_path: Path):
    made(tmp_path / "work/m")
    with pytest.raises(InputError, match="serve fewer models"):
        require_memory([tmp_path / "work/m"], 1e-7)
    made(tmp_path / "m/work")  # left over by fit
    require_memory([tmp_path / "m"], 1e-7)


def test_a_broken_model_is_refused_before_it_listens(tmp_path: Path):
    made(tmp_path / "m")
    change_weights(tmp_path / "m", **{"embeddings.word_embeddings.weight": ...})
    done = run_cli("serve", tmp_path / "m", "--port", 0)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert threading.active_count() < 20
