"""The Python of docs/translation.md and docs/vision.md runs, prints what its comments say, and is
the same in both languages."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("README*.md")), *sorted(DOCS.rglob("*.md"))]


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


@pytest.mark.parametrize("page", ["benchmarks", "scale"])
def test_the_tables_have_the_same_figures_in_both_languages(page: str):
    assert table_figures(f"{page}.md") == table_figures(f"{page}.zh-CN.md")


def test_the_arithmetic_of_scale_is_right():
    """Lines such as 1,000,000 × 200 ÷ 4,001 = 49,988, in both languages."""
    calculation = re.compile(r"(\d[\d,]*(?: [×÷] [\d,]+)+) = ([\d,]+) (?:s|秒|bytes|字节)")
    found = [calculation.findall((DOCS / f"scale{end}.md").read_text()) for end in ("", ".zh-CN")]
    assert found[0] == found[1]
    assert len(found[0]) >= 5
    for left, right in found[0]:
        values = left.replace(",", "").replace("×", "*").replace("÷", "/")
        assert round(eval(values)) == int(right.replace(",", "")), left
    codes = [
        snippets(f"scale{end}.md", language) for language in ("py", "sh") for end in ("", ".zh-CN")
    ]
    assert codes[0] == codes[1]
    assert codes[2] == codes[3]


def test_the_function_for_spark_answers_frames(classifier: Path):
    import pandas

    (code,) = snippets("scale.md", "py")
    function = code.split("\n\n\n")[0].replace("/models/my-classifier", str(classifier))
    names: dict = {}
    exec(function, names)
    frames = [pandas.DataFrame({"id": [i, i + 1], "text": ["red1 9", "blue1"]}) for i in (0, 2)]
    found = pandas.concat(names["answer"](iter(frames)))
    assert found["id"].tolist() == [0, 1, 2, 3]
    assert set(found["label"]) <= {"red", "green", "blue"}


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


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_no_sentence_becomes_a_list(page: Path):
    """A paragraph whose line happens to begin with a number and a full stop is shown as a list."""
    lines = prose(page).splitlines()
    for before, line in pairwise(lines):
        if re.match(r"\d+[.)] ", line) and before.strip():
            assert re.match(r"\s|\d+[.)] |[-#|]", before), line


def test_pages_that_the_code_names_are_there():
    code = [
        *ROOT.glob("src/**/*.py"),
        *ROOT.glob("benchmarks/*.py"),
        *ROOT.glob("examples/**/*.py"),
    ]
    named = {
        (path.name, page)
        for path in code
        for page in re.findall(r"docs/[\w/.-]*\.md", path.read_text(encoding="utf-8"))
    }
    assert ("linear_baseline.py", "docs/lab/fine-tuning.md") in named
    assert not [(path, page) for path, page in named if not (ROOT / page).is_file()]


@pytest.mark.parametrize("page", ["translation", "vision"])
def test_the_python_runs(page: str, capsys: pytest.CaptureFixture[str]):
    (code,) = snippets(f"{page}.md")
    assert snippets(f"{page}.zh-CN.md") == [code]
    exec(code, {})
    expected = re.findall(r"print\(.*\)  # (.*)", code)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected
