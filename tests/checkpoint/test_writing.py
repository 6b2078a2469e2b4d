"""Saving replaces a model whole or not at all."""

import sys
from pathlib import Path
from typing import Any

import pytest

from ownbert.checkpoint import load, save
from ownbert.exceptions import InputError
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
from support.limits import files_of_at_most
from support.tiny import CONFIG, SPECIAL, contents, made


def test_a_write_that_fails_leaves_the_model_before(tmp_path: Path, monkeypatch):
    made(tmp_path, "mlm")
    before = contents(tmp_path)
    other = Tokenizer.blank([*SPECIAL, *"fedcba"])
    model = Model(CONFIG, ["mlm", "nsp"])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("save", "tokens"):
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                save(model, tmp_path, tokenizer=other)
        assert contents(tmp_path) == before
    save(model, tmp_path, tokenizer=other)
    assert contents(tmp_path) != before


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_leaves_the_model_before(tmp_path: Path):
    made(tmp_path / "model", "mlm")
    Tokenizer.blank([*SPECIAL, *"fedcba"]).save(tmp_path / "other")
    before = contents(tmp_path / "model")
    model, other = load(tmp_path / "model", heads=["nsp"]), Tokenizer.load(tmp_path / "other")
    message = f"^cannot write {tmp_path / 'model' / 'model.safetensors'}"
    # Room for config.json and the tokenizer, not for the weights.
    with files_of_at_most(5000), pytest.raises(InputError, match=message):
        save(model, tmp_path / "model", tokenizer=other)
    assert contents(tmp_path / "model") == before


def test_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="a file has that name"):
        save(Model(CONFIG), tmp_path / "file")
    with pytest.raises(InputError, match="albert needs embedding_size"):
        save(Model(CONFIG, ["mlm"], model_type="albert"), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
