"""The texts of the source code that people read, as templates with ``{}`` for values."""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ownbert.language.messages import names_of
from support.source_code import SOURCE, nodes, tree

_ERRORS = ("InputError", "MissingError", "needing", "Message", "warn_of_input")
_TEMPLATES = (*_ERRORS, "translated", "say")
# Calls whose texts are not for readers of lines and pages, or are looked at by tests of their own.
_OTHER_CALLS = (
    *_ERRORS,
    "Option",
    "argument",
    "setting",
    "changed",
    "code",
    "ColumnSpec",
    "KeyError",
)
# Two words, the second in small letters: prose, and no name, path, formula or markup.
_PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,}")
_NAMED_VALUE = re.compile(r"\{[\w-][^{}]*\}")  # of str.format
_MARKUP = re.compile(r"[<>=]|ownbert|\b(?:pt|from|import|print|class|def|model)[(.]")


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = [p for p in SOURCE.rglob("*.py") if "language" not in p.relative_to(SOURCE).parts]
    return {path: tree(path) for path in paths}


@cache
def messages() -> set[str]:
    """The templates of all ``InputError``s that are written where they are raised, or as
    ``message`` before it."""
    found = set()
    for path in _trees():
        if not re.search(rf"({'|'.join(_TEMPLATES)})\(", path.read_text(encoding="utf-8")):
            continue
        for call in nodes(path):
            if isinstance(call, ast.Assign) and ast.unparse(call.targets[0]) == "message":
                text = _template(call.value) if isinstance(call.value, ast.Constant) else ""
                text = text if names_of(text) else ""
            elif isinstance(call, ast.Call) and _name(call) in _TEMPLATES and call.args:
                text = _template(call.args[0])
            else:
                continue
            text = re.sub("^(error|note|warning): ", "", text)
            if text and re.search("[A-Za-z]{2}", _NAMED_VALUE.sub("", text)):
                found.add(text)
    for template in SOURCE.rglob("*.md"):
        # Calls of _ and message in templates of jinja2, whose lines are broken.
        code = " ".join(re.findall(r"(?s){[{%].*?[}%]}", template.read_text(encoding="utf-8")))
        texts = (" ".join(text.split()) for text in re.findall(r'(?s)"((?:[^"\\]|\\.)*)"', code))
        found |= {text for text in texts if names_of(text) and _PROSE.search(text)}
    return found


def wrong_values() -> list[str]:
    """The templates that have more or fewer names than values."""
    found = []
    for path in _trees():
        for call in nodes(path):
            if not isinstance(call, ast.Call) or _name(call) not in _TEMPLATES or not call.args:
                continue
            template, *values = call.args
            if isinstance(template, ast.Name) and template.id == "message":
                template = _before(path, call.lineno)
            lists = [
                getattr(v.value, "elts", None) if isinstance(v, ast.Starred) else [v]
                for v in values
            ]
            if not isinstance(template, ast.Constant) or None in lists:
                continue
            values = [value for several in lists for value in several or ()]
            if len(names_of(template.value)) != len(values):
                found.append(template.value)
    return found


def _before(path: Path, line: int) -> ast.expr | None:
    """The last value of ``message`` before a line."""
    assigned = [
        node
        for node in nodes(path)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "message"
        and node.lineno < line
    ]
    return max(assigned, key=lambda node: node.lineno).value if assigned else None


def prose(module: str) -> set[str]:
    """What stands between the values in the sentences of a module or of a template of jinja2,
    without its documentation."""
    found = set()
    path = SOURCE / module
    for text in _paragraphs(path) if path.suffix != ".py" else _strings(_trees()[path]):
        for piece in _NAMED_VALUE.sub("{}", text).split("{}"):
            if _PROSE.search(piece) and not _MARKUP.search(piece):
                found.add(piece.strip())
    return found


def modules() -> list[str]:
    """All modules and templates of jinja2, by their paths."""
    paths = [*_trees(), *SOURCE.rglob("*.md"), *SOURCE.rglob("report.html")]
    return sorted(str(path.relative_to(SOURCE)) for path in paths)


@cache
def _literals() -> tuple[set[str], str]:
    """All texts of the source code, and all texts of its templates on one line."""
    constants = {
        node.value for path in _trees() for node in nodes(path) if isinstance(node, ast.Constant)
    }
    files = [path for kind in ("md", "html", "js", "yaml") for path in SOURCE.rglob(f"*.{kind}")]
    text = " ".join(path.read_text(encoding="utf-8") for path in files)
    return {text for text in constants if isinstance(text, str)}, " ".join(text.split())


def is_shown(text: str) -> bool:
    """Whether a text or template of the table is in the source code."""
    constants, templates = _literals()
    starts = ("", "note: ", "warning: ", "error: ")
    if any(start + text in constants for start in starts) or text in templates:
        return True
    if names_of(text):  # a number and its noun, which is a value
        return (
            re.fullmatch(r"\{(count|value)[^}]*\} [a-z ]+|[a-z]+ baseline \{value.*", text)
            is not None
        )
    # Put together from several texts.
    return all(word in _words() for word in re.findall("[a-zA-Z]+", text))


@cache
def _words() -> set[str]:
    constants, templates = _literals()
    return {word for text in (*constants, templates) for word in re.findall("[a-zA-Z]+", text)}


def entries_to_add(texts: Iterable[str], context: str = "") -> str:
    """What a failed test says of texts without a translation: where to add which entries."""
    lines = ["add to src/ownbert/language/zh.po, beside entries of the same kind:"]
    for text in dict.fromkeys(texts):
        # JSON escapes what PO files escape.
        strings = {"msgctxt": context, "msgid": text, "msgstr": ""}
        named = [f"{key} {json.dumps(strings[key], ensure_ascii=False)}" for key in strings]
        lines += ["", *(named if context else named[1:])]
    return "\n".join(lines)


def _paragraphs(template: Path) -> Iterator[str]:
    """The paragraphs of a template of jinja2, each on one line, with ``{}`` for values."""
    text = re.sub(r"(?s)```.*?```|{%.*?%}|{#.*?#}", "\n\n", template.read_text(encoding="utf-8"))
    text = re.sub(r"(?s){{.*?}}", "{}", text)
    return (" ".join(block.split()) for block in text.split("\n\n"))


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # documentation
        if isinstance(node, ast.Call) and _name(node) in _OTHER_CALLS:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        yield from _strings(node)


def _name(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


def _template(node: ast.expr) -> str:
    """A text with ``{}`` for its values; "" for what is none."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    return "{}" if isinstance(node, ast.FormattedValue) else ""
