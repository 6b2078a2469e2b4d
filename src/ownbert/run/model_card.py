"""What all model cards share: the README.md of a model folder, for people and for the hub.

It may contain names of labels, but never texts of the training data.
"""

import hashlib
import platform
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

import ownbert
from ownbert.files import write_text
from ownbert.folders import CARD_SIGN
from ownbert.hub import PREFIX
from ownbert.language import translated
from ownbert.run.file_names import CARD as CARD
from ownbert.terminal import printable

# Tells our cards from those that users wrote.
MARK = f"{CARD_SIGN}, and rewritten when it runs again; remove this line to keep it. -->"

MAX_ROWS = 10  # of a table with a row for each label or model
MAX_LABELS = 100  # in a sentence
# Code between its fences, or what stands between blank lines.
_BLOCK = re.compile(r"^```\w*\n.*?\n```$|^\S[^\n]*(?:\n(?!```)[^\n]+)*", re.DOTALL | re.MULTILINE)
# Settings that are shown elsewhere in the card, or do not change what is learnt.
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
) -> str | None:
    """Write README.md into a model folder, unless the user has written one there.

    Args:
        front: the metadata that the hub reads.
        template: the Python file whose neighbour of the same name with .md is the template.
        values: what stands in it; it has the functions ``cell``, ``in_short``, ``repr`` too.
        name: of the model, by default that of the folder.

    Returns:
        A warning, if any.
    """
    path = Path(folder) / CARD
    if path.exists() and not is_ours(path):
        return f"{path} was not written by ownbert and is kept; no model card is written"
    versions = (
        f"ownbert {ownbert.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )
    head = yaml.safe_dump(dict(front) | {"tags": ["ownbert"]}, sort_keys=False, allow_unicode=True)
    name = name or Path(folder).resolve().name
    start = [f"---\n{head}---", MARK, f"# {cell(name)}"]
    blocks = _rendered(Path(template).with_suffix(".md"), {"name": name, **values})
    shown = map(_in_language, [*blocks, "## Versions"])
    write_text(path, "\n\n".join([*start, *shown, versions]) + "\n")
    return None


def _rendered(template: Path, values: Mapping[str, Any]) -> Iterator[str]:
    """The blocks of a template of Markdown: code and tables as they are, paragraphs on one line."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.globals.update(cell=cell, in_short=labels_in_short, repr=repr)
    text = environment.from_string(template.read_text(encoding="utf-8")).render(values)
    for block in _BLOCK.findall(text):
        yield block if block.startswith(("|", "```")) else " ".join(block.split("\n"))


def _in_language(block: str) -> str:
    """A paragraph or heading; what is a table, code or picture has been translated in its parts."""
    return block if block.startswith(("|", "```", "![")) else translated(block)


def is_ours(card: Path) -> bool:
    """Whether ownbert wrote a card, so that it may be replaced."""
    return CARD_SIGN in card.read_text(encoding="utf-8", errors="replace")


def changed_settings(
    recipe: Any, default: Any, sections: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """The settings of a recipe that change what is learnt and differ from ``default``.

    Yields:
        (name, value).
    """
    for section in sections:
        ours, theirs = getattr(recipe, section), getattr(default, section)
        for field in fields(ours):
            value, name = getattr(ours, field.name), f"{section}.{field.name}"
            if _OMITTED & {name, field.name} or value == getattr(theirs, field.name):
                continue
            inner = vars(value) if is_dataclass(value) else {}
            yield from ((f"{name}.{key}", str(each)) for key, each in inner.items())
            if not inner:
                yield name, str(value)


def sha256(path: str | Path | None) -> str:
    """The SHA-256 of a file, in hexadecimal; "" if there is no file."""
    if not path or not Path(path).is_file():
        return ""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def table(names: Sequence[str], rows: Any, *, most: int | None = None) -> str:
    """A Markdown table.

    Args:
        most: rows; of more the first are shown, and how many are left out.
    """
    rows = list(rows)
    shown = rows[:most]
    lines = [list(map(translated, names)), ["---"] * len(names), *shown]
    text = "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)
    if len(shown) == len(rows):
        return text
    return f"{text}\n\n{translated(f'and {len(rows) - len(shown):,} more.')}"


def in_words(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Rows of a table whose cells are names and values of ours, in the current language."""
    return ((translated(name), translated(value)) for name, value in rows)


def labels_in_short(labels: Sequence[str]) -> str:
    """Labels in a sentence; of very many the first."""
    shown = ", ".join(map(cell, labels[:MAX_LABELS]))
    more = len(labels) - MAX_LABELS
    return shown + translated(f" and {more:,} more") if more > 0 else shown


def pictures(folder: str | Path, captions: Mapping[str, str]) -> str:
    """The Markdown of the pictures that are in a folder.

    Args:
        captions: by the name of the file.
    """
    there = {name: what for name, what in captions.items() if (Path(folder) / name).exists()}
    return "\n\n".join(f"![{translated(what)}]({name})" for name, what in there.items())


def hub_base(folder: str) -> str:
    """The name on the hub of the model that a folder stands for or was made from; "" if none.

    The hub shows ``base_model`` as a link, so the name of a local folder must not stand there. A
    local folder has been made from a model of the hub if its own card names one.
    """
    if folder.startswith(PREFIX):
        return folder.removeprefix(PREFIX)
    path = Path(folder)
    cached = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", path.resolve().parent.parent.name)
    if cached and path.resolve().parent.name == "snapshots":
        return "/".join(cached.groups())
    card = path / CARD
    if not card.is_file() or not is_ours(card):
        return ""
    name = re.search(r"(?m)^base_model: *([\w.-]+/[\w.-]+)$", _front_of(card))
    return name[1] if name else ""


def _front_of(card: Path) -> str:
    """The metadata at the top of a card, as it stands there."""
    _, _, rest = card.read_text(encoding="utf-8", errors="replace").partition("---\n")
    return rest.partition("\n---\n")[0]


# What Markdown or HTML would read as more than text, and what ends the cell of a table.
_MARKUP = re.compile(r"([\\`*\[\]<>|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
_SPECIAL = {"<": "&lt;", ">": "&gt;"}
_REFERENCE = re.compile(r"&(?=#?\w+;)")


def cell(text: str) -> str:
    """Text on one line that is shown as it is, in a table or a sentence of a card."""
    line = _REFERENCE.sub("&amp;", printable(" ".join(text.split())))
    return _MARKUP.sub(lambda found: _SPECIAL.get(found[1], f"\\{found[1]}"), line)
