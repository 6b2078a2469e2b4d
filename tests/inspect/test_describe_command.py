"""``ownbert describe`` as a user meets it."""

import json
from pathlib import Path

from ownbert.config.encoder import SIZES
from support.cli import run_cli


def ownbert(*arguments: object) -> tuple[int, str, str]:
    """Run a command: exit code, output, errors."""
    done = run_cli(*arguments)
    return done.returncode, done.stdout, done.stderr


def test_a_pretrained_folder_at_80_columns(pretrained: Path):
    code, out, err = ownbert("describe", pretrained, "--text", "red1 w2 [MASK]")
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "…" not in out  # no figure was cut off
    assert any(line.startswith("attention weights  H x T x T  2 x 5 x 5") for line in lines)
    assert any(line.startswith("mlm logits") for line in lines)
    assert "[MASK] 4" in out


def test_json(pretrained: Path):
    code, out, _ = ownbert("describe", pretrained, "--tokens", "6", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["heads"] == [2, 2]
    size = SIZES["tiny"][1] // 2
    assert found["head_size"] == size
    assert found["parameters"] == sum(group["count"] for group in found["groups"])
    assert found["float32_bytes"] == 4 * found["parameters"]
    steps = {step["name"]: step["sizes"] for step in found["walk"]["steps"]}
    assert steps["queries"] == [6, 2, size]


def test_mistakes_get_one_line(pretrained: Path, tmp_path: Path):
    for arguments, said in {
        (tmp_path / "none",): "no such folder",
        (tmp_path,): "config.json; is",
        (pretrained, "--tokens", "0"): "1 or more",
        (pretrained, "--tokens", "129"): "the model takes from 1 to 48",
        (pretrained, "--text", "w1 " * 200): "the text has 202 tokens",
        (pretrained, "--text", "w1", "--tokens", "2"): "give one of them",
    }.items():
        code, out, err = ownbert("describe", *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("error: ")
        assert said in err
        assert len(err.splitlines()) == 1
