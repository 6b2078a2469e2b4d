"""Explanations as a picture: its pixels, its fonts, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ownbert import InputError, explain
from ownbert.figures import CJK_FONTS, fonts_for
from ownbert.inspect.explain.explanation import Explanation, Word, draw_explanations
from support.cli import refusal, run_cli
from support.tiny import change_config, made

BLUE, ORANGE = (0x5A, 0x96, 0xD2), (0xE5, 0x8A, 0x2C)  # of the largest values

pytestmark = pytest.mark.usefixtures("plots")


def explanation(text: str, values: list[float], **changes: Any) -> Explanation:
    """Of the words of a text."""
    words, start = [], 0
    for word in text.split():
        start = text.index(word, start)
        words.append(Word(0, start, start + len(word), (len(words),)))
        start += len(word)
    named = {"row": 0, "target": "yes", "probability": 0.75, "method": "leave_one_out"} | changes
    return Explanation(texts=(text,), words=tuple(words), values=np.asarray(values), **named)


def pixels(path: Path) -> np.ndarray:
    """(height, width, 3) from 0 to 255."""
    from matplotlib.image import imread

    return (255 * imread(path)[..., :3]).round().astype(int)


def area(picture: np.ndarray, color: tuple[int, ...]) -> tuple[int, int, int]:
    """Left and right end of the pixels of a colour below the head, and how many there are."""
    found = (np.abs(picture[60:] - color) <= 2).all(-1)
    columns = np.flatnonzero(found.any(0))
    return int(columns.min()), int(columns.max()), int(found.sum())


def test_words_have_the_colours_of_their_values(tmp_path: Path):
    path = tmp_path / "a.png"
    found = explanation("for nothing against", [2.0, 0.0, -2.0])
    assert draw_explanations([found], path, title="model") is None
    picture = pixels(path)
    blue, orange = area(picture, BLUE), area(picture, ORANGE)
    assert 20 <= blue[0] < blue[1] < orange[0] < orange[1] < 250
    width = (orange[1] - orange[0]) / (blue[1] - blue[0])
    assert 2 < width < 3.5  # "against" is longer than "for"
    half = explanation("for nothing against", [1.0, 0.0, -2.0])
    draw_explanations([half], path, title="model")
    mean = tuple(round((255 + c) / 2) for c in BLUE)
    assert area(pixels(path), mean)[:2] == blue[:2]


def test_answers_stand_below_each_other_with_bars_of_their_probabilities(tmp_path: Path):
    heights, grey = [], []
    answers = (("yes", 0.75), ("no", 0.25))
    for count in (1, 2, 3):
        found = [explanation("a b c", [1, 0, -1], answers=answers) for _ in range(count)]
        draw_explanations(found, tmp_path / "a.png", title="model")
        picture = pixels(tmp_path / "a.png")
        heights.append(len(picture))
        grey.append(int((np.abs(picture - (0x7A, 0x85, 0x90)) <= 2).all(-1).sum()))
    assert heights[2] - heights[1] == heights[1] - heights[0] > 60
    assert grey[0] == pytest.approx(90 * 10, rel=0.1)  # both bars together
    assert grey[2] == pytest.approx(3 * grey[0], rel=0.02)


@pytest.mark.slow
def test_long_texts_are_broken_into_lines(tmp_path: Path):
    heights = []
    for text in ("word " * 10, "word " * 60, "w" * 120):
        found = explanation(text, [1.0] * len(text.split()))
        draw_explanations([found], tmp_path / "a.png", title="model")
        picture = pixels(tmp_path / "a.png")
        assert area(picture, BLUE)[1] < 977  # the margin stays white
        heights.append(len(picture))
    assert heights[0] < heights[2] < heights[1]
    many = [explanation("a b", [1, 0], row=row) for row in range(301)]
    with pytest.raises(InputError, match="more than 600 lines; draw fewer rows"):
        draw_explanations(many, tmp_path / "b.png", title="model")
    assert not (tmp_path / "b.png").exists()


def test_characters_have_a_font_or_a_line_says_that_they_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from matplotlib import font_manager

    text = "my parcel 包裹"
    known = [f for f in font_manager.fontManager.ttflist if not f.name.startswith("Noto")]
    known = [font for font in known if font.name not in CJK_FONTS]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
    assert fonts_for([text]) == (["DejaVu Sans"], frozenset("包裹"))
    warning = draw_explanations([explanation(text, [1, 1, 0])], tmp_path / "a.png", title="a")
    assert warning is not None
    assert "for characters that no installed font has (包裹)" in warning
    with pytest.raises(InputError, match=r"no installed font has most .* such as 包裹"):
        draw_explanations([explanation("包裹 a", [1, 0])], tmp_path / "b.png", title="a")
    assert not (tmp_path / "b.png").exists()
    font_manager.fontManager.addfont(font_of("包裹", tmp_path / "font.ttf"))
    assert fonts_for([text]) == (["DejaVu Sans", CJK_FONTS[0]], frozenset())
    assert draw_explanations([explanation("包裹 a", [1, 0])], tmp_path / "b.png", title="a") is None
    # Its glyphs are squares without a hole: what they cover is black, around them it is blue.
    left, right, count = area(pixels(tmp_path / "b.png"), BLUE)
    assert count < 0.75 * (right - left) * 22


def font_of(characters: str, path: Path) -> Path:
    """A font with a black square for each character, by the name of a well-known one."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 800), (900, 800), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    names = [".notdef", *(f"glyph{i}" for i in range(len(characters)))]
    made = FontBuilder(1000, isTTF=True)
    made.setupGlyphOrder(names)
    made.setupCharacterMap(dict(zip(map(ord, characters), names[1:], strict=True)))
    made.setupGlyf(dict.fromkeys(names, pen.glyph()))
    made.setupHorizontalMetrics(dict.fromkeys(names, (1000, 100)))
    made.setupHorizontalHeader(ascent=900, descent=-100)
    made.setupNameTable({"familyName": CJK_FONTS[0], "styleName": "Regular"})
    made.setupOS2(sTypoAscender=900, usWinAscent=900, usWinDescent=100)
    made.setupPost()
    made.save(path)
    return path


def test_on_the_command_line(tmp_path: Path):
    model, path = tmp_path / "model", tmp_path / "a.png"
    made(model, "classification")
    change_config(model, ownbert_task={"name": "multilabel", "threshold": 1e-9})
    done = run_cli("explain", model, "a b c", "--png", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"saved {path}\n", "")
    three = len(pixels(path))
    change_config(model, ownbert_task={"name": "classify"})
    done = run_cli("explain", model, "a b c", "--png", path, "--html", tmp_path / "a.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.html").is_file()
    assert len(pixels(path)) < three  # one answer; the page has others too
    jpg = ("--png", tmp_path / "a.jpg")
    assert "a picture must end with .png" in refusal("explain", model, "a", *jpg)
    assert "there is nothing to draw" in refusal("explain", model, "", "--png", path)
    (one,) = explain(model, "a b c")
    assert one.answers[0][0] == one.target
    assert sum(share for _, share in one.answers) == pytest.approx(1)
