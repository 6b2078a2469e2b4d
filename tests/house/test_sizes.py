"""Folders, files and functions stay small; what is longer has a reason here."""

import ast
from pathlib import Path

from support.source_code import SOURCE, nodes

FILES = sorted(SOURCE.rglob("*.py"))
MODULES, LINES, STATEMENTS = 25, 600, 60
LONG_FILES = {
    "inference/embedder.py": "one class, with the API of sentence-transformers",
    "inference/score.py": "surprisal, the profile of normal texts, and rows of scores",
    "tables/columns.py": "tables of usual names",
}
LONG_FUNCTIONS = {
    "train/loop.py _train_phases": "a training can be read from top to bottom",
    "inspect/model_comparison.py compare": "checks, predictions, scores and their difference",
    # Long messages and their values take many lines.
    **dict.fromkeys(
        [
            "checkpoint/copying.py copy_weights",
            "exporting/quantize.py quantize",
            "fitting/rows/added_rows.py with_added",
            "inference/evaluate.py evaluate",
            "inspect/describe.py _facts",
        ],
        "messages",
    ),
}


def name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_folders_are_narrow():
    for folder in {path.parent for path in FILES}:
        modules = [path for path in FILES if path.parent == folder and path.stem != "__init__"]
        assert len(modules) <= MODULES, f"{name(folder)} has {len(modules)} modules"


def test_files_are_short():
    long = {name(p) for p in FILES if len(p.read_text("utf-8").splitlines()) > LINES}
    assert long == LONG_FILES.keys()


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without signature and docstring."""
    first = function.body[ast.get_docstring(function) is not None :][:1]
    return function.body[-1].end_lineno - first[0].lineno + 1 if first else 0  # type: ignore


def test_functions_are_short():
    long = set()
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                long |= {f"{name(path)} {node.name}"} if length(node) > STATEMENTS else set()
    assert long == LONG_FUNCTIONS.keys()
