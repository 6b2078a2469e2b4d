"""Self-contained HTML pages: jinja2 templates in the package, in the user's language."""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any
from unicodedata import category

from ownbert.language import current_language, translated, translated_page

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
