"""Random augmentation of training images."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Augmentation:
    """Random flips, shifts and crops.

    Args:
        flip: whether to mirror half of the images horizontally.
        shift: maximum translation as a share of height and width; edge pixels fill the gap.
        crop: minimum share of the area of a crop, which is resized to the full size (1: none).
    """

    flip: bool = False
    shift: float = 0.0
    crop: float = 1.0

    def __call__(self, pixels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """Augment an image (channels, height, width); the result only depends on ``draw``."""
        height, width = pixels.shape[1:]
        # All random numbers are always drawn, so that settings do not affect each other.
        mirrored, area, top, left, down, across = draw.random(6)
        side = float(np.sqrt(self.crop + (1 - self.crop) * area))
        rows, columns = (
            _places(size, side, at, round(size * self.shift * (2 * by - 1)))
            for size, at, by in ((height, top, down), (width, left, across))
        )
        if self.flip and mirrored < 0.5:
            columns = columns[::-1]
        if side == 1:
            return pixels[:, rows.astype(np.intp)[:, None], columns.astype(np.intp)]
        return _interpolate(_interpolate(pixels, rows, axis=1), columns, axis=2)


def _places(size: int, side: float, at: float, moved: int) -> np.ndarray:
    """Source positions of the new pixels along one side of the image."""
    start = at * (1 - side) * size + moved
    places = start + (np.arange(size) + 0.5) * side - 0.5
    return np.clip(places, 0, size - 1)


def _interpolate(pixels: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Values at fractional positions by linear interpolation."""
    before = np.floor(places).astype(np.intp)
    after = np.minimum(before + 1, pixels.shape[axis] - 1)
    share = (places - before).astype(pixels.dtype)
    share = share[:, None] if axis == 1 else share
    first, second = pixels.take(before, axis), pixels.take(after, axis)
    return first + (second - first) * share
