"""Self-contained HTML pages: jinja2 templates in the package, in the user's language; and pages of
sections, which are also plain text.
"""

import base64
import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any
from unicodedata import category

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ownbert.files.writing import write_text
from ownbert.language import current_language, translated, translated_page

TEXT = "text"  # name of the text column
SENTENCE = 400  # characters
_WIDTH = 100  # columns of a page as text
_FEWEST = 12  # minimum characters of a name
_MOST_ROWS = 30  # rows per table
# Columns to drop from the text when names would be truncated, in this order.
_DROPPED = ("size", "texts/s", "training")

# Unicode categories that move, hide or reorder surrounding text.
_UNSAFE = {"Cc", "Cs", "Zl", "Zp"}
_DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C}


def page(template: str, **values: Any) -> str:
    """Fill in a template, given by its path in the package; the values are escaped.

    Templates can call ``source`` (the content of a file that is inserted unchanged), ``digest`` (of
    a script, for a content security policy), ``json`` (for a script element), ``translated`` and
    ``cleaned``.
    """
    return _environment(current_language()).get_template(template).render(values)


@cache
def _environment(language: str) -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(_source),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(
        source=lambda name: _as_markup(_source(name)),
        digest=lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        json=lambda value: _as_markup(_as_json(value)),
        translated=translated,
        cleaned=cleaned,
    )
    return environment


def _source(name: str) -> str:
    return translated_page((files("ownbert") / name).read_text(encoding="utf-8"))


def _as_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _as_markup(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)


def cleaned(text: str, most: int) -> str:
    """A text on one line: at most ``most`` characters, without control characters."""
    start = text[: 4 * most]
    safe = (" " if ord(c) in _DIRECTIONS or category(c) in _UNSAFE else c for c in start)
    line = " ".join("".join(safe).split())
    if len(line) <= most and len(start) == len(text):
        return line
    return f"{line[: most - 1].rstrip()}…"


@dataclass(frozen=True)
class Section:
    """A table under a title, or texts with facts about them, and what is drawn beside them.

    Args:
        key: identifier of the section.
        lead: sentence above the table.
        rows: cells as shown, escaped and truncated.
        names: number of leading columns that contain words rather than numbers.
        drawn: charts with their captions, beside the table.
        matrix: names, counts and shades of a confusion matrix.
        bars: charts of the rows, behind their names.
        shares: whether the first number is also shown as a bar.
        chips: titles, and words with hints and numbers, which a page shows instead of a table.
        advice: what to do next, see ``Advice``.
        linked: whether the page has a link to it at its top.
    """

    key: str
    title: str
    lead: str = ""
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    names: int = 1
    drawn: Sequence[tuple[Any, str]] = ()
    matrix: dict[str, Any] | None = None
    bars: Sequence[Any] | None = None
    shares: bool = False
    chips: Sequence[tuple[str, Sequence[tuple[str, str, str]]]] = ()
    advice: Sequence[Any] = ()
    linked: bool = True

    @property
    def has_texts(self) -> bool:
        """Whether the last column contains texts."""
        return self.columns[-1:] in ((TEXT,), (translated(TEXT),))

    def in_language(self) -> "Section":
        """The section with its title, lead and columns translated."""
        title, lead = translated(self.title), translated(self.lead)
        return replace(self, title=title, lead=lead, columns=tuple(map(translated, self.columns)))

    def print(self, console: Console) -> None:
        """Print title, sentence, and table or texts."""
        console.print(f"\n{self.title.upper()}")
        if self.lead:
            console.print(Text(self.lead))
        for one in self.advice:
            words = cleaned(f"{translated(one.sentence)} ({translated(one.figure)})", SENTENCE)
            mark = {"do": "*", "note": "-"}.get(one.kind, " ")
            console.print(Padding(Text(f"{mark} {words}"), (0, 0, 0, 2)))
        if self.has_texts:
            for *cells, text in self.rows[:_MOST_ROWS]:
                named = zip(self.columns, cells, strict=False)
                facts = "   ".join(f"{name}: {cell}" for name, cell in named)
                for line, indent in ((facts, 0), (text, 4)):
                    content = Text(line, no_wrap=True, overflow="ellipsis")
                    console.print(Padding(content, (0, 0, 0, indent)))
        elif self.rows:
            console.print(self._table(console.width))
        if (left := len(self.rows) - _MOST_ROWS) > 0:
            console.print(translated("... and {left:,} more in report.html", left))

    def _table(self, width: int) -> Table:
        """A table whose leading names may be truncated to fit the width; figures are not, but the
        least important columns are dropped."""
        columns = list(zip(self.columns, *self.rows[:_MOST_ROWS], strict=True))
        widths = [max(map(cell_len, cells)) for cells in columns]
        for name in map(translated, _DROPPED):
            if sum(widths) + 2 * len(widths) > width and name in self.columns[self.names :]:
                place = [column[0] for column in columns].index(name)
                del columns[place], widths[place]
        excess = sum(widths) + 2 * len(widths) - width
        widths[0] = max(_FEWEST, widths[0] - max(0, excess))
        table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="")
        table.show_header = any(self.columns)
        for place, (column, size) in enumerate(zip(columns, widths, strict=True)):
            justify = "right" if place >= self.names else "left"
            style: Any = {"no_wrap": True, "overflow": "ellipsis", "justify": justify}
            table.add_column(Text(column[0]), width=size, **style)
        for cells in zip(*(column[1:] for column in columns), strict=True):
            table.add_row(*map(Text, cells))
        return table


@dataclass(frozen=True)
class Page:
    """Sentences and sections, as HTML and as text.

    Args:
        kind: what the page is about.
        lead: sentences in the user's language, the first of which is the headline.
        sections: sections in the user's language.
        figures: key figures with their names.
    """

    kind: str
    lead: Sequence[str]
    sections: Sequence[Section]
    figures: Sequence[tuple[str, str]] = ()

    def html(self) -> str:
        """The page as HTML."""
        headline, *lead = (cleaned(sentence, SENTENCE) for sentence in self.lead if sentence)
        values = {"page": self, "headline": headline, "lead": lead, "sections": self.sections}
        return page("templates/report.html", **values)

    def text(self) -> str:
        """The page as plain text of at most 100 columns."""
        file = io.StringIO()
        plain: Any = {"no_color": True, "highlight": False, "force_terminal": False}
        # In a notebook rich would also display every line, with texts of rows.
        console = Console(file=file, width=_WIDTH, force_jupyter=False, **plain)
        for sentence in filter(None, self.lead):
            console.print(Text(cleaned(sentence, SENTENCE)))
        for section in self.sections:
            section.print(console)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the HTML atomically."""
        write_text(path, self.html())
