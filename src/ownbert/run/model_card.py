"""What model cards have in common: README.md of a folder, for people and for the hub.

Names of labels stand in it, texts never.
"""

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

import ownbert
from ownbert.files import write_text

CARD = "README.md"
# What tells a card of ours from one that somebody wrote.
MARK = "<!-- Written by ownbert, and written anew when it runs; without this line, kept. -->"
_OURS = "<!-- Written by ownbert"

ROWS = 100  # of a table of labels
# Settings that say where and when, not what was learnt.
_ASIDE = frozenset(
    {
        *("folder", "task.name", "learning_rate", "epochs", "max_steps", "device", "precision"),
        *("log_every", "eval_every", "save_every", "keep", "tensorboard"),
    }
)


def save_card(
    folder: str | Path, front: Mapping[str, Any], blocks: Sequence[str], *, name: str | None = None
) -> str | None:
    """Write README.md into a model folder, unless somebody has written one there himself.

    front: what the hub reads. name: where the folder will be, if elsewhere. Returns what to tell
    people, if anything.
    """
    path = Path(folder) / CARD
    if path.exists() and not is_ours(path):
        return f"{path} is not from ownbert and stays; no model card is written"
    versions = (
        f"ownbert {ownbert.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}"
    )
    head = yaml.safe_dump(dict(front) | {"tags": ["ownbert"]}, sort_keys=False, allow_unicode=True)
    whole = [f"---\n{head}---", MARK, f"# {name or Path(folder).resolve().name}", *blocks]
    write_text(path, "\n\n".join([*whole, "## Versions", versions]) + "\n")
    return None


def is_ours(card: Path) -> bool:
    """Whether a card may be written anew."""
    return _OURS in card.read_text(encoding="utf-8", errors="replace")


def settings(recipe: Any, usual: Any, sections: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Those of a recipe that say what was learnt, and are not as in ``usual``."""
    for section in sections:
        ours, theirs = getattr(recipe, section), getattr(usual, section)
        for field in fields(ours):
            value, name = getattr(ours, field.name), f"{section}.{field.name}"
            if _ASIDE & {name, field.name} or value == getattr(theirs, field.name):
                continue
            inner = vars(value) if is_dataclass(value) else {}
            yield from ((f"{name}.{key}", str(each)) for key, each in inner.items())
            if not inner:
                yield name, str(value)


def sha256(path: str | Path | None) -> str:
    """That of a file; "" if there is none."""
    if not path or not Path(path).is_file():
        return ""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def table(names: Sequence[str], rows: Any) -> str:
    """A Markdown table; of many rows the first."""
    rows = list(rows)
    lines = [names, ["---"] * len(names), *rows[:ROWS]]
    text = "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines)
    return text if len(rows) <= ROWS else f"{text}\n\nand {len(rows) - ROWS:,} more."


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
