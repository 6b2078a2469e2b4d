"""The translations in PO files, and the language of the locale."""

import os
import re
from functools import cache
from pathlib import Path

# The first variable that is set decides, as in gettext; our own comes first.
_VARIABLES = ("OWNBERT_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
ENGLISH, CHINESE = "en", "zh"


def current_language() -> str:
    """``CHINESE`` if the locale is Chinese (zh_CN, zh_TW, ...), else ``ENGLISH``."""
    value = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")
    return CHINESE if value.lower().startswith(CHINESE) else ENGLISH


_LINE = r'"[^"\\\n]*(?:\\[nt"\\][^"\\\n]*)*"'
_STRING = rf"\s*({_LINE}(?:\s*{_LINE})*)\s*"  # it may continue on the next lines
_COMMENTS = r"(?:#.*\n\s*)*"
_ENTRY = re.compile(rf"({_COMMENTS})(?:msgctxt{_STRING})?msgid{_STRING}msgstr{_STRING}")
_END = re.compile(rf"{_COMMENTS}\Z")
_FUZZY = re.compile(r"^#,.*\bfuzzy\b", re.MULTILINE)
_JOINT_OR_ESCAPE = re.compile(r'"\s*\n\s*"|\\(.)')
_ESCAPED = {None: "", "n": "\n", "t": "\t", '"': '"', "\\": "\\"}


@cache
def catalogue(language: str) -> dict[str, dict[str, str]]:
    """The translations into a language, by ``msgctxt`` ("" for none), then by ``msgid``."""
    return read_catalogue(Path(__file__).with_name(f"{language}.po").read_text(encoding="utf-8"))


def read_catalogue(text: str) -> dict[str, dict[str, str]]:
    """The translations in the text of a PO file, by ``msgctxt`` ("" for none), then by ``msgid``.

    Raises:
        ValueError: the text is not a valid entry, or an entry repeats an earlier one.
    """
    tables: dict[str, dict[str, str]] = {}
    text, at = f"{text.strip()}\n", 0
    while entry := _ENTRY.match(text, at):
        comments, context, source, translation = entry.groups("")
        context, source = _value(context), _value(source)
        table = tables.setdefault(context, {})
        if source in table:
            raise ValueError(f"it has two entries: {source}")
        translation = "" if _FUZZY.search(comments) else _value(translation)
        if source and translation:  # the header has no source
            table[source] = translation
        at = entry.end()
    if not _END.match(text, at):
        raise ValueError(f"no entry of msgid and msgstr: {text[at : at + 200]}")
    return tables


def _value(string: str) -> str:
    """Decode a string of the format."""
    if "\\" in string or "\n" in string:
        string = _JOINT_OR_ESCAPE.sub(lambda found: _ESCAPED[found[1]], string)
    return string[1:-1]
