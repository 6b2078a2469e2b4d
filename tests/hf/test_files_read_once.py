"""``from_pretrained`` opens each file of a folder once, and checks few structures."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import ownbert
import ownbert.hf as hf
from ownbert.config.encoder import EncoderConfig
from support.opened_files import opened
from support.tiny import made

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path, "mlm")
    (tmp_path / "source.txt").write_text("\n".join([*SPECIAL, "un", "##do"]))
    hf.BertTokenizer.from_pretrained(tmp_path / "source.txt").save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["BertForMaskedLM", "BertModel"])
def test_models(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    counts = opened(lambda: getattr(hf, name).from_pretrained(folder), monkeypatch)
    assert counts["config.json"] == 1


def test_load(folder: Path, monkeypatch: pytest.MonkeyPatch):
    assert opened(lambda: ownbert.load(folder), monkeypatch)["config.json"] == 1


def test_an_index_of_weights(folder: Path, monkeypatch: pytest.MonkeyPatch):
    weights, part = folder / "model.safetensors", folder / "model-00001-of-00001.safetensors"
    names = dict.fromkeys(load_file(weights), part.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    weights.rename(part)
    counts = opened(lambda: ownbert.load(folder), monkeypatch)
    assert counts["model.safetensors.index.json"] == 1


@pytest.mark.parametrize(("changes", "count"), [({}, 1), ({"hidden_dropout_prob": 0.3}, 1)])
def test_structures(
    changes: dict[str, float], count: int, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Those of the folder's config, with changes."""
    made, check = [], EncoderConfig.__post_init__
    monkeypatch.setattr(
        EncoderConfig, "__post_init__", lambda self: (made.append(self), check(self))
    )
    hf.BertModel.from_pretrained(folder, **changes)
    assert len(made) == count


@pytest.mark.parametrize("named", [True, False])
def test_tokenizers(named: bool, folder: Path, monkeypatch: pytest.MonkeyPatch):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if not named:
        del config["tokenizer_class"]
        (folder / "config.json").unlink()
    path.write_text(json.dumps(config))
    counts = opened(lambda: hf.BertTokenizer.from_pretrained(folder), monkeypatch)
    read = {name: count for name, count in counts.items() if name.endswith(".json")}
    assert read.pop("tokenizer_config.json") == read.pop("tokenizer.json") == 1
    assert set(read.values()) <= {1}
    tokenizer = hf.BertTokenizer.from_pretrained(folder)
    assert tokenizer("undo")["input_ids"] == [2, 5, 6, 3]
