"""``ownbert fill`` as a user meets it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import run_cli


def ownbert(*arguments: object, given: bytes = b"") -> tuple[int, str, str]:
    """Run a command with ``given`` on standard input: exit code, output, errors."""
    done = run_cli(*arguments, stdin=given)
    return done.returncode, done.stdout, done.stderr


def test_a_table_of_candidates(pretrained: Path):
    code, out, err = ownbert("fill", pretrained, "red1 [MASK] w2 <mask>", "w1 [MASK]", "--top", 3)
    assert (code, err) == (0, "")
    first, second = out.split("\n\n")
    lines = first.splitlines()
    assert lines[0] == "red1 [MASK] w2 <mask>"
    assert lines[1] == "mask 1 of 2"
    assert lines[5] == "mask 2 of 2"
    assert len(lines) == 10
    best = [lines[2].split()[0], lines[6].split()[0]]
    assert lines[9] == f"filled: red1 {best[0]} w2 {best[1]}"
    assert all(0 < float(lines[i].split()[1].rstrip("%")) <= 100 for i in (2, 3, 4, 6, 7, 8))
    assert second.splitlines()[0] == "w1 [MASK]"


def test_json_of_lines_from_standard_input_and_of_files(pretrained: Path, tmp_path: Path):
    lines = b"red1 [MASK] 9\n\nw1 [MASK] w3\n"
    piped = ownbert("fill", pretrained, "--json", given=lines)
    assert ownbert("fill", pretrained, "--json", "--input", "-", given=lines) == piped
    (tmp_path / "texts.txt").write_bytes(lines)
    assert ownbert("fill", pretrained, "--json", "--input", tmp_path / "texts.txt") == piped
    code, out, _ = piped
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["text"] for row in rows] == ["red1 [MASK] 9", "w1 [MASK] w3"]
    candidates = rows[0]["masks"][0]["candidates"]
    assert len(candidates) == 5
    chances = [c["probability"] for c in candidates]
    assert chances == sorted(chances, reverse=True)
    assert rows[0]["filled"] == f"red1 {candidates[0]['token']} 9"


def test_mistakes_get_one_line(pretrained: Path, classifier: Path, tmp_path: Path):
    (tmp_path / "bad.txt").write_bytes(b"w1 [MASK]\n\xff\n")
    (tmp_path / "a.txt").write_bytes(b"w1 [MASK]\n\nw1 w2\n")
    (tmp_path / "a.csv").write_bytes(b"id,text\n1,\n2,w1 w2\n")
    electra = shutil.copytree(classifier, tmp_path / "electra")
    (electra / "generator").mkdir()
    for arguments, given, said in [
        ((electra, "[MASK]"), b"", f"use its generator, {electra / 'generator'}"),
        ((tmp_path / "none", "[MASK]"), b"", "no such folder"),
        ((tmp_path, "[MASK]"), b"", "config.json; is"),
        ((pretrained, "w1 w2"), b"", "text 1 has no mask: 'w1 w2'; write [MASK]"),
        ((classifier, "[MASK]"), b"", "which has no masked-language-model head"),
        ((pretrained, "w1 " * 200 + "[MASK]"), b"", "the model takes at most"),
        ((pretrained, "[MASK]", "--top", 0), b"", "--top is '0'; it must be 1 or more"),
        ((pretrained,), b"", "no text to fill"),
        ((pretrained,), b"[MASK]\n\xff\n", "standard input, line 2: not UTF-8"),
        ((pretrained, "--input", tmp_path / "none.txt"), b"", "no such file"),
        ((pretrained, "--input", tmp_path / "bad.txt"), b"", "bad.txt, line 2: not UTF-8"),
        ((pretrained, tmp_path / "a.txt"), b"", "a.txt, line 3 has no mask: 'w1 w2'; write"),
        ((pretrained, tmp_path / "a.csv"), b"", "a.csv, line 3 has no mask: 'w1 w2'; write"),
        ((pretrained,), b"[MASK]\n\nw1 w2\n", "standard input, line 3 has no mask"),
        ((pretrained, "[MASK]", "--input", "-"), b"[MASK]", "give one of them"),
    ]:
        code, out, err = ownbert("fill", *arguments, given=given)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("error: ")
        assert said in err
        assert len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_pipe_of_processes(pretrained: Path):
    done = subprocess.run(
        [sys.executable, "-m", "ownbert", "fill", str(pretrained), "--top", "1"],
        input="w1 [MASK] w3",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "w1 [MASK] w3"
