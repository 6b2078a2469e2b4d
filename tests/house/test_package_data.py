"""Every file of the package that is no Python is installed with it."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ownbert"


def test_files_that_are_no_python_are_package_data():
    tomllib = pytest.importorskip("tomllib", reason="needs Python 3.11")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = {
        path
        for package, patterns in settings["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / "src" / package.replace(".", "/")).glob(pattern)
    }
    others = {
        path
        for path in SOURCE.rglob("*")
        if path.is_file() and path.suffix != ".py" and path.name[0] != "."
        if path.parent.name != "__pycache__"
    }
    assert others == listed
    assert SOURCE / "inspect/trace/page.js" in listed
    assert SOURCE / "templates/report.css" in listed
