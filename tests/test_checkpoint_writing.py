"""Saving replaces a model whole or not at all."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ownbert.checkpoint import save
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.text.tokenizer import Tokenizer
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


FULL_DISK = """
import resource, signal, sys
from ownbert.checkpoint import load, save
from ownbert.errors import InputError
from ownbert.text.tokenizer import Tokenizer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = load(sys.argv[1], heads=["nsp"])
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    save(model, sys.argv[1], tokenizer=Tokenizer.load(sys.argv[3]))
    sys.exit("was written")
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs RLIMIT_FSIZE")
def test_a_full_disk_leaves_the_model_before(tmp_path: Path):
    made(tmp_path / "model", "mlm")
    Tokenizer.blank([*SPECIAL, *"fedcba"]).save(tmp_path / "other")
    before = contents(tmp_path / "model")
    # Room for config.json and the tokenizer, not for the weights.
    arguments = [str(tmp_path / "model"), "5000", str(tmp_path / "other")]
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, *arguments], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"cannot write {tmp_path / 'model' / 'model.safetensors'}")
    assert contents(tmp_path / "model") == before


def test_where_nothing_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="a file has that name"):
        save(Model(CONFIG), tmp_path / "file")
    with pytest.raises(InputError, match="albert needs embedding_size"):
        save(Model(CONFIG, ["mlm"], model_type="albert"), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
