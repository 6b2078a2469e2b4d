"""Help and messages in Chinese where the locale says so; the table is complete."""

import re
from typing import Any

import pytest
from rich import _wrap
from rich.text import Text
from typer import rich_utils
from typer.main import get_command

from ownbert.cli import COMMANDS, app
from ownbert.language import (
    CHINESE,
    catalogue,
    current_language,
    needs_translation,
    paragraphs,
    translate_command,
    translated,
    translated_help,
)
from ownbert.language.messages import Message, join
from support.cli import run_cli
from support.shown_texts import entries_to_add

IN_CHINESE = {"OWNBERT_LANGUAGE": "zh"}
TABLES = catalogue(CHINESE)


@pytest.fixture
def frames(monkeypatch: pytest.MonkeyPatch):
    """What is set in typer is put back."""
    for name in TABLES["frame"]:
        monkeypatch.setattr(rich_utils, name, getattr(rich_utils, name))
    monkeypatch.setattr(_wrap, "re_word", _wrap.re_word)
    monkeypatch.setattr(Text, "rstrip_end", Text.rstrip_end)


def texts(command: str | None) -> list[str]:
    """The help texts of a command and of those below it; None: of the program itself."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    program: Any = get_command(app)
    translate_command(program if command is None else program.get_command(None, command), note)
    return found


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_every_help_text_is_in_the_table(command: str | None):
    # Defaults of columns are messages, which are translated by their templates.
    found = [text for text in texts(command) if not text.startswith("the first of ")]
    shown = [part for text in found for part in paragraphs(text) if part]
    assert shown
    missing = [part for part in shown if needs_translation(part)]
    assert not missing, entries_to_add(missing, "help")


@pytest.mark.parametrize("context", ["help", "default"])
def test_translations_are_chinese_and_keep_what_is_filled_in(context: str):
    plain = re.compile(r"[a-z, 或、]*。?")  # names of settings only
    for text, translation in TABLES[context].items():
        assert translation.count("{}") == text.count("{}"), text
        assert re.search("[\u4e00-\u9fff]", translation) or plain.fullmatch(translation), text
        for option in re.findall(r"--[a-z-]+", text):
            assert option in translation, text


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "OWNBERT_LANGUAGE": "en"}, "en"),
        ({}, "en"),
    ],
)
def test_the_locale_decides(
    variables: dict[str, str], language: str, monkeypatch: pytest.MonkeyPatch
):
    for name in ("OWNBERT_LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert current_language() == language


@pytest.mark.usefixtures("frames")
@pytest.mark.parametrize("command", ["score", "duplicates"])
def test_no_line_of_help_is_truncated_and_all_defaults_are_translated(command: str):
    shown = run_cli(command, "--help", env=IN_CHINESE).stdout
    assert "…" not in shown
    assert "[默认：(无)]" in shown


@pytest.mark.usefixtures("frames")
def test_help_and_messages_of_the_command_line():
    shown = run_cli("vocab", "--help", env=IN_CHINESE).stdout
    for words in (
        "从文本学习词表",
        "存放分词器的目录",
        "示例：ownbertvocab",
        "选项",
        "[必填]",
        "显示此帮助并退出",
    ):
        assert words in "".join(re.sub("[│ ]", "", shown).split())
    assert "…" not in shown
    assert "Folder for the tokenizer" not in shown
    assert "用自己的文本" in run_cli("--help", env=IN_CHINESE).stdout
    done = run_cli("describe", "no/such", env=IN_CHINESE)
    assert done.returncode == 2
    assert re.search("[\u4e00-\u9fff]", done.stderr), done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_numbers_and_names_are_filled_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OWNBERT_LANGUAGE", "zh")
    pair = Message("none; if no text column is named and the file has a pair: {pairs}", "b")
    shown = translated_help(pair)
    assert shown.endswith("b")
    assert shown.startswith("无")
    assert translated("no such folder: {folder}", "a{}b") == "目录不存在：a{}b"
    assert translated("something else") == "something else"
    lengths = Message("longest input: {lengths}", join(["128", "512"], ", then "))
    assert lengths.shown() == "longest input: 128，然后 512"
    monkeypatch.setenv("OWNBERT_LANGUAGE", "en")
    assert translated("no such folder: {folder}", "a") == "no such folder: a"
