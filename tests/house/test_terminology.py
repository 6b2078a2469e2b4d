"""Names in the code are the field's terms: words that readers stumbled over stay out."""

import ast
import re
from pathlib import Path

from support.source_code import SOURCE, nodes, tree

# What to write instead.
BANNED = {
    "said": "description, metadata or warning",
    "told": "description, encoder_hidden or memory_layout",
    "asked": "settings, requested",
    "lesson": "phase_data or splits",
    "lessons": "phase_data or splits",
    "examination": "evaluation",
    "begun": "resumed, run_folder",
    "claim": "reserve",
    "claim_output": "reserve",
    "head_start": "initialise",
    "spare": "dummy",
    "goes_on": "continues_step",
    "reading": "input_view",
    "ceiling": "mfu, peak_flops",
    "verdict": "diagnose_stagnation",
    "cut_again": "reshard",
    "put_together": "gather_full_model",
    "first_does": "on_rank_zero",
    "Canvas": "ImageInputBuilder",
    "Cut": "a word for what it is",
    "Found": "a word for what it is",
    "Frame": "TextInputBuilder",
    "Habits": "EmbeddingConfig",
    "Kept": "AttentionGradients",
    "Lesson": "PhaseData or LabelledSplits",
    "Part": "a word for what it is",
    "Seen": "StepStats, or a word for what it is",
    "Twice": "RDrop",
    "Watch": "Monitor",
    "Written": "Hypothesis",
}
FILES = sorted(SOURCE.rglob("*.py"))


def names_of(path: Path) -> set[str]:
    """Every name that a module gives: of classes, functions, arguments, variables, attributes."""
    names = {path.stem}
    for node in nodes(path):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def test_no_banned_names():
    wrong = [
        f"{path.relative_to(SOURCE)}: {name}: write {BANNED[name]}"
        for path in FILES
        for name in names_of(path) & BANNED.keys()
    ]
    assert not wrong, "\n".join(wrong)


def test_public_class_names_are_unique():
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


def test_documented_arguments_are_parameters():
    wrong = []
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                _, _, section = (ast.get_docstring(node) or "").partition("Args:\n")
                names = re.findall(r"^    (\w[\w, ]*):", section.partition("\n\n")[0], re.M)
                known = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
                unknown = {name for each in names for name in each.split(", ")} - known
                wrong += [f"{path.relative_to(SOURCE)}: {node.name}: {name}" for name in unknown]
    assert not wrong, "\n".join(wrong)


PHRASES = (
    *("in the place of", "gone on with", "go on with", "goes on with", "head start"),
    *("a vector a text", "a row a document", "in any company", "where labels are plenty"),
    *("the way of data", "answers nothing yet", "show the version and leave"),
)
ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PROSE = [ROOT / "README.md", *DOCS, *FILES, *SOURCE.rglob("*.po")]


def test_no_banned_phrases():
    wrong = []
    for path in PROSE:
        words = " ".join(path.read_text(encoding="utf-8").lower().split())
        wrong += [f"{path}: {phrase}" for phrase in PHRASES if phrase in words]
    assert not wrong, "\n".join(wrong)
