"""A file into a file: whole or not at all, and resumed after it was stopped."""

import gzip
import shutil
import sys
from pathlib import Path

import pytest

from ownbert.exceptions import InputError
from ownbert.translation.decode import Translator, one_line, translate_file
from support.cli import run_cli
from support.kills import kill_when_written
from support.sequences import rows


def texts(path: Path, count: int) -> Path:
    path.write_text("".join(" ".join(row) + "\n" for row in rows(count, seed=5)))
    return path


@pytest.mark.slow
def test_a_killed_run_is_resumed(folder: Path, tmp_path: Path):
    given = texts(tmp_path / "in.txt", 1100)
    whole, output = tmp_path / "whole", tmp_path / "out"
    assert translate_file(Translator(folder, beams=1), given, whole) == 1100
    command = [sys.executable, "-m", "ownbert", "translate", str(folder), "--input", str(given)]
    command += ["-o", str(output), "--beams", "1"]
    part = kill_when_written(command, output)
    kept = part.read_bytes()
    assert 0 < len(kept.splitlines()) < 1100
    part.write_bytes(kept[:-3])  # in the middle of a line
    assert run_cli(*command[3:], "--resume").returncode == 0
    assert output.read_bytes() == whole.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "whole", "out"}


def test_an_interrupted_run_says_how_to_go_on(folder: Path, tmp_path: Path):
    given, output = texts(tmp_path / "in.txt", 600), tmp_path / "out.gz"
    translator = Translator(folder, beams=1)

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"512 predictions are kept in .*--resume"):
        translate_file(translator, given, output, progress=stop)
    with pytest.raises(InputError, match="the stopped run differs in its search"):
        translate_file(Translator(folder), given, output, resume=True)
    counts: list[int] = []
    assert translate_file(translator, given, output, resume=True, progress=counts.append) == 600
    assert counts == [512, 600]
    lines = given.read_text().splitlines()
    assert gzip.decompress(output.read_bytes()).decode().splitlines() == list(translator(lines))


def test_the_output_may_lie_in_the_folder(folder: Path, tmp_path: Path):
    own = Path(shutil.copytree(folder, tmp_path / "model"))
    given, output = texts(tmp_path / "in.txt", 600), own / "out.txt"
    translator = Translator(own, beams=1)

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="512 predictions are kept"):
        translate_file(translator, given, output, progress=stop)
    assert translate_file(translator, given, output, resume=True) == 600
    assert len(output.read_text().splitlines()) == 600


def test_texts_from_elsewhere_leave_nothing_behind(folder: Path, tmp_path: Path):
    translator, output = Translator(folder, beams=1), tmp_path / "out"

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^interrupted$"):
        translate_file(translator, iter(["10 11", "12"]), output, progress=stop)
    assert not list(tmp_path.iterdir())
    assert translate_file(translator, ["10 11", "", "12"], output) == 3
    assert output.read_text().splitlines()[1] == ""


def test_a_translation_is_a_line():
    assert one_line("one\ntwo\r\nthree\u2028four") == "one two three four"
