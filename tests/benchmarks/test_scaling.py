"""benchmarks/scaling.py measures in processes of their own, and fits exponents."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import scaling


def test_the_exponent_is_that_of_the_upper_half():
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    measured = [5.0, 5.0, 5.0, 64.0, 256.0, 1024.0]
    assert scaling.exponent(values, measured) == pytest.approx(2)
    assert scaling.exponent([1.0, 4.0], [3.0, 6.0]) == pytest.approx(0.5)
    assert scaling.exponent([1.0], [3.0]) is None
    assert scaling.exponent([1.0, 2.0], [0.0, 0.0]) is None


def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[dict]:
    results, picture = tmp_path / "found.json", tmp_path / "found.png"
    common = ["--small", "--rounds", "1", "--seconds", "0"]
    common += ["--json", str(results), "--picture", str(picture)]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *common, *options])
    scaling.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(results.read_text())["rows"]
    assert all(row["seconds"] > 0 and row["tokens_per_second"] > 0 for row in rows)
    return rows


LIBRARIES = ("OwnBERT", "Transformers")


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_axes_are_measured_and_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    rows = measured(tmp_path, monkeypatch, "--axes", "layers", "--works", "training")
    series = [(row["axis"], row["value"], row["library"], row["work"]) for row in rows]
    expected = [("layers", value, name, "training") for value in (1, 2) for name in LIBRARIES]
    assert series == expected
    assert "| layers | 2 | Transformers, training |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_axis_of_cores(tmp_path: Path):
    results = tmp_path / "found.json"
    options = ["--axes", "cores", "--cores", "2", "--rounds", "1", "--seconds", "0"]
    command = [sys.executable, scaling.__file__, *options, "--json", str(results)]
    subprocess.run(command, check=True, timeout=300)
    rows = json.loads(results.read_text())["rows"]
    assert [(row["value"], row["library"], row["work"]) for row in rows] == [
        (value, name, work)
        for value in (1, 2)
        for work in ("training", "encoding")
        for name in LIBRARIES
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_a_corpus_is_prepared_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sizes = ("--smallest-corpus", "0.1", "--largest-corpus", "0.4")
    rows = measured(tmp_path, monkeypatch, "--axes", "corpus", *sizes)
    assert [(row["value"], row["library"], row["work"]) for row in rows] == [
        (value, *rest)
        for value in (0.1, 0.4)
        for rest in [*((name, "preparing") for name in LIBRARIES), ("OwnBERT", "batches")]
    ]
