"""Models of the hub: fetched only where they are written as such."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.cli import run_cli
from tests.support.tiny import made

import ownbert
from ownbert import hf, hub
from ownbert.checkpoint import load
from ownbert.errors import InputError

NAME = "someone/tiny"
COMMIT = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of huggingface_hub with one model, in a place without network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    http = pytest.importorskip("huggingface_hub.utils")
    place = tmp_path / "cache"
    model = place / "models--someone--tiny"
    made(model / "snapshots" / COMMIT, "mlm")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub._fetched.cache_clear()
    http.reset_sessions()
    yield place
    http.reset_sessions()  # one made without network stays so
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
        model = hf.BertForMaskedLM.from_pretrained(name)
        assert model.config.name_or_path == name
        assert hf.BertConfig.from_pretrained(name).vocab_size == 11
        assert len(hf.AutoTokenizer.from_pretrained(name)) == 11
    options = {"cache_dir": str(cache), "local_files_only": True, "revision": COMMIT}
    hf.BertForMaskedLM.from_pretrained(NAME, **options)
    config = hf.BertConfig.from_pretrained(NAME, **options)
    assert "cache_dir" not in config.to_dict()
    with pytest.raises(InputError, match="nor could it be fetched from the hub"):
        hf.BertForMaskedLM.from_pretrained("someone/other", local_files_only=True)


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
            hf.BertModel.from_pretrained(name)
    for name in ("hf:", "hf:../x", "hf:a/b/c", "hf:a b"):
        with pytest.raises(InputError, match="no name of a model of the hub"):
            load(name)


@pytest.mark.usefixtures("no_network")
def test_a_name_in_an_existing_folder_is_a_slip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    with pytest.raises(InputError, match="no such folder: runs/brt"):
        hf.BertModel.from_pretrained("runs/brt")
