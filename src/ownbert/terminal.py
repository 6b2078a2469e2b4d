"""Printing. All output passes through ``printable``, since names and texts of users' files may
contain terminal control characters (to move the cursor, change the title or hide lines).
"""

import codecs
import io
import json
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ownbert.exceptions import InputWarning
from ownbert.language import translated

if TYPE_CHECKING:
    from rich.console import Console

# C0 controls except tab and line feed, C1 controls (0x9b starts an escape sequence), separators,
# bidirectional overrides (Trojan Source, CVE-2021-42574), and surrogates, which cannot be encoded.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

_formatwarning = warnings.formatwarning


def printable(text: str) -> str:
    """Replace terminal control characters by escapes, such as ``\\u001b``.

    Printed JSON stays valid, since JSON has the same escapes.
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def echo(text: str = "", *, err: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Print a text with escapes; ``err``: to standard error."""
    print(printable(text), end=end, flush=flush, file=sys.stderr if err else sys.stdout)


def say(text: str, /, *values: Any, err: bool = False) -> None:
    """Print a text in the language of the locale; ``err``: to standard error.

    Args:
        text: a text, or the template of a ``Message`` with its values.
    """
    echo(translated(text, *values), err=err)


def print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as JSON lines as they arrive."""
    for row in rows:
        echo(json.dumps(row, ensure_ascii=False))
    sys.stdout.flush()


class NotebookOutput:
    """One output of a notebook cell, plain text that is updated in place.

    It has permanent lines and, below them, the current status.
    """

    def __init__(self) -> None:
        from importlib import import_module

        display = import_module("IPython.display").display

        self._lines: list[str] = []
        self._shown = 0.0
        self._handle: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def say(self, text: str) -> None:
        """Add permanent lines."""
        self._lines.append(printable(text))
        self._show(*self._lines)

    def status(self, text: str) -> None:
        """Replace the status, at most once a second."""
        if time.monotonic() - self._shown >= 1:
            self._show(*self._lines, printable(text))

    def _show(self, *lines: str) -> None:
        self._shown = time.monotonic()
        self._handle.update({"text/plain": "\n".join(lines)}, raw=True)


def in_notebook() -> bool:
    """Whether this is a cell of a notebook."""
    ipython = sys.modules.get("IPython")  # loaded in every notebook
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def notebook_output() -> NotebookOutput | None:
    """An output of the running notebook cell; None outside of notebooks."""
    return NotebookOutput() if in_notebook() else None


def as_plain_text(content: Any, width: int = 100) -> str:
    """A table or text of rich as plain lines."""
    stream = io.StringIO()
    console(file=stream, width=width).print(content)
    return "\n".join(line.rstrip() for line in stream.getvalue().rstrip().split("\n"))


def console(**options: Any) -> "Console":
    """A console of rich that prints texts with escapes and without highlighting; in a notebook it
    prints plain text, too."""
    from rich.console import Console

    plain = {"force_jupyter": False, "force_terminal": False} if in_notebook() else {}
    rich_console = Console(**{"highlight": False, **plain, **options})
    hook: Any = _Escapes()  # not a RenderHook subclass, to import rich only here
    rich_console.push_render_hook(hook)
    return rich_console


def escape_warnings() -> None:
    """Make Python print warnings, which may quote users' files, with escapes."""
    warnings.formatwarning = _format_warning


def accept_any_encoding() -> None:
    """Make standard output and error escape characters that their encoding lacks."""
    codecs.register_error("ownbert", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="ownbert")


def _format_warning(message: Any, category: Any, *about: Any, **options: Any) -> str:
    if issubclass(category, InputWarning):  # addressed to users, not to programmers
        return printable(f"{translated('warning: ')}{translated(message.args[0])}\n")
    return printable(_formatwarning(message, category, *about, **options))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[i : i + 2].hex() for i in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs), error.end


class _Escapes:
    """A render hook of rich that escapes everything a console prints."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for segment in console.render(self.content, options):
            # Rich marks its own cursor movements as controls.
            plain = segment.control is None
            text = printable(segment.text) if plain else segment.text
            yield Segment(text, segment.style, segment.control)
