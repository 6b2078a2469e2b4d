"""Preprocesses images: resizing, normalisation, and splitting into patches.

B images, P patches of an image.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.checks import dict_of, either, known, list_of, maybe, number, record, truth, whole
from ownbert.exceptions import InputError, needing
from ownbert.files.json_files import read_json, write_json
from ownbert.hub import model_folder
from ownbert.language.messages import Message

PROCESSOR = "preprocessor_config.json"
# Pillow's numbers of resampling filters, as used by Transformers.
_RESAMPLES = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
_SIDE = whole(1, 65_536)
_DEGREES = list_of(number(-1e6, 1e6), least=1, most=4096)  # one per channel
_KEYS = record(
    {
        "size": either(_SIDE, dict_of(_SIDE), wanted="a whole number, or height and width"),
        "image_mean": maybe(_DEGREES),
        "image_std": maybe(_DEGREES),
        "rescale_factor": maybe(number(-1e6, 1e6)),
        **dict.fromkeys(("do_resize", "do_normalize", "do_rescale"), maybe(truth)),
    }
)


@dataclass(frozen=True)
class Processor:
    """The preprocessing of images for a model, as in ViTImageProcessor of Transformers.

    Args:
        size: (height, width) in pixels.
        mean: subtracted from values between 0 and 1, per channel.
        std: divisor of the values, per channel.
        channels: 1 (greyscale) or 3 (RGB).
        resample: resampling filter.
        scale: factor for integers; a float x is treated like the integer 255 x.

    Raises:
        InputError: a value is out of range.
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    channels: int = 3
    resample: str = "bilinear"
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        for name, kind in (("size", int), ("mean", float), ("std", float)):
            object.__setattr__(self, name, tuple(map(kind, getattr(self, name))))
        if len(self.size) != 2 or min(self.size) < 1:
            raise InputError(
                "size is {size}; it must be a height and width of at least 1", self.size
            )
        if self.channels not in (1, 3):
            raise InputError(
                "channels is {channels}; it must be 1 (grey) or 3 (colour)", self.channels
            )
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.channels:
                raise InputError(
                    "{name} has {count} numbers for {channels} channels",
                    name,
                    len(getattr(self, name)),
                    self.channels,
                )
        if min(self.std) <= 0:
            raise InputError("std is {std}; every number must be more than 0", self.std)
        known(*_RESAMPLES)("resample", self.resample)

    def __call__(self, images: Any) -> np.ndarray:
        """Preprocess images.

        Args:
            images: an array or a list; each image is an array (height, width) or (height, width,
                channels) of integers from 0 to 255 or floats from 0 to 1, or a Pillow image. A list
                may contain different sizes; greyscale images are repeated for three channels.
                Transparent Pillow images are composited on white; Transformers drops the alpha
                channel, so that results are only equal for opaque images.

        Returns:
            (B, channels, height, width) float32.

        Raises:
            InputError: the images have invalid values, shapes or channels.
        """
        if isinstance(images, np.ndarray) and images.ndim < 3:
            raise InputError(
                "images have shape {shape}; it must be (B, H, W) or (B, H, W, C)", images.shape
            )
        if isinstance(images, np.ndarray) and images.shape[1:3] == self.size:
            return self.normalized(images if images.ndim == 4 else images[..., None])
        processed = [self.normalized(self.resized(image)[None]) for image in images]
        if not processed:
            return np.empty((0, self.channels, *self.size), "f4")
        return np.concatenate(processed)

    def resized(self, image: Any) -> np.ndarray:
        """Resize an image to (height, width, channels), bytes or floats from 0 to 1.

        Raises:
            InputError: the image has invalid values or an invalid shape.
        """
        array = image if isinstance(image, np.ndarray) else self._array_of(image)
        if array.ndim not in (2, 3) or not array.size:
            raise InputError(
                "an image has shape {shape}; it must be (H, W) or (H, W, C)", array.shape
            )
        array = checked_values(array if array.ndim == 3 else array[..., None], "the images")
        if array.shape[:2] == self.size:
            return array
        with needing("resizing images needs Pillow: pip install 'ownbert[vision]'"):
            from PIL import Image
        size, how = (self.size[1], self.size[0]), _RESAMPLES[self.resample]
        if array.dtype == np.uint8 and array.shape[2] == 3:
            return np.asarray(Image.fromarray(array).resize(size, how))
        # Pillow supports floats with a single channel only.
        kind = np.uint8 if array.dtype == np.uint8 else np.float32
        planes = np.moveaxis(array.astype(kind), -1, 0)
        resized = np.stack([np.asarray(Image.fromarray(p).resize(size, how)) for p in planes], -1)
        return resized if kind is np.uint8 else resized.clip(0, 1)  # Pillow clips bytes itself

    def normalized(self, values: np.ndarray) -> np.ndarray:
        """(B, height, width, channels) -> normalised float32 (B, channels, height, width)."""
        channels = values.shape[-1]
        if channels not in (1, self.channels):
            raise InputError(
                "the images have {channels} channels, the model reads {channels2}",
                channels,
                self.channels,
            )
        values = checked_values(values, "the images")
        out = np.moveaxis(values, -1, 1).astype(np.float32)
        out *= np.float32(self.scale if values.dtype == np.uint8 else 255 * self.scale)
        mean, std = (np.array(x, np.float32)[:, None, None] for x in (self.mean, self.std))
        return np.ascontiguousarray((out - mean) / std)

    def save(self, folder: str | Path) -> None:
        """Write preprocessor_config.json into a folder, in Transformers' format."""
        values = {
            "image_processor_type": "ViTImageProcessor",
            "do_convert_rgb": True if self.channels == 3 else None,
            "do_resize": True,
            "size": dict(zip(("height", "width"), self.size, strict=True)),
            "resample": _RESAMPLES[self.resample],
            "do_rescale": True,
            "rescale_factor": self.scale,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        write_json(Path(folder) / PROCESSOR, values)

    @classmethod
    def load(cls, folder: str | Path) -> "Processor":
        """Read preprocessor_config.json of a folder.

        Raises:
            InputError: the file is missing or damaged, or has unsupported steps.
        """
        path = model_folder(folder) / PROCESSOR
        values = read_json(path, check=_KEYS)
        for step in ("do_center_crop", "do_pad", "do_thumbnail", "do_align_long_axis"):
            if values.get(step):
                raise InputError("{path}: {step} is true; it must be false", path, step)
        try:
            return cls(**_processor_fields(values))
        except InputError as error:
            raise InputError("{path}: {error}", path, error) from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                "{path}: it must give size (height and width), image_mean and image_std as "
                "ViTImageProcessor does",
                path,
            ) from None

    def _array_of(self, image: Any) -> np.ndarray:
        """The values of a Pillow image with ``channels`` channels."""
        if is_deep(image.mode):
            return read_deep_grey(image, "the images")
        if image.mode.endswith(("A", "a")) or "transparency" in image.info:
            from PIL import Image

            # Fully transparent pixels are mostly black, which would hide a drawing.
            white = Image.new("RGBA", image.size, "white")
            image = Image.alpha_composite(white, image.convert("RGBA"))
        return np.asarray(image.convert("L" if self.channels == 1 else "RGB"))


