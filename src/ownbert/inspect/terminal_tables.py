"""Shared parts of the tables of ``describe``, ``trace`` and ``runs``."""

import io
from collections.abc import Callable, Iterable

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ownbert.language import translated
from ownbert.terminal import console


def plain_text(show: Callable[[Console], None], width: int) -> str:
    """The output of ``show`` on a terminal with ``width`` columns, without colours."""
    text = io.StringIO()
    show(console(file=text, width=width, no_color=True))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def facts_table(facts: Iterable[tuple[str, str]]) -> Table:
    """A table of names and values."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column()
    for name, value in facts:
        table.add_row(Text(translated(name)), Text(translated(value)))
    return table


def open_table(header_style: str = "bold") -> Table:
    """A table without borders, with two spaces between columns."""
    return Table(box=None, pad_edge=False, padding=(0, 1), header_style=header_style)


def indented(content: RenderableType) -> Padding:
    return Padding(content, (0, 0, 0, 2), expand=False)
