"""Training pictures changed a little each time they are seen. C channels, H and W in pixels."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Augmentation:
    """flip: whether half of the pictures are mirrored, left to right. shift: by how much a picture
    is moved at most, a share of its height and width; what was at the edge fills the gap. crop: the
    smallest share of the area that is cut out and stretched to the whole (1: none)."""

    flip: bool = False
    shift: float = 0.0
    crop: float = 1.0

    def __call__(self, pixels: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        """(C, H, W) -> (C, H, W), a function of ``draw`` alone."""
        height, width = pixels.shape[1:]
        # All are drawn in any case, so that one setting does not change what another draws.
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
        return _between(_between(pixels, rows, axis=1), columns, axis=2)


def _places(size: int, side: float, at: float, moved: int) -> np.ndarray:
    """Where along one side of a picture the pixels of the new one are taken from."""
    start = at * (1 - side) * size + moved
    places = start + (np.arange(size) + 0.5) * side - 0.5
    return np.clip(places, 0, size - 1)


def _between(pixels: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Values at places between pixels, in a straight line from one to the next."""
    before = np.floor(places).astype(np.intp)
    after = np.minimum(before + 1, pixels.shape[axis] - 1)
    share = (places - before).astype(pixels.dtype)
    share = share[:, None] if axis == 1 else share
    first, second = pixels.take(before, axis), pixels.take(after, axis)
    return first + (second - first) * share
