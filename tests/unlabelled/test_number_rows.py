"""Vectors and signatures of stopped runs of topics, duplicates and search build are kept."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ownbert
from support.cli import refusal, run_cli
from support.kills import kill_when_written

pytest.importorskip("sklearn")


def texts(path: Path, count: int) -> Path:
    """A file of so many lines; a tenth of them occurs twice."""
    rng = random.Random(0)
    lines = [" ".join(f"w{rng.randrange(300)}" for _ in range(6)) for _ in range(count * 9 // 10)]
    path.write_text("".join(f"{line}\n" for line in [*lines, *lines[: count - len(lines)]]))
    return path


def contents(output: Path) -> dict[str, bytes]:
    """The files of an output, which is a file or a folder."""
    files = sorted(output.iterdir()) if output.is_dir() else [output]
    return {file.name if output.is_dir() else "": file.read_bytes() for file in files}


RUNS: dict[str, tuple[str, Callable[..., Any]]] = {
    "vectors of topics": (
        "out.jsonl",
        lambda model, rows, output, **more: ownbert.topics(model, rows, output, count=3, **more),
    ),
    "vectors of an index": ("out", ownbert.build_index),
    "signatures of duplicates": (
        "out.txt",
        lambda model, rows, output, **more: ownbert.duplicates(rows, None, output, **more),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_is_resumed(
    name: str, pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.inference.embedder.BLOCK_TEXTS", 400)
    ending, run = RUNS[name]
    rows, output = texts(tmp_path / "rows.txt", 2100), tmp_path / ending
    run(pretrained, rows, tmp_path / "whole" / ending)
    part = tmp_path / f".{name.split()[0]}-{ending}.part"

    def stop(count: int) -> None:
        if part.stat().st_size and count > 1900:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"; [\d,]+ rows are kept in .*with --resume"):
        run(pretrained, rows, output, progress=stop)
    assert not output.exists()
    counts: list[int] = []
    run(pretrained, rows, output, resume=True, progress=counts.append)
    if name != "signatures of duplicates":  # its progress is that of reading
        assert counts[0] > 800
    assert contents(output) == contents(tmp_path / "whole" / ending)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.txt", ending, "whole"}


def test_few_rows_of_an_interrupted_run_are_not_kept(pretrained: Path, tmp_path: Path):
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    rows = texts(tmp_path / "rows.txt", 100)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted$"):
        ownbert.topics(pretrained, rows, tmp_path / "out.jsonl", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.txt"]


def test_other_rows_are_not_resumed(
    pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ownbert.inference.embedder.BLOCK_TEXTS", 40)
    rows, output = texts(tmp_path / "rows.txt", 200), tmp_path / "out.jsonl"

    def stop(count: int) -> None:
        if count > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ownbert.topics(pretrained, rows, output, progress=stop)
    rows.write_text("others\n" * 200)
    with pytest.raises(ownbert.InputError, match="the stopped run differs in its input"):
        ownbert.topics(pretrained, rows, output, resume=True)
    ownbert.topics(pretrained, rows, output)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.txt", "out.jsonl"}


def test_nothing_is_resumed_without_a_file(pretrained: Path, tmp_path: Path):
    rows = texts(tmp_path / "rows.txt", 20)
    assert "name it with -o FILE" in refusal("topics", pretrained, rows, "--resume")
    assert "name it with -o FILE" in refusal("duplicates", rows, "--resume")
    with pytest.raises(ownbert.InputError, match="only rows of a file can be resumed"):
        ownbert.build_index(pretrained, ["a", "b"], tmp_path / "index", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topics", "search", "duplicates"])
def test_a_killed_run_is_resumed(name: str, pretrained: Path, tmp_path: Path):
    rows = texts(tmp_path / "rows.txt", 20_000)
    ending = {"topics": "out.jsonl", "search": "out", "duplicates": "out.txt"}[name]
    arguments = {
        "topics": ["topics", str(pretrained), str(rows), "--count", "3"],
        "search": ["search", "build", str(pretrained), str(rows)],
        "duplicates": ["duplicates", str(rows)],
    }[name]
    whole, output = tmp_path / "whole" / ending, tmp_path / ending
    assert run_cli(*arguments, "-o", whole).returncode == 0
    what = "signatures" if name == "duplicates" else "vectors"
    command = [sys.executable, "-m", "ownbert", *arguments, "-o", str(output)]
    part = kill_when_written(command, tmp_path / f"{what}-{ending}")
    kept = part.read_bytes()
    assert not (output / "index.json" if name == "search" else output).exists()
    part.write_bytes(kept[:-3])  # in the middle of a row
    assert run_cli(*arguments, "-o", output, "--resume").returncode == 0
    assert contents(output) == contents(whole)
    assert not part.exists()
