"""The Python of docs/translation.md and docs/vision.md runs, prints what its comments say, and is
the same in both languages."""

import ast
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def snippets(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_examples_with_other_packages_are_python_and_the_same_in_both_languages():
    english = snippets("training.md", "py")
    assert len(english) == 2
    assert snippets("training.zh-CN.md", "py") == english
    for code in english:
        assert "ownbert.Callbacks(" in code
        ast.parse(code)


@pytest.mark.parametrize("page", ["translation", "vision"])
def test_the_python_runs(page: str, capsys: pytest.CaptureFixture[str]):
    (code,) = snippets(f"{page}.md")
    assert snippets(f"{page}.zh-CN.md") == [code]
    exec(code, {})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected
