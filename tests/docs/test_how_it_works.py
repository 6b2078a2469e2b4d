"""The snippets of docs/how-it-works.md run, and print the text shown below them."""

import contextlib
import functools
import io
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("docs/how-it-works.md", "docs/how-it-works.zh-CN.md")
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def snippets(name: str) -> list[tuple[str, str]]:
    """(code, what it prints), in order."""
    return re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", read(name), re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(name), re.DOTALL)


def same(found: str, shown: str) -> bool:
    """The same words, and numbers that differ by at most one in their last shown digit."""
    if NUMBER.sub("#", found) != NUMBER.sub("#", shown):
        return False
    pairs = zip(NUMBER.findall(found), NUMBER.findall(shown), strict=True)
    return all(abs(_value(one) - _value(two)) <= _last_digit(two) * 1.001 for one, two in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _last_digit(number: str) -> float:
    """The value of one unit in the last digit of a decimal; 0 for whole numbers, which must be
    equal."""
    mantissa, _, power = number.partition("e")
    digits = len(mantissa.partition(".")[2])
    return 0.0 if not digits else 10.0 ** (int(power or 0) - digits)


@functools.cache
def printed(codes: tuple[str, ...]) -> list[str]:
    """The output of each snippet; the pages have the same snippets, which are run once."""
    # The snippets of a page share one namespace.
    names: dict[str, object] = {}
    found = []
    for code in codes:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, "how-it-works", "exec"), names)
        found.append(out.getvalue())
    return found


@pytest.mark.parametrize("name", PAGES)
def test_what_is_shown_is_what_is_printed(name: str):
    pairs = snippets(name)
    assert len(pairs) == len(blocks(name, "python")) == 15
    found = printed(tuple(code for code, _ in pairs))
    for out, (code, shown) in zip(found, pairs, strict=True):
        assert same(out, shown), f"{code}\n{out}\n{shown}"


def test_both_languages_show_the_same_blocks():
    for language in ("python", "text", "sh"):
        english, chinese = (blocks(name, language) for name in PAGES)
        assert english == chinese
    titles = [re.findall(r"^##? ", read(name), re.MULTILINE) for name in PAGES]
    pictures = [re.findall(r"\]\((pictures/[^)]+)\)", read(name)) for name in PAGES]
    tables = [re.findall(r"\d\.\d\d", read(name)) for name in PAGES]
    for english, chinese in (titles, pictures, tables):
        assert english == chinese


def test_pictures_and_links_are_there():
    for name in PAGES:
        prose = re.sub(r"```.*?```", "", read(name), flags=re.DOTALL)
        for place in re.findall(r"\]\(([^)#]+)\)", prose):
            assert (ROOT / "docs" / place).is_file(), f"{name}: {place}"


def test_numbers_are_compared_to_the_shown_digits():
    assert same("a 1.24 b 3\n", "a 1.25 b 3\n")
    assert not same("a 1.22 b 3\n", "a 1.25 b 3\n")
    assert not same("a 1.25 b 4\n", "a 1.25 b 3\n")
    assert not same("a 1.25 c 3\n", "a 1.25 b 3\n")
    assert same("-3.4e+38 [0.73, nan]", "-3.4e+38 [0.73, nan]")
    assert not same("2,362,368", "2,362,369")


@pytest.mark.slow
@pytest.mark.usefixtures("plots")
def test_the_pictures_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = runpy.run_path(str(ROOT / "examples/how_it_works.py"))
    assert script["PICTURES"] == ROOT / "docs/pictures"
    settings = script["heads"].__globals__
    monkeypatch.setitem(settings, "PICTURES", tmp_path)
    monkeypatch.setitem(settings, "STEPS", 20)
    script["heads"]()
    curve = script["train"](norm_first=True, rate=1e-3, seed=0)
    assert len(curve) == 20
    script["draw_norms"]({(n, r): [curve] for n in (False, True) for r in script["RATES"]})
    for name in ("heads", "norms"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
