"""``load`` and ``from_pretrained`` open each file of a folder once."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import ownbert
from support.opened_files import opened
from support.tiny import made

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made(tmp_path, "mlm")
    (tmp_path / "source.txt").write_text("\n".join([*SPECIAL, "un", "##do"]))
    ownbert.BertTokenizer.from_pretrained(tmp_path / "source.txt").save_pretrained(tmp_path)
    return tmp_path


def test_an_index_of_weights(folder: Path, monkeypatch: pytest.MonkeyPatch):
    weights, part = folder / "model.safetensors", folder / "model-00001-of-00001.safetensors"
    names = dict.fromkeys(load_file(weights), part.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    weights.rename(part)
    counts = opened(lambda: ownbert.load(folder), monkeypatch)
    assert counts["model.safetensors.index.json"] == 1


@pytest.mark.parametrize("named", [True, False])
def test_tokenizers(named: bool, folder: Path, monkeypatch: pytest.MonkeyPatch):
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    if not named:
        del config["tokenizer_class"]
        (folder / "config.json").unlink()
    path.write_text(json.dumps(config))
    counts = opened(lambda: ownbert.BertTokenizer.from_pretrained(folder), monkeypatch)
    read = {name: count for name, count in counts.items() if name.endswith(".json")}
    assert read.pop("tokenizer_config.json") == read.pop("tokenizer.json") == 1
    assert set(read.values()) <= {1}
    tokenizer = ownbert.BertTokenizer.from_pretrained(folder)
    assert tokenizer("undo")["input_ids"] == [2, 5, 6, 3]
