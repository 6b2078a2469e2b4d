"""Models of the hub: fetched only where they are written as such; what push uploads."""

import base64
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import refusal, run_cli
from tests.support.tiny import made

import ownbert
from ownbert import hub
from ownbert.checkpoint import load
from ownbert.exceptions import InputError

NAME = "someone/tiny"
COMMIT = "0" * 40


def _reset_of_sessions() -> Callable[[], None]:
    """The function that ends connections, by its name in version 0 or from 1 on."""
    http = pytest.importorskip("huggingface_hub.utils")
    return getattr(http, "reset_sessions", None) or http.close_session


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of huggingface_hub with one model, in a place without network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    reset = _reset_of_sessions()
    place = tmp_path / "cache"
    model = place / "models--someone--tiny"
    made(model / "snapshots" / COMMIT, "mlm")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub._fetched.cache_clear()
    reset()
    yield place
    reset()  # one made without network stays so
    hub._fetched.cache_clear()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever asks the hub fails the test."""

    def ask(*name: object, **options: object) -> None:
        raise AssertionError(f"the hub was asked for {name}")

    monkeypatch.setattr(hub, "_fetched", ask)


def test_a_name_with_hf_is_a_model_folder(cache: Path):
    model = load(f"hf:{NAME}")
    assert set(model.specs) == {"mlm"}
    assert ownbert.load(f"hf:{NAME}").config.vocab_size == 11
    filled = run_cli("fill", f"hf:{NAME}", "a [MASK]", "--top", 1)
    assert (filled.returncode, filled.stderr) == (0, "")


def test_from_pretrained_takes_names_and_options(cache: Path):
    for name in (NAME, f"hf:{NAME}"):
        model = ownbert.BertForMaskedLM.from_pretrained(name)
        assert model.config.vocab_size == 11
        assert ownbert.BertConfig.from_pretrained(name).vocab_size == 11
        assert len(ownbert.BertTokenizer.from_pretrained(name)) == 11
    options = {"cache_dir": str(cache), "local_files_only": True, "revision": COMMIT}
    ownbert.BertForMaskedLM.from_pretrained(NAME, **options)
    config = ownbert.BertConfig.from_pretrained(NAME, **options)
    assert "cache_dir" not in vars(config)
    with pytest.raises(InputError, match="nor could it be fetched from the hub"):
        ownbert.BertForMaskedLM.from_pretrained("someone/other", local_files_only=True)


@pytest.mark.usefixtures("no_network")
def test_a_mistyped_folder_asks_nobody(tmp_path: Path):
    for command in (
        ("fill", "nope", "a [MASK]"),
        ("describe", "someone/nope"),
        ("predict", "nope", "--input", tmp_path, "-o", tmp_path / "o.jsonl"),
        ("pretrain", tmp_path, "--init-from", "nope", "-o", tmp_path / "out"),
    ):
        assert run_cli(*command).returncode == 2
    for name in ("nope", "someone/nope", tmp_path / "nope"):
        with pytest.raises(InputError, match="no such f"):
            ownbert.load(name)
    (tmp_path / "runs").mkdir()
    for name in ("./nope", "../nope", "/nope", "a/b/c", "~/nope", "nope/", f"{tmp_path}/nope"):
        with pytest.raises(InputError, match="no such folder"):
            ownbert.BertModel.from_pretrained(name)
    for name in ("hf:", "hf:../x", "hf:a/b/c", "hf:a b"):
        with pytest.raises(InputError, match="not the name of a model on the hub"):
            load(name)


@pytest.mark.usefixtures("no_network")
def test_a_name_in_an_existing_folder_is_a_slip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with pytest.raises(InputError, match="no such folder: runs/brt"):
        ownbert.BertModel.from_pretrained("runs/brt")


class Hub:
    """A hub of this machine. files: what was uploaded, by path; asked: the paths of requests."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.made: dict[str, Any] = {}

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        self.asked.append(path)
        if path.endswith("/repos/create"):
            self.made = json.loads(body)
        if "/preupload/" in path:
            names = [one["path"] for one in json.loads(body)["files"]]
            mode = {"uploadMode": "regular", "shouldIgnore": False}
            return {"files": [{"path": name, **mode} for name in names]}
        if "/commit/" in path:
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    self.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
        url = "https://huggingface.co/someone/tiny"
        return {"url": url, "commitUrl": f"{url}/commit/{COMMIT}", "commitOid": COMMIT}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    reset = _reset_of_sessions()
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found = hub.answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        # It looks every 10 ms whether it is to end.
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listening.server_port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        reset()
        yield hub
        reset()
        listening.shutdown()


# What a folder may hold besides its model, and must not leave the machine.
PRIVATE = {
    "work/rows.txt": "a secret text",
    "work/tokens/ids.bin": "a secret text",
    "work/network/config.json": "{}",
    "checkpoints/step-3/state.json": "{}",
    "members/network/checkpoints/step-3/state.json": "{}",
    "members/network/log.jsonl": "{}",
    "log.jsonl": "{}",
    "recipe.yaml": "dev: /home/someone/dev.csv",
    "report.html": "a secret text",
    "report.json": '{"text": "a secret text"}',
    "report.txt": "a secret text",
    "train.csv": "a secret text",
    "vocabulary_report.json": "{}",
    ".env": "a secret",
    "model.safetensors.tmp": "a secret",
    "other.json": '"a secret text"',
    "picture.png": "a secret",
    "onnx/notes.txt": "a secret text",
    "members/left/linear.json": '{"words": "of a member that is not used"}',
}
REPORT = {"report.html", "report.json", "report.txt"}
NEEDED = {
    *("config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json"),
    *("README.md", "curves.png", "confusion.png", "blend.json"),
    *("modules.json", "1_Pooling/config.json", "onnx/model.onnx", "onnx/parity.json"),
    *("members/tfidf/linear.json", "members/tfidf/linear.safetensors"),
    *("members/self-trained/tfidf/linear.json", "members/self-trained/tfidf/linear.safetensors"),
    *("members/network/config.json", "members/network/model.safetensors"),
    *("members/network/vocab.txt", "members/network/tokenizer.json"),
    *("members/network/tokenizer_config.json", "members/probe/probe.json"),
    *("members/probe/probe.safetensors", "members/probe/encoder/config.json"),
    "members/probe/encoder/model.safetensors",
}


