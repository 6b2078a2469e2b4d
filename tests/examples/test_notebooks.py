"""The notebooks of examples/notebooks run, and are the same in both languages but for the prose."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/notebooks"
ENGLISH, CHINESE = (
    FOLDER / f"from_text_to_predictions{language}.ipynb" for language in ("", ".zh-CN")
)


def cells(path: Path, kind: str) -> list[str]:
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_both_languages_have_the_same_code():
    assert cells(ENGLISH, "code") == cells(CHINESE, "code")
    english, chinese = cells(ENGLISH, "markdown"), cells(CHINESE, "markdown")
    assert len(english) == len(chinese) >= 5
    assert all(any("\u4e00" <= character <= "\u9fff" for character in text) for text in chinese)


@pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_no_outputs_are_committed(path: Path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert not any(cell.get("outputs") for cell in notebook["cells"])


@pytest.mark.slow
def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    """Without Jupyter, so that it is checked everywhere; what shows pictures is left out."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in cells(ENGLISH, "code"):
        if "IPython" not in code:
            exec(code, names)
    printed = capsys.readouterr().out
    assert "'label': 'delivery'" in printed
    assert "library_name: transformers" in printed


@pytest.mark.slow
@pytest.mark.parametrize("path", [ENGLISH, CHINESE], ids=["English", "Chinese"])
def test_the_notebook_runs_in_jupyter(path: Path, tmp_path: Path):
    why = "needs: pip install 'ownbert[notebook]'"
    nbclient = pytest.importorskip("nbclient", reason=why)
    nbformat = pytest.importorskip("nbformat", reason=why)
    pytest.importorskip("ipykernel", reason=why)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    assert "'label': 'delivery'" in str([cell.get("outputs") for cell in notebook.cells])


@pytest.mark.slow
def test_each_cell_has_one_output_without_texts(topics: Path, tmp_path: Path):
    """Progress is one plain output, updated in place; bare values are named."""
    why = "needs: pip install 'ownbert[notebook]'"
    nbformat = pytest.importorskip("nbformat", reason=why)
    nbclient = pytest.importorskip("nbclient", reason=why)
    cells = (
        f"import ownbert\np = ownbert.fit({str(topics / 'train.csv')!r}, minutes=0.05, output='f')",
        f"_ = ownbert.pretrain({str(topics / 'tokens')!r}, 'bert', max_steps=40)",
        "p",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = []
    for cell in notebook.cells:
        (output,) = cell.outputs
        assert set(output["data"]) == {"text/plain"}
        shown.append(output["data"]["text/plain"])
    assert "\x1b" not in "".join(shown)
    assert "saved f; see f/report.html" in shown[0]
    assert "saved bert" in shown[1]
    assert shown[2] == "Predictor('f', task='classify', labels=<3 values>)"
    texts = [line.split(",", 1)[1] for line in (topics / "train.csv").read_text().splitlines()[1:]]
    assert not [text for text in texts if len(text.split()) > 3 and text in "".join(shown)]
