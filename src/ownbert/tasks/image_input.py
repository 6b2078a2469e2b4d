"""From pictures to what a ViT reads. N rows, C channels, H and W in pixels, P patches of a picture.

Pictures are read and cut when they are asked for.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.config import Image
from ownbert.data.batch import Example
from ownbert.data.images.augmentation import Augmentation
from ownbert.data.images.image_files import ImageSource
from ownbert.data.images.pixels import Processor, split_into_patches
from ownbert.errors import InputError
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import EncodedRows

# From dark to light, for pictures made of characters; and their size at most, in characters, which
# are about twice as high as wide.
_SHADES = " .:-=+*#%@"
_ACROSS, _DOWN = 56, 28


@dataclass(frozen=True, slots=True)
class PictureRow(Row):
    """A row whose text is the digest of a picture, by which copies are found."""

    picture: ImageSource = field(kw_only=True)

    def place(self, source: str | Path) -> str:
        return self.picture.name


class ImageInputBuilder:
    """The counterpart of ``TextInputBuilder`` for images: their pixels as patches, in the size and
    values that the model expects. max_length: patches and the class token."""

    tokenizer = None

    def __init__(self, processor: Processor, image: Image, source: Any) -> None:
        """source: the model, for messages."""
        said, read = processor, image
        if (said.size, said.channels) != (read.size, read.channels):
            raise InputError(
                f"{source}: preprocessor_config.json makes pictures of {_sizes(said.size)} in "
                f"{said.channels} channels, and the model reads {_sizes(read.size)} in "
                f"{read.channels}"
            )
        self.processor, self.image = processor, image
        self.max_length = image.patches + 1

    def pixels(self, picture: ImageSource) -> np.ndarray:
        """(C, H, W)"""
        return self.processor([picture.read(self.image.channels)])[0]

    def example(self, pixels: np.ndarray, target: Any) -> Example:
        """(C, H, W) with what it should be answered with."""
        nothing = np.zeros(self.max_length, dtype=np.int64)
        patches = split_into_patches(pixels, self.image.patch)
        return Example(nothing, nothing, label=target, patches=patches)

    def about(self, data: EncodedRows, unit: str) -> Iterator[str]:
        """How pictures are read, for people."""
        assert isinstance(data, EncodedPictures)
        sizes = {picture.size for picture in data.examples.pictures}
        least, most = min(sizes), max(sizes)
        own = _sizes(least) if least == most else f"from {_sizes(least)} to {_sizes(most)}"
        colours = "grey" if self.image.channels == 1 else "in colour"
        mean, std = (
            ", ".join(f"{x:.3f}" for x in numbers)
            for numbers in (self.processor.mean, self.processor.std)
        )
        yield (
            f"{unit}: {own} pixels, read as {_sizes(self.image.size)} {colours}, in "
            f"{self.image.patches} patches of {_sizes(self.image.patch)}; mean {mean}, standard "
            f"deviation {std}"
        )

    def shown(self, example: Example) -> list[str]:
        """A picture in characters, from dark to light."""
        assert example.patches is not None
        (down, across), (height, width) = self.image.grid, self.image.patch
        patches = example.patches.reshape(down, across, self.image.channels, height, width)
        grey = patches.mean(2).transpose(0, 2, 1, 3).reshape(self.image.size)
        low, high = grey.min(), grey.max()
        scale = min(1.0, _DOWN * 2 / self.image.size[0], _ACROSS / self.image.size[1])
        lines, columns = (
            (np.arange(max(1, round(size * scale * part))) + 0.5) / (scale * part)
            for size, part in zip(self.image.size, (0.5, 1), strict=True)
        )
        chosen = grey[lines.astype(int).clip(max=len(grey) - 1)]
        chosen = chosen[:, columns.astype(int).clip(max=grey.shape[1] - 1)]
        shades = ((chosen - low) / max(high - low, 1e-6) * (len(_SHADES) - 1)).round().astype(int)
        return ["".join(_SHADES[i] for i in row).rstrip() for row in shades]


class Views(Sequence[Example]):
    """The examples of pictures, each made when it is asked for. targets: None where unknown."""

    def __init__(
        self,
        pictures: Sequence[ImageSource],
        targets: Sequence[int | None],
        builder: ImageInputBuilder,
    ) -> None:
        self.pictures, self.targets, self.builder = pictures, targets, builder

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Views(self.pictures[index], self.targets[index], self.builder)
        return self.builder.example(self.builder.pixels(self.pictures[index]), self.targets[index])

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.full(len(self), self.builder.max_length, dtype=np.int64)


@dataclass(frozen=True)
class EncodedPictures(EncodedRows):
    """As ``EncodedRows``. With ``augmentation`` a picture is another one in each epoch: a function
    of seed, epoch and its number."""

    examples: Views
    augmentation: Augmentation | None = None
    seed: int = 0

    @cached_property
    def sizes(self) -> np.ndarray:
        return self.examples.sizes

    def example(self, epoch: int, index: int) -> Example:
        if self.augmentation is None:
            return self.examples[index]
        views = self.examples
        draw = np.random.default_rng((self.seed, epoch, index))
        pixels = self.augmentation(views.builder.pixels(views.pictures[index]), draw)
        return views.builder.example(pixels, views.targets[index])

    def identity(self) -> str:
        digest = hashlib.sha256()
        for picture, target in zip(self.examples.pictures, self.examples.targets, strict=True):
            digest.update(f"{picture.digest} {target}\n".encode())
        return f"{len(self):,} examples ({digest.hexdigest()[:12]})"


def _sizes(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
