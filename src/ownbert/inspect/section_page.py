"""Sections of sentences and tables as text, and as a page."""

import io
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ownbert.files.writing import write_text
from ownbert.fitting.report.report import print_section
from ownbert.fitting.report.sections import Section
from ownbert.pages import cleaned, page

_WIDTH, _LONGEST = 100, 400  # characters of a line and of a sentence


def as_text(lead: Sequence[str], sections: Sequence[Section]) -> str:
    """Sentences and sections as plain text of at most 100 columns."""
    file = io.StringIO()
    console = Console(file=file, width=_WIDTH, no_color=True, highlight=False, force_terminal=False)
    for sentence in lead:
        console.print(Text(cleaned(sentence, _LONGEST)))
    for section in sections:
        print_section(console, section)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def write_page(path: Path, kind: str, lead: Sequence[str], sections: Sequence[Section]) -> None:
    """Write sentences, the first of which is the headline, and sections as a page."""
    headline, *sentences = lead
    text = page(
        "inspect/sections.html",
        kind=kind,
        headline=headline,
        figures=[],
        sentences=sentences,
        keys=[(section.key, section.title) for section in sections],
        sections=sections,
    )
    write_text(path, text)
