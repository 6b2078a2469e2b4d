"""Pictures to numbers: what a model expects of their size and values, and the cut into patches.

B pictures, C channels, H and W height and width in pixels, N patches of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.files import read_json, refuse_unreadable, write_json

PROCESSOR = "preprocessor_config.json"
# Pillow's numbers, which Transformers writes.
_RESAMPLES = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
_NEEDS_PILLOW = "pictures need: pip install 'ownbert[vision]'"


@dataclass(frozen=True)
class Processor:
    """What is done to a picture before a model sees it, as ViTImageProcessor of Transformers does.

    size: (height, width). mean, std: what is taken off the values from 0 to 1 and what they are
    divided by, a number a channel. channels: 1 (grey) or 3. resample: how the size is changed.
    scale: what whole numbers are multiplied by first; a fraction x counts as the number 255 x.
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
            raise InputError(f"size is {self.size}; it must be height and width from 1 on")
        if self.channels not in (1, 3):
            raise InputError(f"channels is {self.channels}; it must be 1 (grey) or 3 (colours)")
        for name in ("mean", "std"):
            if len(getattr(self, name)) != self.channels:
                raise InputError(
                    f"{name} has {len(getattr(self, name))} numbers for {self.channels} channels"
                )
        if min(self.std) <= 0:
            raise InputError(f"std is {self.std}; every number must be more than 0")
        if self.resample not in _RESAMPLES:
            known = ", ".join(_RESAMPLES)
            raise InputError(f"resample {self.resample!r} is not known; one of {known}")

    def __call__(self, pictures: Any) -> np.ndarray:
        """float32 (B, C, H, W) of an array or a list of pictures.

        Pictures are arrays (H, W) or (H, W, C), of whole numbers from 0 to 255 or of fractions
        from 0 to 1, or of Pillow. A list may mix sizes; grey ones get three equal channels where
        three are wanted. Pictures of Pillow that are transparent somewhere are laid on white;
        Transformers drops the transparency, so its numbers are the same for opaque ones alone.
        ``InputError`` for other values, shapes and channels.
        """
        if isinstance(pictures, np.ndarray) and pictures.ndim < 3:
            raise InputError(
                f"pictures have shape {pictures.shape}; it must be (B, H, W) or (B, H, W, C)"
            )
        if isinstance(pictures, np.ndarray) and pictures.shape[1:3] == self.size:
            return self.normalized(pictures if pictures.ndim == 4 else pictures[..., None])
        made = [self.normalized(self.resized(picture)[None]) for picture in pictures]
        return np.concatenate(made) if made else np.empty((0, self.channels, *self.size), "f4")

    def resized(self, picture: Any) -> np.ndarray:
        """(H, W, C) in the right size, of bytes or of fractions from 0 to 1."""
        array = picture if isinstance(picture, np.ndarray) else self._array_of(picture)
        if array.ndim not in (2, 3) or not array.size:
            raise InputError(f"a picture has shape {array.shape}; it must be (H, W) or (H, W, C)")
        array = checked_values(array if array.ndim == 3 else array[..., None], "the pictures")
        if array.shape[:2] == self.size:
            return array
        try:
            from PIL import Image
        except ImportError:
            raise InputError(f"to change the size of {_NEEDS_PILLOW}") from None
        turned, how = (self.size[1], self.size[0]), _RESAMPLES[self.resample]
        if array.dtype == np.uint8 and array.shape[2] == 3:
            return np.asarray(Image.fromarray(array).resize(turned, how))
        # Pillow knows fractions in one channel only.
        kind = np.uint8 if array.dtype == np.uint8 else np.float32
        planes = np.moveaxis(array.astype(kind), -1, 0)
        made = np.stack([np.asarray(Image.fromarray(p).resize(turned, how)) for p in planes], -1)
        # Of bytes Pillow cuts off by itself what lies beyond the edges of the scale.
        return made if kind is np.uint8 else made.clip(0, 1)

    def normalized(self, values: np.ndarray) -> np.ndarray:
        """(B, H, W, C) -> float32 (B, C, H, W)"""
        channels = values.shape[-1]
        if channels not in (1, self.channels):
            raise InputError(
                f"the pictures have {channels} channels, the model reads {self.channels}"
            )
        values = checked_values(values, "the pictures")
        out = np.moveaxis(values, -1, 1).astype(np.float32)
        out *= np.float32(self.scale if values.dtype == np.uint8 else 255 * self.scale)
        mean, std = (np.array(x, np.float32)[:, None, None] for x in (self.mean, self.std))
        return np.ascontiguousarray((out - mean) / std)

    def save(self, folder: str | Path) -> None:
        """Write preprocessor_config.json, which Transformers reads."""
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
        """From preprocessor_config.json. ``InputError`` for a step that is not done here."""
        path = Path(folder) / PROCESSOR
        refuse_unreadable(path)
        values = read_json(path)
        for step in ("do_center_crop", "do_pad", "do_thumbnail", "do_align_long_axis"):
            if values.get(step):
                raise InputError(f"{path}: {step} is true; supported is false")
        try:
            return cls(**_said(values))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                f"{path}: it must give size (height and width), image_mean and image_std as "
                "ViTImageProcessor does"
            ) from None

    def _array_of(self, picture: Any) -> np.ndarray:
        """The values of a picture of Pillow, in as many channels as are wanted."""
        if is_deep(picture.mode):
            return read_deep_grey(picture, "the pictures")
        if picture.mode.endswith(("A", "a")) or "transparency" in picture.info:
            from PIL import Image

            # Under full transparency colours are mostly black: a drawing would be lost in it.
            white = Image.new("RGBA", picture.size, "white")
            picture = Image.alpha_composite(white, picture.convert("RGBA"))
        return np.asarray(picture.convert("L" if self.channels == 1 else "RGB"))


