"""Passages of mixed length that every Python installation has: its docstrings and documentation.

Docstrings of the standard library and paragraphs of ``pydoc``'s topics; the selection depends only
on the version of Python.
"""

import ast
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

# Not documentation, or not part of every installation.
_LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "turtledemo"}
# In characters; shorter passages are mostly names.
_SHORTEST = 45


def passages(count: int, seed: int = 0) -> list[str]:
    """``count`` different passages in random order."""
    found = {text for text in (*_docstrings(), *_paragraphs()) if len(text) >= _SHORTEST}
    ordered = sorted(found)
    random.Random(seed).shuffle(ordered)
    if len(ordered) < count:
        raise SystemExit(f"this Python has only {len(ordered)} passages, not {count}")
    return ordered[:count]


def _docstrings() -> Iterator[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(library.rglob("*.py")):
        if _LEFT_OUT & set(path.relative_to(library).parts):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, kinds):
                yield ast.get_docstring(node) or ""


def _paragraphs() -> Iterator[str]:
    for topic in topics.values():
        yield from (part.strip() for part in topic.split("\n\n"))
