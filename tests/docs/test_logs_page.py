"""The Python and the commands of docs/logs.md run on made-up logs, and are the same in both
languages."""

import csv
import io
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def log(sessions: int, seed: int) -> list[str]:
    """Lines of blocks that are received, served and deleted, as a file system logs them."""
    rng, lines = random.Random(seed), []
    for _ in range(sessions):
        block = f"blk_{rng.choice(['', '-'])}{rng.randrange(10**12)}"
        address = f"/10.250.{rng.randrange(256)}.{rng.randrange(256)}:{rng.randrange(1000, 60000)}"
        texts = [f"INFO dfs.DataNode: Receiving block {block} src: {address}"]
        texts += [f"INFO dfs.DataNode: {address} Served block {block}"] * rng.randint(1, 4)
        texts.append(f"INFO dfs.FSDataset: Deleting block {block} file /mnt/data/{block}")
        for text in texts:
            lines.append(f"081109 {rng.randrange(100000, 240000)} {rng.randrange(99)} {text}")
    return lines


def templates(folder: Path, lines: list[str], *session: str) -> list[dict[str, str]]:
    """The table that the page's program makes of lines."""
    (folder / "templates.py").write_text(blocks("logs.md", "python")[0])
    command = [sys.executable, "templates.py", *session]
    given = "\n".join(lines)
    done = subprocess.run(command, input=given, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_parameters_are_replaced(tmp_path: Path):
    lines = log(100, 1)
    rows = templates(tmp_path, lines)
    assert [row["line"] for row in rows] == lines
    assert sorted({row["text"] for row in rows}) == [
        "INFO dfs.DataNode: /<ip> Served block <block>",
        "INFO dfs.DataNode: Receiving block <block> src: /<ip>",
        "INFO dfs.FSDataset: Deleting block <block> file <path>",
    ]
    others = {
        "[2024-01-02T03:04:05Z] WARN took 15ms, 3.5 MB": "WARN took <n>ms, <n> MB",
        "Jun 14 15:16:01 host sshd[19939]: failed at 0x7ffe12": "host sshd[<n>]: failed at <hex>",
        "request 1f3c9a27b5 deadbeef": "request <hex> deadbeef",
        "user354 on eth0 of node_17, try 2": "user<n> on eth0 of node_17, try <n>",
        "user1234567 took 0.25s, v12 r2d2": "user<n> took <n>s, v12 r2d2",
    }
    assert {row["line"]: row["text"] for row in templates(tmp_path, list(others))} == others
    sessions = templates(tmp_path, lines, r"blk_-?\d+")
    assert len(sessions) == 100
    first = sessions[0]["text"].split()
    assert first[0] == "INFO_dfs.DataNode:_Receiving_block_<block>_src:_/<ip>"
    assert 3 <= len(first) <= 6


def test_both_languages_have_the_same_programs():
    for language in ("python", "sh", "py", "json"):
        assert blocks("logs.md", language) == blocks("logs.zh-CN.md", language)
        assert blocks("logs.md", language)


@pytest.mark.slow
def test_the_commands_find_the_odd_line(tmp_path: Path):
    (tmp_path / "templates.py").write_text(blocks("logs.md", "python")[0])
    odd = "081109 203518 143 WARN dfs.DataNode: Got exception while serving blk_1 to /10.0.0.1:50"
    (tmp_path / "normal.log").write_text("\n".join(log(400, 1)) + "\n")
    (tmp_path / "today.log").write_text("\n".join([*log(20, 2), odd, *log(20, 3)]) + "\n")
    script = "\n".join(blocks("logs.md", "sh")).replace("--max-steps 300", "--max-steps 20")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr
    (flagged,) = [line for line in done.stdout.splitlines() if line.startswith("081109")]
    assert flagged.startswith(odd)
    assert "unseen: WARN, Got, exception" in flagged
    assert (tmp_path / "scores.html").stat().st_size > 1000
