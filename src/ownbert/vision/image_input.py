"""Converts images to ViT inputs: arrays of pixels (channels, height, width), then patches.

Images are read and split into patches lazily.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.config.variants import Image
from ownbert.exceptions import InputError
from ownbert.language.messages import Message
from ownbert.tables.tables import Source
from ownbert.tasks.rows import Row
from ownbert.tasks.text_input import EncodedRows
from ownbert.vision.augmentation import Augmentation
from ownbert.vision.image_files import ImageSource
from ownbert.vision.pixels import Processor, split_into_patches

# For drawing images in characters: shades from dark to light, maximum columns and lines. Characters
# are about twice as high as wide.
_SHADES = " .:-=+*#%@"
_COLUMNS, _LINES = 56, 28


@dataclass(frozen=True, slots=True)
class ImageRow(Row):
    """A row whose text is the digest of its image, for finding duplicates."""

    image: ImageSource = field(kw_only=True)

    def place(self, source: Source) -> str:
        return self.image.name


class ImageInputBuilder:
    """The counterpart of ``TextInputBuilder`` for images: converts pixels to patches.

    Attributes:
        max_length: number of patches plus the class token.

    Raises:
        InputError: processor and model do not match.
    """

    tokenizer = None

    def __init__(self, processor: Processor, image: Image, source: Any) -> None:
        if (processor.size, processor.channels) != (image.size, image.channels):
            raise InputError(
                "{source}: preprocessor_config.json makes images of {sizes} in {channels} "
                "channels, and the model reads {image_sizes} in {image_channels}",
                source,
                _sizes(processor.size),
                processor.channels,
                _sizes(image.size),
                image.channels,
            )
        self.processor, self.image = processor, image
        self.max_length = image.patches + 1

    def pixels(self, image: ImageSource) -> np.ndarray:
        """The processed pixels (channels, height, width)."""
        return self.processor([image.read(self.image.channels)])[0]

    def example(self, pixels: np.ndarray, target: Any) -> Example:
        """Make an example of pixels (channels, height, width) and their label."""
        no_tokens = np.zeros(self.max_length, dtype=np.int64)
        patches = split_into_patches(pixels, self.image.patch)
        return Example(no_tokens, no_tokens, label=target, patches=patches)

    def describe(self, data: EncodedRows, unit: str) -> Iterator[str]:
        """Yield a line on the input size."""
        assert isinstance(data, EncodedImages)
        sizes = {image.size for image in data.examples.images}
        smallest, largest = map(_sizes, (min(sizes), max(sizes)))
        size_range = Message("from {low} to {high}", smallest, largest)
        size_range = smallest if smallest == largest else size_range
        colours = "grey" if self.image.channels == 1 else "in colour"
        mean, std = (
            ", ".join(f"{x:.3f}" for x in numbers)
            for numbers in (self.processor.mean, self.processor.std)
        )
        yield (
            Message(
                "{unit}: {size_range} pixels, read as {sizes} {colours}, in {patches} patches "
                "of {image_sizes}; mean {mean}, standard deviation {std}",
                unit,
                size_range,
                _sizes(self.image.size),
                colours,
                self.image.patches,
                _sizes(self.image.patch),
                mean,
                std,
            )
        )

    def preview(self, example: Example) -> list[str]:
        """The image drawn in characters, one string per line."""
        assert example.patches is not None
        (down, across), (height, width) = self.image.grid, self.image.patch
        patches = example.patches.reshape(down, across, self.image.channels, height, width)
        grey = patches.mean(2).transpose(0, 2, 1, 3).reshape(self.image.size)
        low, high = grey.min(), grey.max()
        scale = min(1.0, _LINES * 2 / self.image.size[0], _COLUMNS / self.image.size[1])
        lines, columns = (
            (np.arange(max(1, round(size * scale * part))) + 0.5) / (scale * part)
            for size, part in zip(self.image.size, (0.5, 1), strict=True)
        )
        chosen = grey[lines.astype(int).clip(max=len(grey) - 1)]
        chosen = chosen[:, columns.astype(int).clip(max=grey.shape[1] - 1)]
        shades = ((chosen - low) / max(high - low, 1e-6) * (len(_SHADES) - 1)).round().astype(int)
        return ["".join(_SHADES[i] for i in row).rstrip() for row in shades]


@dataclass(frozen=True, eq=False)
class ImageExamples(Sequence[Example]):
    """Lazily created examples of images.

    Args:
        images: any number of images.
        targets: label indices, None if unknown.
        builder: input builder of the model.
    """

    images: Sequence[ImageSource]
    targets: Sequence[int | None]
    builder: ImageInputBuilder

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return ImageExamples(self.images[index], self.targets[index], self.builder)
        return self.builder.example(self.builder.pixels(self.images[index]), self.targets[index])

    @cached_property
    def sizes(self) -> np.ndarray:
        return np.full(len(self), self.builder.max_length, dtype=np.int64)


@dataclass(frozen=True)
class EncodedImages(EncodedRows):
    """``EncodedRows`` of images.

    Args:
        augmentation: random changes in each epoch, a function of seed, epoch and index.
    """

    examples: ImageExamples
    augmentation: Augmentation | None = None
    seed: int = 0

    @cached_property
    def sizes(self) -> np.ndarray:
        return self.examples.sizes

    def example(self, epoch: int, index: int) -> Example:
        if self.augmentation is None:
            return self.examples[index]
        examples, builder = self.examples, self.examples.builder
        rng = np.random.default_rng((self.seed, epoch, index))
        pixels = self.augmentation(builder.pixels(examples.images[index]), rng)
        return builder.example(pixels, examples.targets[index])

    def subset(self, indices: Sequence[int]) -> EncodedRows:
        images, targets = self.examples.images, self.examples.targets
        chosen = [images[i] for i in indices], [targets[i] for i in indices]
        return EncodedImages(ImageExamples(*chosen, self.examples.builder))

    def identity(self) -> str:
        digest = hashlib.sha256()
        for image, target in zip(self.examples.images, self.examples.targets, strict=True):
            digest.update(f"{image.digest} {target}\n".encode())
        return f"{len(self):,} examples ({digest.hexdigest()[:12]})"


def _sizes(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
