"""The Python of docs/translation.md and docs/vision.md runs, prints what its comments say, and is
the same in both languages."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted(DOCS.glob("*.md"))]


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


def table_figures(page: str) -> list[list[str]]:
    rows = [line for line in (DOCS / page).read_text().splitlines() if line.startswith("|")]
    return [re.findall(r"\d*\.\d+|\d+(?:,\d{3})*", row) for row in rows]


def test_the_tables_of_benchmarks_have_the_same_figures_in_both_languages():
    assert table_figures("benchmarks.md") == table_figures("benchmarks.zh-CN.md")


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"(?m)^#+ (.*)$", prose(page))
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = page.parent / name if name else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", ["translation", "vision"])
def test_the_python_runs(page: str, capsys: pytest.CaptureFixture[str]):
    (code,) = snippets(f"{page}.md")
    assert snippets(f"{page}.zh-CN.md") == [code]
    exec(code, {})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected
