"""Finds near copies of training texts in a model folder's text files, such as cards and pages."""

import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ownbert.views.tokens import marks

# Number of consecutive words or Chinese characters that count as a copy.
_RUN = 8
_ENDINGS = (".md", ".html", ".txt", ".json", ".jsonl", ".csv")
# Skipped files: vocabularies, number tables, and files above this size (bytes).
_OTHERS = {"vocab.txt", "tokenizer.json", "merges.txt"}
_MOST_BYTES = 50_000_000


def copies(folder: Path, texts: Iterable[str]) -> dict[str, int]:
    """Count the texts that each file of a folder quotes, by eight consecutive words.

    Returns:
        The number of texts, keyed by file name, for files with any.
    """
    pages = {path.name: set(_runs(_shown(path))) for path in _files(folder)}
    counts = dict.fromkeys(pages, 0)
    if pages:
        for text in texts:
            text_runs = set(_runs(text))
            for name, runs in pages.items():
                counts[name] += not text_runs.isdisjoint(runs)
    return {name: count for name, count in counts.items() if count}


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        shown = path.suffix in _ENDINGS and path.name not in _OTHERS and path.is_file()
        if shown and path.stat().st_size <= _MOST_BYTES:
            yield path


def _shown(path: Path) -> str:
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".html":
        text = html.unescape(re.sub(r"<[^>]*>", " ", text))
    escapes = re.compile(r"\\u([0-9a-fA-F]{4})|\\[nrt]")  # of JSON
    return escapes.sub(lambda found: chr(int(found[1], 16)) if found[1] else " ", text)


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = re.findall(rf"[\u3400-\u9fff]|(?:[^\W_\u3400-\u9fff][{marks()}]*)+", text.lower())
    return (tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1))
