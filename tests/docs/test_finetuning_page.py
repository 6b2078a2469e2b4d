"""The commands and the Python of docs/finetuning.md run, in order, shortened."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/finetuning.md", "docs/finetuning.zh-CN.md")


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    scripts = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    commands = [line for block in blocks(PAGES[0], "sh") for line in block.splitlines() if line]
    assert len([c for c in commands if c.startswith("ownbert finetune")]) == 9
    for command in commands:
        short = command.replace("--max-steps 300", "--max-steps 30")
        short += " --epochs 1" if command.startswith("ownbert finetune") else ""
        done = subprocess.run(
            short, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert len((tmp_path / "runs/days.csv").read_text().splitlines()) == 101
    for code in blocks(PAGES[0], "python"):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("epochs=4", "epochs=1")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert "(2, 4)" in done.stdout


def test_both_languages_show_the_same_code():
    for language in ("sh", "python"):
        english, chinese = (blocks(name, language) for name in PAGES)
        assert english == chinese
