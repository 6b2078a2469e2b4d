"""The small inputs in examples/ are there, and are what their scripts make."""

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ownbert.inspect.trace import EXAMPLE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PAGES = [*ROOT.glob("README*.md"), *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_inputs_that_pages_name_are_there(page: Path):
    named = re.findall(r"(?<![\w./])examples/[\w./-]*[\w/]", page.read_text(encoding="utf-8"))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_numbers_are_those_of_the_worked_example():
    assert json.loads((EXAMPLES / "numbers.json").read_text()) == EXAMPLE


def test_the_pairs_are_numbers_in_words():
    script = runpy.run_path(str(EXAMPLES / "translation/make.py"))
    assert (script["german"](9823), script["english"](9823)) == (
        "neun tausend acht hundert drei und zwanzig",
        "nine thousand eight hundred twenty three",
    )
    words = {script["german"](n): script["english"](n) for n in range(10_000)}
    assert len(words) == len(set(words.values())) == 10_000
    seen: set[str] = set()
    for part, count in script["COUNTS"].items():
        sides = (_lines(EXAMPLES / f"translation/{part}.{side}") for side in ("de", "en"))
        found = dict(zip(*sides, strict=True))
        assert len(found) == count
        assert not seen & found.keys()
        assert all(words[german] == english for german, english in found.items())
        seen |= found.keys()


def test_the_images_are_as_many_as_their_script_makes():
    script = runpy.run_path(str(EXAMPLES / "pictures/make.py"))
    for part, count in script["COUNTS"].items():
        for kind in script["CLASSES"]:
            files = list((EXAMPLES / "pictures" / part / kind).iterdir())
            assert len(files) == count
            with Image.open(files[0]) as image:
                assert (image.mode, image.size) == ("L", (script["SIDE"],) * 2)
    rng = np.random.default_rng(0)
    first = Image.open(EXAMPLES / "pictures/train/cross/cross-00.png")
    np.testing.assert_allclose(np.asarray(first), script["image"]("cross", rng), atol=1)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()