def checked_values(array: np.ndarray, what: str, *, most: int = 255) -> np.ndarray:
    """Check the values of images; return bytes, or floats from 0 to 1.

    Args:
        array: integers or floats.
        what: description, for messages.
        most: maximum integer (white); if it is not 255, integers are converted to floats.

    Raises:
        InputError: a value is out of range, or not numeric.
    """
    if array.dtype == np.uint8 and most == 255:
        return array
    number = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    if not number or np.iscomplexobj(array):
        raise InputError("{what} contain {dtype}; they must contain numbers", what, array.dtype)
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    whole = np.issubdtype(array.dtype, np.integer)
    if not (low >= 0 and high <= (most if whole else 1)):  # negated, to reject NaN
        kinds = (
            Message("whole numbers from 0 to {most}", most) if whole else "fractions from 0 to 1"
        )
        raise InputError(
            "{what} contain values from {low:g} to {high:g}; they must be {kinds}",
            what,
            low,
            high,
            kinds,
        )
    if not whole:
        return array
    return array.astype(np.uint8) if most == 255 else array.astype(np.float32) / np.float32(most)


def is_deep(mode: str) -> bool:
    """Whether a Pillow mode is greyscale with 16 or 32 bits, or floats.

    Pillow would clip these at 255 in a conversion.
    """
    return mode == "F" or mode.startswith("I")


def read_deep_grey(image: Any, what: str) -> np.ndarray:
    """The values of a Pillow image with an ``is_deep`` mode, as floats (height, width).

    Integers are assumed to have 16 bits.

    Raises:
        InputError: a value is out of range.
    """
    return checked_values(np.asarray(image), what, most=65535)


def split_into_patches(pixels: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
    """Split an image (channels, height, width) into patches (P, values) in row-major order.

    The values of a patch, float32, are ordered by channel, row, column.

    Raises:
        InputError: patches of this size do not cover the image exactly.
    """
    (channels, height, width), (down, across) = pixels.shape, patch
    if height % down or width % across:
        raise InputError(
            "an image of {height} x {width} cannot be cut into patches of {down} x {across}",
            height,
            width,
            down,
            across,
        )
    grid = pixels.reshape(channels, height // down, down, width // across, across)
    rows = grid.transpose(1, 3, 0, 2, 4).reshape(-1, channels * down * across)
    return np.ascontiguousarray(rows, np.float32)


def _processor_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the keys of ViTImageProcessor to fields of ``Processor``."""
    size = values["size"]  # a single number in old folders
    mean, std = (values.get(name) or (0.5,) * 3 for name in ("image_mean", "image_std"))
    if not values.get("do_normalize", True):
        mean, std = [0.0] * len(mean), [1.0] * len(mean)
    number = values.get("resample", _RESAMPLES["bilinear"])
    names = {n: name for name, n in _RESAMPLES.items()}
    rescaled = values.get("do_rescale", True)
    return {
        "size": (size, size) if isinstance(size, int) else (size["height"], size["width"]),
        "mean": mean,
        "std": std,
        "channels": len(mean),
        "resample": names.get(number, str(number)),
        "scale": float(values.get("rescale_factor", 1 / 255)) if rescaled else 1.0,
    }
