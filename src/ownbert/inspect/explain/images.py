"""Explanations of images: how much each patch has to do with a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ownbert.checkpoint import Description, load
from ownbert.errors import InputError
from ownbert.images.image_files import stream_images
from ownbert.images.pixels import Processor
from ownbert.inspect.explain.attribution import class_number
from ownbert.inspect.explain.overlay import ImageExplanation, explain
from ownbert.inspect.explain.targets import likeliest
from ownbert.inspect.internals.page_parts import packed_bytes
from ownbert.train.device import pick_device

# Of images; both are computed in one pass.
IMAGE_METHODS = ("attention_x_gradient", "attention_rollout")
# More pixels of a side make a page large, and show nothing more.
_SIDE = 512


@dataclass(frozen=True)
class PatchExplanation:
    """What a class of an image rests on.

    Args:
        row: the image's number among those explained, from 0.
        name: of the image.
        target: the class.
        probability: of the class.
        method: by which.
        values: (rows, columns), how much each patch is for the class.
        answers: the likeliest classes with their probabilities.
    """

    row: int
    name: str
    target: str
    probability: float
    method: str
    values: np.ndarray
    answers: tuple[tuple[str, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "texts": [self.name],
            "target": self.target,
            "score": round(self.probability, 6),
            "method": self.method,
            "words": [],
            "patches": [[float(f"{x:.4g}") for x in row] for row in self.values.tolist()],
        }


def explain_images(
    folder: Path,
    description: Description,
    images: Sequence[str | Path],
    *,
    methods: Sequence[str] = IMAGE_METHODS[:1],
    target: str | None = None,
    rows: int | None = None,
    classes: int = 1,
    device: str = "auto",
) -> tuple[list[PatchExplanation], list[np.ndarray]]:
    """What the classes of images rest on, and the images as the model sees them.

    Args:
        folder, description: of a model of images with a classification head.
        images: files, or folders of them.
        methods: names of ``IMAGE_METHODS``.
        target: a class; by default the likeliest ones.
        rows: at most so many images, from the first.
        classes: so many of the likeliest.
        device: auto, cpu or cuda.

    Returns:
        For each image, class and method an explanation; for each image its pixels (height, width,
        channels) from 0 to 1.

    Raises:
        InputError: there is no such method or class, or a file is no image.
    """
    for name in methods:
        if name not in IMAGE_METHODS:
            known = ", ".join(IMAGE_METHODS)
            raise InputError(f"images are explained by {known}; there is no {name!r} for them")
    model = load(description).to(pick_device(device))
    processor = Processor.load(folder)
    files = list(islice(chain.from_iterable(map(stream_images, images)), rows))
    wanted = None if target is None else [class_number(model, target)]
    found: list[PatchExplanation] = []
    pixels: list[np.ndarray] = []
    for row, file in enumerate(files):
        (first,) = explain(model, processor, [file])
        order = np.argsort(-first.probabilities, kind="stable")
        answers = likeliest(first.probabilities, model.labels.__getitem__)
        pixels.append(first.pixels)
        for number in order[:classes].tolist() if wanted is None else wanted:
            label = model.labels[number]
            heat = _heat(first, number)
            if heat is None:
                (other,) = explain(model, processor, [file], label=label)
                heat = _heat(other, number)
            assert heat is not None
            for method in methods:
                values = heat if method == IMAGE_METHODS[0] else first.rollout
                shown = float(first.probabilities[number])
                found.append(
                    PatchExplanation(row, first.name, label, shown, method, values, answers)
                )
    return found, pixels


def _heat(found: ImageExplanation, number: int) -> np.ndarray | None:
    return next((heat for own, heat in found.maps if own == number), None)


def picture_data(pixels: np.ndarray) -> dict[str, Any]:
    """An image for a page's script: its size, and bytes of red, green and blue."""
    step = max(1, -(-max(pixels.shape[:2]) // _SIDE))
    small = torch.from_numpy(np.ascontiguousarray(pixels, dtype=np.float32)).permute(2, 0, 1)
    if step > 1:
        small = torch.nn.functional.avg_pool2d(small, step, ceil_mode=True)
    colours = small.expand(3, -1, -1) if len(small) == 1 else small
    raw = (255 * colours.permute(1, 2, 0)).round().byte().contiguous().numpy()
    height, width = raw.shape[:2]
    return {"width": width, "height": height, "pixels": packed_bytes(raw.tobytes())}
