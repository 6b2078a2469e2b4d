"""The scripts of benchmarks and examples use names that ownbert has."""

import argparse
import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [*sorted(ROOT.glob("benchmarks/*.py")), *sorted(ROOT.glob("examples/*.py"))]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_every_name_that_a_script_imports_is_there(path: Path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ownbert"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")


def test_the_baseline_of_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    tasks = importlib.import_module("tasks")
    monkeypatch.setattr(tasks, "minilm", lambda: tmp_path)
    (tmp_path / "banking77").mkdir()
    for part in ("train", "test"):
        rows = "label\ttext\n" + "red\ta rose\nblue\tthe sea\n" * 3
        (tmp_path / "banking77" / f"{part}.tsv").write_text(rows)
    given = argparse.Namespace(sets=["banking77"], data=tmp_path, precision="float32")
    tasks.baseline(given)
    assert "macro_f1 1.0000" in capsys.readouterr().out
