"""Relevance maps drawn over images, as a PNG file with one row per image."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ownbert.checkpoint import describe, load
from ownbert.exceptions import InputError
from ownbert.figures import figure_class, fitting_fonts, save_figure
from ownbert.inspect.explain.attribution import (
    attention_and_gradient,
    class_number,
    first_rows,
    rollout,
)
from ownbert.nn.model import Model
from ownbert.vision.image_files import ImageSource, stream_images
from ownbert.vision.pixels import Processor
from ownbert.vision.vit import to_batch

# Maximum rows, limited by legibility and memory, and images per batch.
_MOST, _BATCH = 64, 8
_INCHES, _DPI = 2.2, 120
_LONGEST = 26  # maximum characters of a title
# A colour map with linear lightness, so that equal steps of relevance look equal, also in print and
# to colour-blind readers. It covers a grey image, with less opacity where relevance is low.
_COLOUR_MAP, _LEAST, _MOST_COVER = "viridis", 0.35, 0.75
_DARK, _LIGHT = 0.15, 0.95  # range of the grey image
_COLUMNS = (
    "as the model sees it",
    "attention rollout",
    "relevance: predicted",
    "relevance: chosen",
)


@dataclass(frozen=True)
class ImageExplanation:
    """A model's prediction for an image, and the relevance of its patches.

    Args:
        name: name of the file.
        pixels: (height, width, channels) model input, scaled to 0 to 1.
        rollout: (rows, columns) attention rollout.
        predicted: index of the predicted class.
        answer: label of the predicted class.
        probabilities: (C).
        maps: class indices with their relevance (rows, columns), the predicted class first.
    """

    name: str
    pixels: np.ndarray
    rollout: np.ndarray
    predicted: int
    answer: str
    probabilities: np.ndarray
    maps: list[tuple[int, np.ndarray]]


def draw_relevance(
    folder: str | Path,
    images: Sequence[str | Path],
    output: str | Path,
    *,
    label: str | None = None,
    layers: Sequence[int] | None = None,
    rows: int | None = None,
) -> list[ImageExplanation]:
    """Explain a model's predictions for images, and draw all of them into a PNG file.

    Args:
        folder: folder of an image classifier.
        images: image files, or folders of these, at most 64 in total.
        output: PNG file to write.
        label: another class whose relevance is drawn beside that of the predicted one.
        layers: layers whose attention is used, from 0; by default all.
        rows: maximum number of images.

    Raises:
        InputError: the model reads text, a class or layer does not exist, a file is not an image,
            or the output is in one of the folders, where the next call would read it.
    """
    make_figure = figure_class()
    for source in map(Path, images):
        if Path(output).resolve().is_relative_to(source.resolve()):
            raise InputError(
                "{output} would be read as an image of {source}; write elsewhere", output, source
            )
    description = describe(folder)
    if description.config.image is None:
        raise InputError("{folder} contains a text model; relevance maps are for images", folder)
    model, processor = load(description), Processor.load(folder)
    most = _MOST + 1 if rows is None else min(rows, _MOST + 1)
    files = list(islice(chain.from_iterable(map(stream_images, images)), most))
    if len(files) > _MOST:
        raise InputError("there are more than {most} images; draw fewer at a time", _MOST)
    also = [] if label is None else [class_number(model, label)]
    explained = list(
        explain(model, processor, files, lambda p: [int(p.argmax()), *also], layers=layers)
    )
    _draw(make_figure, explained, model.labels, Path(output))
    return explained


def explain(
    model: Model,
    processor: Processor,
    images: Sequence[ImageSource],
    classes: Callable[[np.ndarray], Sequence[int]],
    *,
    layers: Sequence[int] | None = None,
) -> Iterator[ImageExplanation]:
    """Yield the explanation of each image.

    Args:
        classes: chooses the classes to explain, the same number for each image, from the
            probabilities (C).
        layers: layers whose attention is used, from 0; by default all.

    Raises:
        InputError: the preprocessing does not fit the model, or a layer does not exist.
    """
    image = model.config.image
    if image is None or (processor.size, processor.channels) != (image.size, image.channels):
        raise InputError(
            "the folder's preprocessor_config.json does not match its model: the sizes differ"
        )
    for start in range(0, len(images), _BATCH):
        some = images[start : start + _BATCH]
        values = processor([source.read(processor.channels) for source in some])
        batch = to_batch(torch.from_numpy(values).to(model.device), model.config)
        attention_maps = attention_and_gradient(model, batch, keep_attention=layers)
        probabilities = attention_maps.logits.float().softmax(-1).cpu().numpy()
        predicted: list[int] = probabilities.argmax(1).tolist()
        chosen = [list(classes(each)) for each in probabilities]
        maps = []
        for targets in zip(*chosen, strict=True):
            again = list(targets) != predicted
            options = {"keep_attention": layers, "target": targets}
            given = attention_and_gradient(model, batch, **options) if again else attention_maps
            maps.append([over_patches(row, model).cpu().numpy() for row in first_rows(given)])
        for b, source in enumerate(some):
            yield ImageExplanation(
                Path(source.name).name,  # "x.npz, picture 2" for an array
                _visible(values[b], processor),
                over_patches(rollout(attention_maps.of(b)[0])[0], model).cpu().numpy(),
                predicted[b],
                model.labels[predicted[b]],
                probabilities[b],
                [(number, own[b]) for number, own in zip(chosen[b], maps, strict=True)],
            )


def over_patches(row: Tensor, model: Model) -> Tensor:
    """The values of the patches in a row (S), as an image of patches (rows, columns)."""
    image = model.config.image
    if image is None:
        raise InputError("the model reads text: there are no patches")
    return row[1:].unflatten(0, image.grid)


def _visible(values: np.ndarray, processor: Processor) -> np.ndarray:
    """Model input (C, H, W) -> visible pixels (H, W, C) from 0 to 1."""
    mean, std = (np.array(x, np.float32)[:, None, None] for x in (processor.mean, processor.std))
    white = np.float32(255 * processor.scale)
    return np.moveaxis((values * std + mean) / white, 0, -1).clip(0, 1)


def _draw(
    make_figure: Any, rows: Sequence[ImageExplanation], labels: Sequence[str], path: Path
) -> None:
    files, names, family = _titles([one.name for one in rows], labels)
    columns = 2 + len(rows[0].maps)
    high, wide = rows[0].pixels.shape[:2]
    cell = _INCHES * high / wide + 0.3
    size = (columns * (_INCHES + 0.12) + 0.75, len(rows) * cell + 0.75)
    figure = make_figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.04, h_pad=0.04, wspace=0.01, hspace=0.01)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    shown = None
    for row, one, file in zip(axes, rows, files, strict=True):
        named = [f"{_short(names[c])}  {one.probabilities[c]:.1%}" for c, _ in one.maps]
        titles = [_short(file), "", *named]
        heats = [None, one.rollout, *(heat for _, heat in one.maps)]
        for axis, heat, title in zip(row, heats, titles, strict=True):
            shown = _panel(axis, one.pixels, heat) or shown
            axis.set_title(title, fontsize=9, family=family, parse_math=False)
    above = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "center"}
    for axis, head in zip(axes[0], _COLUMNS, strict=False):
        axis.annotate(head, (0.5, 1), (0, 22), weight="bold", fontsize=9, **above)
    bar = figure.colorbar(shown, ax=axes, shrink=min(1.0, 1.5 / len(rows)), pad=0.01, aspect=16)
    bar.set_label("share of the map's largest value", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    save_figure(figure, path, _DPI)


def _titles(
    files: Sequence[str], labels: Sequence[str]
) -> tuple[Sequence[str], Sequence[str], list[str] | None]:
    """Titles for files and labels, and fonts that cover all their characters.

    Without such a font, titles are numbers."""
    images = [f"image {i}" for i in range(1, len(files) + 1)]
    classes = [f"class {i}" for i in range(len(labels))]
    for some, others in ((files, labels), (images, labels), (files, classes)):
        if (family := fitting_fonts(map(_short, [*some, *others]))) is not None:
            return some, others, family
    return images, classes, None


def _panel(axis: Any, pixels: np.ndarray, heat: np.ndarray | None) -> Any:
    """Draw an image; with ``heat`` it is grey, and covered with the relevance of each patch."""
    axis.set_axis_off()
    size = pixels.shape[:2]
    extent = (0, size[1], size[0], 0)
    if heat is None:
        colours = {"cmap": "gray", "vmin": 0, "vmax": 1} if pixels.shape[2] == 1 else {}
        axis.imshow(pixels.squeeze(-1) if colours else pixels, extent=extent, **colours)
        return None
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    grey = _DARK + (_LIGHT - _DARK) * pixels.mean(-1)
    axis.imshow(grey, extent=extent, cmap="gray", vmin=0, vmax=1)
    share = heat / max(float(heat.max()), np.finfo(np.float32).tiny)
    colours = colormaps[_COLOUR_MAP](np.linspace(0, 1, 256))
    colours[:, 3] = np.linspace(_LEAST, _MOST_COVER, 256)
    return axis.imshow(share, extent=extent, cmap=ListedColormap(colours), vmin=0, vmax=1)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
