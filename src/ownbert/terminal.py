"""What is printed. Names and texts of others' files may hold characters that a terminal obeys (it
moves its cursor, changes its title, hides a line): all that is printed goes through ``printable``.
"""

import codecs
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ownbert.errors import InputWarning
from ownbert.language import translated

if TYPE_CHECKING:
    from rich.console import Console

# Controls except tab and line feed, Unicode's second set of them (0x9b is an escape sequence's
# start), separators and changes of direction (Trojan Source, CVE-2021-42574), and halves of
# characters, which no encoding has.
_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)

_formatwarning = warnings.formatwarning


def printable(text: str) -> str:
    """The text with characters that a terminal would obey as escapes, such as ``\\u001b``.

    Printed JSON stays valid: these are JSON's own escapes.
    """
    return _OBEYED.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def echo(text: str = "", *, err: bool = False, end: str = "\n", flush: bool = False) -> None:
    """Print a text, with escapes; ``err``: to standard error."""
    print(printable(text), end=end, flush=flush, file=sys.stderr if err else sys.stdout)


def print_rows(rows: Iterable[Mapping[str, Any]]) -> None:
    """Print rows as JSON lines, each as it comes."""
    for row in rows:
        echo(json.dumps(row, ensure_ascii=False))
    sys.stdout.flush()


def console(**options: Any) -> "Console":
    """A console of rich that prints texts with escapes, and without guessing at their colours.

    Args:
        options: of ``rich.console.Console``.
    """
    from rich.console import Console

    found = Console(**{"highlight": False, **options})
    hook: Any = _Escapes()  # no subclass of RenderHook, so that rich is imported only here
    found.push_render_hook(hook)
    return found


def escape_warnings() -> None:
    """Let Python print warnings, which may name others' files and texts, with escapes."""
    warnings.formatwarning = _format_warning


def accept_any_encoding() -> None:
    """Let standard output and error write escapes for characters that their encoding lacks."""
    codecs.register_error("ownbert", _escaped)
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="ownbert")


def _format_warning(message: Any, category: Any, *about: Any, **options: Any) -> str:
    if issubclass(category, InputWarning):  # for the user, not for a programmer
        return printable(f"{translated(f'warning: {message}')}\n")
    return printable(_formatwarning(message, category, *about, **options))


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    pairs = (units[i : i + 2].hex() for i in range(0, len(units), 2))
    return "".join(f"\\u{pair}" for pair in pairs), error.end


class _Escapes:
    """A hook of rich: what a console is given is printed with escapes."""

    def process_renderables(self, renderables: list[Any]) -> list[Any]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    def __init__(self, content: Any) -> None:
        self.content = content

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        for segment in console.render(self.content, options):
            # Those of rich itself, which move the cursor, are marked as controls.
            plain = segment.control is None
            text = printable(segment.text) if plain else segment.text
            yield Segment(text, segment.style, segment.control)
