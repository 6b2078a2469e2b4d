"""Self-contained HTML pages: templates of jinja2 in the package, in the user's language."""

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from ownbert.language import current_language, translated, translated_page


def page(template: str, **values: Any) -> str:
    """Fill in a template.

    Templates can call ``source`` (the content of a file that is inserted unchanged), ``digest`` (of
    a script, for a content security policy), ``json`` (for a script element) and ``translated``.

    Args:
        template: path of the template in the package.
        values: variables of the template; they are escaped.
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
        source=lambda name: _unchanged(_source(name)),
        digest=lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
        json=lambda value: _unchanged(_as_json(value)),
        translated=translated,
    )
    return environment


def _source(name: str) -> str:
    return translated_page((files("ownbert") / name).read_text(encoding="utf-8"))


def _as_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def _unchanged(text: str) -> Any:
    from markupsafe import Markup

    return Markup(text)
