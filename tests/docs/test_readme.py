"""The commands and the Python of the README run, in order, on a slice of the sample."""

import gzip
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support.cli import run_cli

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = Path("examples/anonymised")


def blocks(name: str, language: str) -> list[str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def slice_of_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the first rows of every sample file under the same names."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / SAMPLE).mkdir(parents=True)
    for path in (ROOT / SAMPLE).glob("*.gz"):
        with gzip.open(path, "rt") as source, gzip.open(folder / SAMPLE / path.name, "wt") as out:
            out.writelines(line for _, line in zip(range(150), source, strict=False))
    return folder


def test_the_commands_run(slice_of_sample: Path):
    lines = "\n".join(blocks("README.md", "sh")).splitlines()
    commands = [line for line in lines if line.startswith("ownbert")]
    assert len(commands) == 10
    scripts = Path(sys.executable).parent
    for number, command in enumerate(commands):
        short = command.replace("--max-minutes 3", "--max-minutes 0.01")
        short += " --epochs 1" if command.startswith("ownbert finetune") else ""
        short = shlex.split(short)
        if number:
            done = run_cli(*short[1:], cwd=slice_of_sample)
        else:  # the first by the script that pip has installed
            short[0] = str(scripts / short[0])
            done = subprocess.run(short, cwd=slice_of_sample, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert len((slice_of_sample / "runs/predictions.jsonl").read_text().splitlines()) == 149


@pytest.mark.slow
def test_the_python_runs(slice_of_sample: Path):
    first, second = blocks("README.md", "python")
    script = first.replace("max_minutes=3", "max_minutes=0.03") + second
    # The commands' classifier is not there when this test runs alone; Python's has the same labels.
    script = script.replace("runs/my-classifier", "runs/py-classifier")
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=slice_of_sample, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *_, score, shape = done.stdout.splitlines()
    assert 0 <= float(score) <= 1
    assert shape == "torch.Size([2, 14])"


def test_both_languages_show_the_same_commands():
    def bare(text: str) -> list[str]:
        code = (line.split("  #")[0].rstrip() for line in text.splitlines())
        return [line for line in code if line and not line.startswith("#")]

    for language in ("sh", "python"):
        english, chinese = (blocks(name, language) for name in ("README.md", "README.zh-CN.md"))
        assert [bare(text) for text in english] == [bare(text) for text in chinese]
