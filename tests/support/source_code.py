"""The modules of the package, each parsed once for all tests that look at the source code."""

import ast
from functools import cache
from pathlib import Path

import ownbert

SOURCE = Path(ownbert.__file__).parent


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a module; nobody may change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module."""
    return tuple(ast.walk(tree(path)))
