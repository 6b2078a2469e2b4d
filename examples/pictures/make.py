"""Make the images of this folder: crosses, rings and stripes of 16 x 16 pixels on noise.

python examples/pictures/make.py
"""

from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 16
CLASSES = ("cross", "ring", "stripes")
COUNTS = {"train": 16, "dev": 4, "test": 4}


def image(kind: str, rng: np.random.Generator) -> np.ndarray:
    """One image (SIDE, SIDE) of bytes, its figure moved a little."""
    across, down = rng.integers(-1, 2, 2)
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    y, x = y - down, x - across
    distance = np.hypot(x, y)
    figure = {
        "cross": ((abs(x) < 1.2) | (abs(y) < 1.2)) & (distance < 6),
        "ring": abs(distance - 4.5) < 1.1,
        "stripes": (np.floor((x + y) / 2) % 2 == 0) & (distance < 6),
    }[kind]
    values = np.where(figure, rng.integers(170, 256), 40) + rng.normal(0, 8, figure.shape)
    return values.clip(0, 255).astype(np.uint8)


def main() -> None:
    folder, rng = Path(__file__).parent, np.random.default_rng(0)
    for part, count in COUNTS.items():
        for kind in CLASSES:
            (folder / part / kind).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                name = folder / part / kind / f"{kind}-{number:02}.png"
                Image.fromarray(image(kind, rng)).save(name, optimize=True)


if __name__ == "__main__":
    main()
