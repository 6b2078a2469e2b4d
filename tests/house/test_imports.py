"""Who may import whom (docs/architecture.md), and that ``import ownbert`` does no work."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import ownbert
from support.source_code import SOURCE, nodes

# What each part may import of the others; the parts below all of them are for everyone.
EVERYONE = {
    "charts",
    "checks",
    "exceptions",
    "files",
    "figures",
    "hub",
    "language",
    "limits",
    "pages",
    "protobuf",
    "settings",
    "terminal",
    "threads",
    "time_limit",
}
ALLOWED = {
    "charts": set(),
    "checks": set(),
    "exceptions": set(),
    "files": set(),
    "figures": set(),
    "hub": set(),
    "language": set(),
    "limits": set(),
    "pages": set(),
    "protobuf": set(),
    "settings": set(),
    "terminal": set(),
    "threads": set(),
    "time_limit": set(),
    "config": set(),
    "text": set(),
    "tables": set(),
    "batches": {"text", "tables"},
    "corpus": {"text", "tables", "batches"},
    "nn": {"config", "batches"},
    "families": {"config", "nn"},
    "checkpoint": {"config", "families", "nn", "text"},
    "objectives": {"config", "text", "batches", "corpus", "nn", "checkpoint"},
    "hf": set(),
    "transformers": {"config", "batches", "families", "nn", "text", "checkpoint"},
    "train": {"config", "batches", "nn", "objectives"},
    "run": {"config", "text", "batches", "nn", "objectives", "checkpoint", "train"},
    "views": {"batches", "corpus"},
    "tasks": {"config", "text", "nn", "objectives", "checkpoint", "train"}
    | {"tables", "batches", "corpus", "views"},
    "inference": {"config", "text", "nn", "checkpoint", "objectives", "train", "run", "tasks"}
    | {"tables", "batches", "corpus", "views"},
    "pretraining": {"config", "text", "nn", "objectives", "checkpoint", "train", "run"}
    | {"batches", "corpus"},
    "finetuning": {"config", "text", "nn", "objectives", "checkpoint", "train", "run", "tasks"}
    | {"tables", "batches", "corpus", "inference", "pretraining", "views"},
    "fitting": {"nn", "config", "checkpoint", "train", "run", "tasks", "views", "inference"}
    | {"tables", "batches", "corpus", "pretraining", "finetuning"},
    "unlabelled": {"checkpoint", "run", "tasks", "views", "inference", "fitting"}
    | {"tables", "batches", "corpus", "train"},
}
LEAVES = {"cli", "inspect", "serve", "exporting", "bulk"}
# Features that may import all but the commands and each other, and that only the commands import:
# other parts find them by name, in the tables of families and tasks.
FEATURES = {"translation", "vision"}
HEAVY = (
    "torch",
    "transformers",
    "scipy",
    "sklearn",
    "matplotlib",
    "pyarrow",
    "tokenizers",
    "numpy",
)


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Parts of ownbert that a file imports, inside of functions too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative imports hide where they go"
            module = node.module or ""
            names = [module] if module != "ownbert" else [f"ownbert.{a.name}" for a in node.names]
        else:
            continue
        found |= {n.split(".")[1] for n in names if n.startswith("ownbert.")}
    return found


FILES = [p for p in sorted(SOURCE.rglob("*.py")) if part_of(p) not in ("__init__", "__main__")]


def test_every_part_has_its_place():
    assert {part_of(path) for path in FILES} <= ALLOWED.keys() | LEAVES | FEATURES
    assert {"cli", "batches", "nn", "text", "train", "tasks"} <= {part_of(path) for path in FILES}


def test_imports_go_one_way():
    wrong = {}
    for path in FILES:
        part, names = part_of(path), imported(path) - {part_of(path)}
        if part in FEATURES:
            names &= FEATURES | (LEAVES - {"inspect"})
        elif part in LEAVES:
            allowed = {"cli": LEAVES | FEATURES, "serve": {"inspect"}}.get(part, set())
            names &= (LEAVES | FEATURES) - allowed
        else:
            names -= ALLOWED[part] | EVERYONE
        if names:
            wrong[str(path.relative_to(SOURCE))] = sorted(names)
    assert not wrong, f"must not import these parts: {wrong}"


def modules_imported(path: Path) -> set[str]:
    """Modules of ownbert that a file imports, inside of functions and for types too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # A name of a package is one of its modules, or defined in its __init__.
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & MODULES.keys() or {node.module}
    return found & MODULES.keys()


def test_the_rows_of_fit_import_none_of_its_models():
    """Nor of its report: what is read does not depend on what is made of it."""
    wrong = {
        (path.name, module)
        for path in (SOURCE / "fitting" / "rows").glob("*.py")
        for module in modules_imported(path)
        if module.startswith("ownbert.fitting.")
        and not module.startswith(("ownbert.fitting.rows", "ownbert.fitting.fit_recipe"))
    }
    assert not wrong


def module_name(path: Path) -> str:
    return ".".join(("ownbert", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


# Without the root, which names the public functions and imports nothing before they are used.
MODULES = {module_name(path): path for path in FILES}


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: modules_imported(path) - {name} for name, path in MODULES.items()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names them


def test_the_table_itself_goes_one_way():
    order = list(ALLOWED)
    for part, allowed in ALLOWED.items():
        assert all(order.index(other) < order.index(part) for other in allowed), part
        assert not allowed & LEAVES


LIGHT = """
import sys
import {module}
heavy = [name for name in {heavy} if name in sys.modules]
sys.exit("imports " + ", ".join(heavy) if heavy else 0)
"""


@pytest.mark.parametrize("module", ["ownbert", "ownbert.cli", "ownbert.inference.embedder"])
def test_a_light_import(module: str):
    """Also of an embedder, which runs exported files without torch."""
    heavy = HEAVY if module == "ownbert" else HEAVY[:5]
    done = subprocess.run(
        [sys.executable, "-c", LIGHT.format(module=module, heavy=heavy)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_public_names_are_there():
    for name in ownbert.__all__:
        assert getattr(ownbert, name).__name__ == name
    assert set(ownbert.__all__) <= set(dir(ownbert))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        ownbert.nothing  # noqa: B018
