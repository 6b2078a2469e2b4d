"""The Python of docs/translation.md and docs/vision.md runs, prints what its comments say, and is
the same in both languages."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


def snippets(page: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page", ["translation", "vision"])
def test_the_python_runs(page: str, capsys: pytest.CaptureFixture[str]):
    (code,) = snippets(f"{page}.md")
    assert snippets(f"{page}.zh-CN.md") == [code]
    exec(code, {})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected
