"""The classes of images on a page: the patches that they rest on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from ownbert.checkpoint import load, save
from ownbert.inspect.explain.attribution import gradient_relevance
from ownbert.inspect.explain.explanation import picture_data
from ownbert.vision import vit
from ownbert.vision.pixels import Processor
from ownbert.vision.relevance_maps import over_patches
from support.browser import CHROMIUM, in_browser
from support.cli import printed_rows, refusal, run_cli
from support.floats import assert_close
from support.plots import matplotlib_installed

LABELS = ["cat", "dog", "bird", "fish"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and two images."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("images")
    torch.manual_seed(0)
    sizes = {"image_size": 8, "patch_size": 4, "hidden_size": 8, "layers": 2, "heads": 2}
    model = vit.make_model(**sizes, labels=LABELS)  # pyright: ignore
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.5)
    save(model, folder / "model")
    Processor((8, 8), (0.5,) * 3, (0.5,) * 3, channels=3).save(folder / "model")
    for number in range(2):
        values = np.random.default_rng(number).integers(0, 255, (8, 8, 3), np.uint8)
        image.fromarray(values).save(folder / f"{number}.png")
    return folder


def test_patches_have_the_relevance_of_the_class(place: Path):
    images = [place / "0.png", place / "1.png"]
    found = printed_rows("explain", place / "model", *images, "--json", "--class", "bird")
    assert [row["texts"] for row in found] == [["0.png"], ["1.png"]]
    model = load(place / "model")
    plot = pytest.importorskip("PIL.Image")
    pixels = Processor.load(place / "model")([np.asarray(plot.open(path)) for path in images])
    batch = vit.to_batch(torch.from_numpy(pixels), model.config)
    wanted = [over_patches(row, model) for row in gradient_relevance(model, batch, "bird")]
    for row, own in zip(found, wanted, strict=True):
        assert row["target"] == "bird"
        assert_close(np.asarray(row["patches"]), own, rtol=1e-3)  # four digits
    done = run_cli("explain", place / "model", *images)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["0.png", "1.png"]


def test_a_large_image_is_made_smaller():
    pixels = np.ones((1100, 600, 1), np.float32)
    found = picture_data(pixels)
    assert max(found["width"], found["height"]) <= 512
    assert found["height"] / found["width"] == pytest.approx(1100 / 600, rel=0.01)


def test_mistakes_are_one_line(place: Path, tmp_path: Path):
    model, image = place / "model", place / "0.png"
    for options, message in (
        (("--class", "zebra"), "class 'zebra' is not known; use one of cat, dog, bird, fish"),
        (
            ("--method", "shapley"),
            "images can be explained by attention_x_gradient, attention_rollo",
        ),
        (("--html", tmp_path / "a.html", "--layers", "0"), "images have no words"),
        (("--html", image), "0.png is read by this command"),
    ):
        assert message in refusal("explain", model, image, *options)
    assert "nothing to explain" in refusal("explain", model)


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not here")
def test_the_page_switches_class_and_method(place: Path, tmp_path: Path):
    page = tmp_path / "page.html"
    done = run_cli("explain", place / "model", place / "0.png", "--html", page)
    assert done.returncode == 0, done.stderr
    shown = in_browser(
        page.read_text(),
        """const both = () => [...document.querySelectorAll(".pictures canvas")];
        await until(() => both().length === 2);
        const read = () => both().map(canvas => canvas.toDataURL());
        const first = read();
        const buttons = [...document.querySelectorAll(".targets button")];
        buttons[1].click();
        await until(() => both().length === 2 && read()[1] !== first[1]);
        const second = read(), method = document.querySelector("#method");
        method.value = "attention_rollout";
        method.dispatchEvent(new Event("change"));
        await until(() => both().length === 2 && read()[1] !== second[1]);
        const third = read();
        const fits = document.documentElement.scrollWidth <= innerWidth;
        return { first, second, third, classes: buttons.length, fits };""",
        tmp_path / "profile",
        width=390,
    )
    assert shown["classes"] == 3
    assert shown["fits"]
    assert shown["first"][0] == shown["second"][0] == shown["third"][0]  # the image itself
    assert len({shown[name][1] for name in ("first", "second", "third")}) == 3
    data = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])
    assert {row["method"] for row in data["rows"][0]} == {
        "attention_x_gradient",
        "attention_rollout",
    }


def test_a_picture_has_the_rows_that_are_asked_for(place: Path, tmp_path: Path):
    plot = pytest.importorskip("PIL.Image")
    heights = []
    for rows in (1, 2):
        picture = tmp_path / f"{rows}.png"
        with matplotlib_installed():
            done = run_cli(
                *("explain", place / "model", place / "0.png", place / "1.png"),
                *("--rows", rows, "--png", picture),
            )
        assert done.returncode == 0, done.stderr
        heights.append(plot.open(picture).height)
    assert heights[0] < heights[1]
