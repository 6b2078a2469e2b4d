"""Shared parts of all model cards: README.md of a model folder, for readers and for the hub.

It may contain label names, but never texts of the training data.
"""

import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import yaml

import ownbert
from ownbert.files.folders import CARD_SIGN, is_ours
from ownbert.files.input_files import sha256_of
from ownbert.files.writing import write_text
from ownbert.hub import PREFIX
from ownbert.language import translated
from ownbert.language.messages import Message, sentences
from ownbert.run.file_names import CARD as CARD
from ownbert.terminal import printable

# Distinguishes generated cards from those written by users.
MARK = f"{CARD_SIGN}, and rewritten when it runs again; remove this line to keep it. -->"

MAX_ROWS = 10  # maximum rows of a table with one row per label or model
MAX_LABELS = 100  # maximum labels in a sentence
# A fenced code block, or a paragraph between blank lines.
_BLOCK = re.compile(r"^```\w*\n.*?\n```$|^\S[^\n]*(?:\n(?!```)[^\n]+)*", re.DOTALL | re.MULTILINE)
# Settings that are shown elsewhere in the card, or do not affect what is learnt.
_OMITTED = frozenset(
    {
        *("folder", "task.name", "learning_rate", "epochs", "max_steps", "device", "precision"),
        *("log_every", "eval_every", "save_every", "keep", "tensorboard"),
    }
)


def save_card(
    folder: str | Path,
    front: Mapping[str, Any],
    template: str,
    values: Mapping[str, Any],
    *,
    name: str | None = None,
    base: str | Path | None = None,
) -> str | None:
    """Write README.md into a model folder, unless the user has written one; return a warning or
    None.

    Args:
        front: metadata for the hub.
        template: Python file with a template of the same name and the extension .md beside it.
        values: variables of the template, in addition to the functions ``cell``, ``in_short`` and
            ``repr``.
        name: name of the model; by default the folder's.
        base: folder of the model it was made from; the metadata have its name on the hub, if any.
    """
    path = Path(folder) / CARD
    if path.exists() and not is_ours(path):
        return Message(
            "{path} was not written by ownbert and is kept; no model card was written", path
        )
    python = platform.python_version()
    versions = f"ownbert {ownbert.__version__}, torch {torch.__version__}, Python {python}"
    origin = hub_base(str(base)) if base else ""
    front = {**front, **({"base_model": origin} if origin else {}), "tags": ["ownbert"]}
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    name = name or Path(folder).resolve().name
    start = [f"---\n{head}---", MARK, f"# {cell(name)}"]
    text = _compiled(Path(template).with_suffix(".md")).render({"name": name, **values})
    for block in [*_BLOCK.findall(text), "## Versions"]:
        # Tables, code and pictures are translated already; a paragraph is on one line.
        if not block.startswith(("|", "```")):
            block = " ".join(block.split("\n"))
        start.append(translated(block))
    write_text(path, "\n\n".join([*start, versions]) + "\n")
    return None


@cache
def _compiled(template: Path) -> Any:
    """Compile a template, once per process: that takes longer than writing the card."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.globals.update(
        cell=cell, in_short=labels_in_short, repr=repr, message=Message, sentences=sentences
    )
    environment.globals["_"] = _in_language
    return environment.from_string(template.read_text(encoding="utf-8"))


def _in_language(text: str, *values: Any) -> str:
    """A paragraph with values; the templates break its lines."""
    return translated(text if isinstance(text, Message) else " ".join(text.split()), *values)


def changed_settings(
    recipe: Any, default: Any, sections: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield (name, value), both as in ``section.name=value``, of the settings of a recipe that
    affect what is learnt and differ from ``default``."""
    for section in sections:
        ours, theirs = getattr(recipe, section), getattr(default, section)
        for field in fields(ours):
            value, name = getattr(ours, field.name), f"{section}.{field.name}"
            if _OMITTED & {name, field.name} or value == getattr(theirs, field.name):
                continue
            inner = vars(value).items() if is_dataclass(value) else ()
            for key, part in [(f"{name}.{key}", part) for key, part in inner] or [(name, value)]:
                yield key, ",".join(map(str, part)) if isinstance(part, tuple) else str(part)


def sha256(path: str | Path | None) -> str:
    """The SHA-256 of a file, in hexadecimal; "" if there is no file."""
    return sha256_of(Path(path)) if path and Path(path).is_file() else ""


def table(names: Sequence[str], rows: Any, *, most: int | None = None) -> str:
    """Format a Markdown table; rows after the first ``most`` are replaced by their number."""
    rows = list(rows)
    shown = rows[:most]
    lines = [list(map(translated, names)), ["---"] * len(names), *shown]
    text = "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)
    if len(shown) == len(rows):
        return text
    return f"{text}\n\n{translated('and {count:,} more.', len(rows) - len(shown))}"


def in_words(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Translate rows of a table whose cells are known names and values."""
    return ((translated(name), translated(value)) for name, value in rows)


def labels_in_short(labels: Sequence[str]) -> str:
    """Labels in a sentence; only the first ones if there are many."""
    shown = ", ".join(map(cell, labels[:MAX_LABELS]))
    more = len(labels) - MAX_LABELS
    return shown + translated(" and {more:,} more", more) if more > 0 else shown


def pictures(folder: str | Path, captions: Mapping[str, str]) -> str:
    """Markdown for the pictures in a folder."""
    existing = {name: what for name, what in captions.items() if (Path(folder) / name).exists()}
    return "\n\n".join(f"![{translated(what)}]({name})" for name, what in existing.items())


def hub_base(folder: str) -> str:
    """The hub name of the model that a folder is, or was trained from; "" if none. The hub shows
    ``base_model`` as a link, so names of local folders must not be used. For a local folder the
    name is taken from its own card."""
    if folder.startswith(PREFIX):
        return folder.removeprefix(PREFIX)
    path = Path(folder)
    cached = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.resolve().parent.parent.name)
    if cached and path.resolve().parent.name == "snapshots":
        return "/".join(cached.groups())
    card = path / CARD
    if not card.is_file() or not is_ours(card):
        return ""
    _, _, rest = card.read_text(encoding="utf-8", errors="replace").partition("---\n")
    metadata = rest.partition("\n---\n")[0]
    name = re.search(r"(?m)^base_model: *([\w.-]+/[\w.-]+)$", metadata)
    return name[1] if name else ""


# Characters with a meaning in Markdown or HTML, and cell separators of tables.
_MARKUP = re.compile(r"([\\`*\[\]<>|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_SPECIAL = {"<": "&lt;", ">": "&gt;"}
_REFERENCE = re.compile(r"&(?=#?\w+;)")


def cell(text: str) -> str:
    """Escape text for a table cell or a sentence of a card, on one line."""
    line = _REFERENCE.sub("&amp;", printable(" ".join(text.split())))
    return _MARKUP.sub(lambda found: _SPECIAL.get(found[1], f"\\{found[1]}"), line)
