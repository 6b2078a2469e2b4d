"""The confusion matrix as a picture and in words."""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import confusion_matrix

from ownbert.finetuning.finetuned_card import draw_confusion, most_confused
from ownbert.tasks.metrics import Scores, score_labels
from support.cli import run_cli

pytestmark = pytest.mark.usefixtures("plots")


def made(labels: list[str], rows: int = 400, right: float = 0.8) -> tuple[Scores, list, list]:
    """Scores of random answers, and truth and answers themselves."""
    rng = np.random.default_rng(len(labels))
    truth = rng.integers(0, len(labels), rows)
    said = np.where(rng.random(rows) < right, truth, rng.integers(0, len(labels), rows))
    return score_labels(truth, said, labels), truth.tolist(), said.tolist()


def test_the_most_frequent_confusions_in_words():
    labels = [f"l{i}" for i in range(5)]
    scores, truth, said = made(labels, right=0.6)
    wrong = confusion_matrix(truth, said, labels=range(5))
    np.fill_diagonal(wrong, 0)
    counts = sorted(wrong.ravel().tolist(), reverse=True)
    found = most_confused(scores)
    assert [int(line.rpartition(": ")[2]) for line in found] == counts[:3]
    for line in found:
        true, _, rest = line.partition(" predicted as ")
        other, _, count = rest.partition(": ")
        assert wrong[labels.index(true), labels.index(other)] == int(count)


def test_no_confusion_no_words():
    assert most_confused(score_labels([0, 1, 1], [0, 1, 1], ["a", "b"])) == []
    assert most_confused(score_labels([0, 1, 1], [0, 1, 0], ["a", "b"])) == ["b predicted as a: 1"]
    assert most_confused(Scores({"mae": 1.0})) == []


@pytest.mark.parametrize(
    "count",
    [2, 15, 77, 300, *(pytest.param(n, marks=pytest.mark.slow) for n in (14, 16, 40, 100))],
)
def test_pictures_of_any_number_of_labels_open_and_are_no_posters(count: int, tmp_path: Path):
    labels = [f"a long name of the label number {i}" for i in range(count)]
    assert draw_confusion(tmp_path / "c.png", made(labels)[0]) is None
    with Image.open(tmp_path / "c.png") as image:
        image.load()
        assert image.format == "PNG"
        assert all(300 <= side <= 1900 for side in image.size)
        assert len(set(image.convert("L").resize((200, 200)).tobytes())) > 10


def _blue_share(path: Path) -> float:
    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    return float((pixels[..., 2] - pixels[..., 0] > 60).mean())


def test_the_colour_is_the_share_of_the_row(tmp_path: Path):
    """Two rows of unlike size: all right is as dark in the small one."""
    names = ["a", "b"]
    for name, truth, said in (
        ("right", [0] * 90 + [1], [0] * 90 + [1]),
        ("half", [0] * 90 + [1], [0] * 90 + [0]),
    ):
        draw_confusion(tmp_path / f"{name}.png", score_labels(truth, said, names))
    assert _blue_share(tmp_path / "right.png") == pytest.approx(
        _blue_share(tmp_path / "half.png"), rel=0.05
    )
    draw_confusion(tmp_path / "even.png", score_labels([0] * 4 + [1] * 4, [0, 1] * 4, names))
    assert _blue_share(tmp_path / "even.png") > 1.5 * _blue_share(tmp_path / "right.png")


def test_a_label_with_signs_of_mathematics_and_line_ends(tmp_path: Path):
    labels = ["$x_1^{$", "two\nlines", "a%b\\c"]
    assert draw_confusion(tmp_path / "c.png", made(labels)[0]) is None
    assert (tmp_path / "c.png").exists()


def test_characters_that_no_font_has_become_numbers_and_it_is_said(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph")  # matplotlib warns of each missing glyph
        told = draw_confusion(tmp_path / "c.png", made(["体育", "娱乐"])[0], fonts=())
    assert told is not None
    assert "c.png: no installed font" in told
    assert (tmp_path / "c.png").exists()


def test_a_font_that_has_them_is_taken(tmp_path: Path):
    """Stix, which comes with matplotlib, has what its usual font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Glyph")
        labels = ["\u1d81 one", "\u1d84 two"]
        fonts = ("No Such Font", "STIXGeneral")
        assert draw_confusion(tmp_path / "c.png", made(labels)[0], fonts=fonts) is None
        assert draw_confusion(tmp_path / "d.png", made(labels)[0], fonts=fonts[:1]) is not None


def test_without_matplotlib_it_is_said_and_an_old_picture_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "c.png"
    path.write_bytes(b"of an earlier run")
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    told = draw_confusion(path, made(["a", "b"])[0])
    assert told is not None
    assert "pip install 'ownbert[plot]'" in told
    assert not path.exists()


def test_scores_without_a_confusion_matrix_have_no_picture(tmp_path: Path):
    assert draw_confusion(tmp_path / "c.png", Scores({"mae": 1.0})) is None
    assert not (tmp_path / "c.png").exists()


def test_fine_tuning_and_evaluate_draw_it(classifier: Path, topics: Path, tmp_path: Path):
    with Image.open(classifier / "confusion.png") as image:
        assert min(image.size) > 300
    odd = tmp_path / "odd.csv"
    lines = (topics / "test.csv").read_text().splitlines()
    # What stands in the first four rows is of another label than it says.
    swap = {"red": "green", "green": "blue", "blue": "red"}
    for i in range(1, 5):
        label, _, text = lines[i].partition(",")
        lines[i] = f"{swap[label]},{text}"
    odd.write_text("\n".join(lines) + "\n")
    command = ["evaluate", classifier, "--data", odd, "-o", tmp_path / "m.json"]
    done = run_cli(*command)
    assert done.returncode == 0, done.stderr
    matrix = np.asarray(json.loads((tmp_path / "m.json").read_text())["confusion"])
    with Image.open(tmp_path / "m.confusion.png") as image:
        image.load()
    np.fill_diagonal(matrix, 0)
    assert f": {matrix.max()}" in done.stdout.partition("most often confused: ")[2].splitlines()[0]
    assert " predicted as " in done.stdout
