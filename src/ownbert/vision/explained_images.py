"""Explanations of images: relevance of each patch for a class."""

from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checkpoint import Description, load
from ownbert.exceptions import InputError
from ownbert.inspect.explain.attribution import class_number
from ownbert.inspect.explain.explanation import Explanation
from ownbert.inspect.explain.targets import likeliest
from ownbert.train.device import pick_device
from ownbert.vision.image_files import stream_images
from ownbert.vision.pixels import Processor
from ownbert.vision.relevance_maps import explain

# Methods for images; both are computed in one pass.
IMAGE_METHODS = ("attention_x_gradient", "attention_rollout")


class PatchExplanation(Explanation):
    """The relevance of an image's patches for a class.

    ``texts`` is the name of the image, ``values`` are (rows, columns), and there are no words.
    """

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON values."""
        patches = [[float(f"{x:.4g}") for x in row] for row in self.values.tolist()]
        return {**super().to_dict(), "patches": patches}


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
    """Explain the classes of images, and return the images as model input.

    Args:
        folder: folder of an image classifier.
        description: description of the folder.
        images: files, or folders of files.
        methods: names in ``IMAGE_METHODS``.
        target: a class; by default the most probable ones.
        rows: maximum number of images.
        classes: number of most probable classes to explain.
        device: auto, cpu or cuda.

    Returns:
        An explanation for each image, class and method; and the pixels of each image (height,
        width, channels) from 0 to 1.

    Raises:
        InputError: unknown method or class, or a file is not an image.
    """
    for name in methods:
        if name not in IMAGE_METHODS:
            known = ", ".join(IMAGE_METHODS)
            raise InputError("images can be explained by {options}, not by {name!r}", known, name)
    model = load(description).to(pick_device(device))
    processor = Processor.load(folder)
    files = list(islice(chain.from_iterable(map(stream_images, images)), rows))
    target_class = None if target is None else [class_number(model, target)]
    explanations: list[PatchExplanation] = []
    pixels: list[np.ndarray] = []

    def chosen(probabilities: np.ndarray) -> list[int]:
        return target_class or np.argsort(-probabilities, kind="stable")[:classes].tolist()

    for row, one in enumerate(explain(model, processor, files, chosen)):
        answers = likeliest(one.probabilities, model.labels.__getitem__)
        pixels.append(one.pixels)
        for number, heat in one.maps:
            label, shown = model.labels[number], float(one.probabilities[number])
            for method in methods:
                values = heat if method == IMAGE_METHODS[0] else one.rollout
                about = row, (one.name,), label, shown, method
                explanations.append(PatchExplanation(*about, (), values, answers=answers))
    return explanations, pixels
