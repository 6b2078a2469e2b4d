"""PO files are read as gettext's own tools read them."""

import gettext
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from ownbert.cli import app
from ownbert.language import (
    translate_command,
    translated,
    translated_help,
    translated_page,
)
from ownbert.language.catalogue import CHINESE, catalogue, read_catalogue
from support.shown_texts import SOURCE, entries_to_add

MSGFMT = shutil.which("msgfmt")
# As an editor may write it: long lines broken, comments of all kinds.
EDITED = r"""
# Of the file.
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"

#. What it is for.
#: cli/train_commands.py:12
msgid ""
"a line, \"quoted\", "
"and its end\n"
msgstr "甲 \\ 乙\t"
"丙\n"
###################### Of a translator. ######################
msgctxt "help"
msgid "same"
msgstr "帮助"
msgid "same"
msgstr "消息"

#, fuzzy, python-format
#| msgid "older"
msgid "not checked"
msgstr "未检查"

msgid "not translated"
msgstr ""

#~ msgid "no longer used"
#~ msgstr "旧"
"""
EXPECTED = {
    "": {'a line, "quoted", and its end\n': "甲 \\ 乙\t丙\n", "same": "消息"},
    "help": {"same": "帮助"},
}


def test_what_editors_write_is_read():
    assert read_catalogue(EDITED) == EXPECTED


@pytest.mark.parametrize(
    "wrong",
    [
        'msgid "a"\n',
        'msgid "a"\nmsgstr "甲\n',
        'msgid "a"\nmsgstr "\\x41"\n',
        'msgid "a"\nmsgid_plural "as"\nmsgstr[0] "甲"\n',
        'msgid "same"\nmsgstr "又"\n',
        "# ###############################\na\n",
    ],
    ids=["no msgstr", "no quote", "escape", "plural", "twice", "no keyword"],
)
def test_what_is_no_entry_is_not_passed_over(wrong: str):
    good = 'msgid "same"\nmsgstr "甲"\n\n'
    with pytest.raises(ValueError, match="entr"):
        read_catalogue(good + wrong + '\nmsgid "c"\nmsgstr "丙"\n')


@pytest.mark.skipif(MSGFMT is None, reason="needs msgfmt of gettext, which is not here")
@pytest.mark.parametrize("which", ["edited", "chinese"])
def test_msgfmt_finds_the_same(which: str, tmp_path: Path):
    po, compiled = SOURCE / "language" / f"{CHINESE}.po", tmp_path / "compiled.mo"
    if which == "edited":
        po = tmp_path / "edited.po"
        po.write_text(EDITED, encoding="utf-8")
    subprocess.run([str(MSGFMT), "--check", "-o", compiled, po], check=True, capture_output=True)
    with compiled.open("rb") as file:
        theirs = gettext.GNUTranslations(file)
    tables = read_catalogue(po.read_text(encoding="utf-8"))
    for context, table in tables.items():
        for text, translation in table.items():
            found = theirs.pgettext(context, text) if context else theirs.gettext(text)
            assert found == translation
    # Their table has the header besides.
    assert len(theirs._catalog) == 1 + sum(map(len, tables.values()))  # pyright: ignore


def test_english_does_not_read_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OWNBERT_LANGUAGE", "en")
    catalogue.cache_clear()
    translate_command(get_command(app))
    for translate in (translated, translated_help, translated_page):
        assert translate("no such folder: a") == "no such folder: a"
    assert catalogue.cache_info().misses == 0


def test_a_missing_entry_is_shown_as_it_is_to_be_added():
    text = 'a "text" with \\ and\na second line'
    shown = entries_to_add([text], "help")
    assert "src/ownbert/language/zh.po" in shown
    entry = shown.split("\n\n")[1].replace('msgstr ""', 'msgstr "甲"')
    assert read_catalogue(entry) == {"help": {text: "甲"}}
