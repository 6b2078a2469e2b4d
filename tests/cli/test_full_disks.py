"""Commands that write several files: all of them, or, where the disk is full, none."""

from pathlib import Path

import pytest

from ownbert import InputError, fit, predict
from ownbert.files.writing import together, write_text
from support.cli import refusal, run_cli
from support.limits import files_of_at_most
from support.plots import matplotlib_installed


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_that_belong_together(tmp_path: Path):
    def write() -> None:
        with together():
            write_text(tmp_path / "new" / "a", "a")
            write_text(tmp_path / "old", "new")
            write_text(tmp_path / "new" / "b", "b" * 200)

    (tmp_path / "old").write_text("old")
    with pytest.raises(InputError, match="cannot write"), files_of_at_most(100):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"
    with together():
        write_text(tmp_path / "new" / "a", "a")
        assert not (tmp_path / "new" / "a").exists()
        write_text(tmp_path / "new" / "b", "b")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a", "b"]


@pytest.mark.parametrize("size", [0, 300])
@pytest.mark.parametrize("shard", [None, "1/2"])
def test_predict_leaves_nothing(
    size: int, shard: str | None, classifier: Path, topics: Path, tmp_path: Path
):
    output = tmp_path / "new" / "out.jsonl"
    with pytest.raises(InputError, match="cannot write"), files_of_at_most(size):
        predict(classifier, topics / "test.csv", output, shard=shard)
    assert not content(tmp_path) or size
    if size:  # answers that are kept, to be continued
        assert all(text for text in content(tmp_path).values())


def test_a_part_without_its_manifest_does_not_stay(classifier: Path, tmp_path: Path):
    rows = [{"text": "red1"}, {"text": "blue1"}]
    predict(classifier, rows, tmp_path / "whole.jsonl", shard="1/2")
    part, about = (len(text) for text in sorted(content(tmp_path).values(), key=len))
    assert part < about
    with pytest.raises(InputError, match="cannot write"), files_of_at_most(about - 1):
        predict(classifier, rows, tmp_path / "other" / "out.jsonl", shard="1/2")
    assert not list(tmp_path.rglob("out*"))


def test_evaluate_writes_metrics_and_picture_or_neither(
    classifier: Path, topics: Path, tmp_path: Path
):
    output = tmp_path / "out.json"
    given = ("evaluate", classifier, topics / "test.csv", "-q", "-o", output)
    with matplotlib_installed():
        assert run_cli(*given).returncode == 0
        before = content(tmp_path)
        json, picture = (len(before[str(tmp_path / f"out.{n}")]) for n in ("json", "confusion.png"))
        assert json < picture
        output.write_text("old")
        old = content(tmp_path)
        with files_of_at_most(picture - 1):
            assert "cannot write" in refusal(*given)
    assert content(tmp_path) == old


def test_explain_writes_page_and_picture_or_neither(classifier: Path, tmp_path: Path):
    files = (tmp_path / "a.html", tmp_path / "a.png")
    given = ("explain", classifier, "red1 red2", "--html", files[0], "--png", files[1])
    with matplotlib_installed():
        done = run_cli(*given)
        assert done.returncode == 0, done.stderr
        sizes = [path.stat().st_size for path in files]
        for path in files:
            path.unlink()
        with files_of_at_most(max(sizes) - 1):
            assert "cannot write" in refusal(*given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 20, 3000])
@pytest.mark.parametrize("there", [False, True])
def test_fit_leaves_nothing_where_nothing_is_finished(
    size: int, there: bool, topics: Path, tmp_path: Path
):
    folder = tmp_path / "best"
    if there:
        folder.mkdir()
    with pytest.raises(InputError, match="cannot write"), files_of_at_most(size):
        fit(topics / "train.csv", output=folder, minutes=1, quiet=True)
    assert not content(tmp_path)
    assert folder.exists() == there