def a_folder_of_fit(folder: Path) -> Path:
    made(folder, "classification")
    made(folder / "members/network", "classification")
    blend = [{"folders": ["members/self-trained/tfidf"]}, {"folders": ["members/network"]}]
    blend.append({"folders": ["members/probe"]})
    contents = {
        **PRIVATE,
        "members/self-trained/tfidf/linear.json": '{"view": "tfidf", "beside": true}',
        "modules.json": '[{"path": ""}, {"path": "1_Pooling"}]',
        "blend.json": json.dumps({"members": blend}),
    }
    for name in {*contents, *NEEDED} - {"config.json"}:
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(contents.get(name, "{}"))
    return folder


def test_push_uploads_what_is_needed_and_no_text(server: Hub, tmp_path: Path):
    folder = a_folder_of_fit(tmp_path / "best")
    done = run_cli("push", folder, NAME, "--private")
    assert (done.returncode, done.stderr) == (0, "")
    assert server.files.keys() == NEEDED
    # The second name is that of version 2.
    assert server.made.get("private") is True or server.made["visibility"] == "private"
    assert all(b"secret" not in content for content in server.files.values())
    assert all(server.files[name] == (folder / name).read_bytes() for name in NEEDED)
    *listed, total, left, note, saved = done.stdout.splitlines()
    assert {line.split()[1]: line.split()[0].replace(",", "") for line in listed} == {
        name: str((folder / name).stat().st_size) for name in NEEDED
    }
    assert total.startswith(f"{len(NEEDED)} files, ")
    assert left.startswith("not uploaded: ")
    assert {"recipe.yaml", "checkpoints/"} <= {*left.removeprefix("not uploaded: ").split(", ")}
    assert note.startswith("note: linear models and vocabularies contain single words")
    assert saved == f"saved {server_address()}/{NAME}"


def server_address() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def test_push_with_texts_adds_the_report_alone(server: Hub, tmp_path: Path):
    folder = a_folder_of_fit(tmp_path / "best")
    assert ownbert.push(folder, f"hf:{NAME}", with_texts=True) == f"{server_address()}/{NAME}"
    assert server.files.keys() == NEEDED | REPORT


def test_a_dry_run_of_push_asks_nobody(server: Hub, tmp_path: Path, monkeypatch):
    folder = a_folder_of_fit(tmp_path / "best")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    done = run_cli("push", folder, NAME, "--dry-run", "--with-texts", "-q")
    assert (done.returncode, done.stderr, server.asked) == (0, "", [])
    names = {line.split()[-1] for line in done.stdout.splitlines() if line.startswith(" ")}
    assert names == NEEDED | REPORT
    assert done.stdout.splitlines()[-1] == "nothing was uploaded"
    assert "pip install 'ownbert[hub]'" in refusal("push", folder, NAME, "-q")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        *[("vocab.txt", False), ("README.md", False), ("1_Pooling", True), ("members", True)],
        *[("members/self-trained/tfidf", True), ("onnx/model.onnx", False)],
    ],
)
def test_push_refuses_links_that_leave_the_folder(
    name: str, whole: bool, server: Hub, tmp_path: Path
):
    folder = a_folder_of_fit(tmp_path / "best")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere", target_is_directory=whole)
    assert f"{folder / name}" in (line := refusal("push", folder, NAME))
    assert "is a link to a file outside the folder" in line
    assert server.asked == []


def test_push_follows_links_within_the_folder(server: Hub, tmp_path: Path):
    folder = a_folder_of_fit(tmp_path / "best")
    (folder / "README.md").rename(folder / "card.md")
    (folder / "README.md").symlink_to("card.md")
    ownbert.push(folder, NAME)
    assert server.files.keys() == NEEDED


def test_push_reads_shards_as_their_index_names_them(server: Hub, tmp_path: Path):
    folder = tmp_path / "model"
    made(folder, "mlm")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors").rename(folder / shards[0])
    (folder / shards[1]).write_bytes(b"")
    (folder / "model-00003-of-00002.safetensors").write_bytes(b"of another index")
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": "../x.bin", "d": "rows.txt"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "rows.txt").write_text("a secret text")
    ownbert.push(folder, NAME)
    assert {n for n in server.files if "model" in n} == {*shards, "model.safetensors.index.json"}
    assert "rows.txt" not in server.files


@pytest.mark.parametrize(
    ("folder", "name", "line"),
    [
        ("nothing", NAME, "has no config.json: it is not the folder of a finished model"),
        ("best", "no-organisation", "is not a name on the hub; write org/name"),
    ],
)
def test_what_push_cannot_do(folder: str, name: str, line: str, server: Hub, tmp_path: Path):
    a_folder_of_fit(tmp_path / "best")
    assert line in refusal("push", tmp_path / folder, name)
    assert server.asked == []