def checked_values(array: np.ndarray, what: str, *, most: int = 255) -> np.ndarray:
    """Numbers of pictures as bytes, or as fractions from 0 to 1 where they are fractions.

    what: what they are, for messages. most: the largest whole number, white; those up to another
    one than 255 become fractions. ``InputError`` for what lies outside, and for what is no number.
    """
    if array.dtype == np.uint8 and most == 255:
        return array
    number = np.issubdtype(array.dtype, np.number) or array.dtype == bool
    if not number or np.iscomplexobj(array):
        raise InputError(f"{what} hold {array.dtype}; they must hold numbers")
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    whole = np.issubdtype(array.dtype, np.integer)
    if not (low >= 0 and high <= (most if whole else 1)):  # so written for what is not a number
        kinds = f"whole numbers from 0 to {most}" if whole else "fractions from 0 to 1"
        raise InputError(f"{what} hold values from {low:g} to {high:g}; they must be {kinds}")
    if not whole:
        return array
    return array.astype(np.uint8) if most == 255 else array.astype(np.float32) / np.float32(most)


def is_deep(mode: str) -> bool:
    """Whether a mode of Pillow is grey in 16 or 32 bits, or in floats: what Pillow would cut off at
    255."""
    return mode == "F" or mode.startswith("I")


def read_deep_grey(picture: Any, what: str) -> np.ndarray:
    """Fractions (H, W) of a picture of Pillow for which ``is_deep`` holds; whole numbers count in
    16 bits. Errors are those of ``checked_values``."""
    return checked_values(np.asarray(picture), what, most=65535)


def split_into_patches(pixels: np.ndarray, patch: tuple[int, int]) -> np.ndarray:
    """The patches of a picture, row by row: (C, H, W) -> float32 (N, C x h x w).

    patch: its (height, width). In a patch channel comes before row and row before column.
    """
    (channels, height, width), (down, across) = pixels.shape, patch
    if height % down or width % across:
        raise InputError(
            f"a picture of {height} x {width} cannot be cut into patches of {down} x {across}"
        )
    cut = pixels.reshape(channels, height // down, down, width // across, across)
    rows = cut.transpose(1, 3, 0, 2, 4).reshape(-1, channels * down * across)
    return np.ascontiguousarray(rows, np.float32)


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Processor`` out of ViTImageProcessor's words."""
    size = values["size"]  # of old folders one number
    mean, std = values.get("image_mean", (0.5,) * 3), values.get("image_std", (0.5,) * 3)
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
        "scale": values.get("rescale_factor", 1 / 255) if rescaled else 1.0,
    }
