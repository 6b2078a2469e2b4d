"""Images and their labels: folders of class folders, IDX files, arrays.

An image in a file is read on demand, so that a folder need not fit in memory.
"""

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.exceptions import InputError, needing
from ownbert.files.npz_files import open_npz
from ownbert.files.text_files import GZIP_MAGIC, refuse_unreadable
from ownbert.language.messages import Message
from ownbert.vision.pixels import checked_values, is_deep, read_deep_grey

# Names of images and labels in an .npz file or a table, in order of preference.
IMAGES = ("images", "image", "pictures", "img", "x", "X", "data")
LABELS = ("labels", "label", "classes", "y", "target")
# Extensions of predictions and metrics, which may be stored beside the images.
_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".ndjson")
# The EXIF orientation tag, and its values for a quarter turn.
_ORIENTATION, _QUARTER_TURNS = 0x0112, (5, 6, 7, 8)


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image that can be read.

    Args:
        source: a file, an array of bytes (height, width) or (height, width, 3), or a Pillow image.
        name: its location, for messages and predictions.
        digest: digest of its bytes.
        size: (height, width) after rotation.
        channels: 1 (greyscale) or 3 (RGB).
    """

    source: Any
    name: str
    digest: str
    size: tuple[int, int]
    channels: int

    @property
    def path(self) -> Path | None:
        """The file, if the image is in a separate file."""
        return self.source if isinstance(self.source, Path) else None

    def read(self, channels: int) -> Any:
        """Read the image for ``Processor``: an array if it has at most that many channels, else a
        Pillow image.

        Raises:
            InputError: the file is damaged, or contains floats that are not between 0 and 1.
        """
        if isinstance(self.source, Path):
            return _decoded(self.source)
        if not isinstance(self.source, np.ndarray):
            return _upright(self.source, self.name)
        if self.channels <= channels:
            return self.source
        return _pillow().fromarray(self.source)


# An image and its label.
LabelledImage = tuple[ImageSource, Any]


def read_labelled_images(source: Any) -> list[LabelledImage]:
    """Read images with their labels, at least one.

    Args:
        source: a folder with a folder of images for each label; an IDX file of images with its
            labels file beside it, or a folder with one such pair; an .npz file with ``images`` and
            ``labels``; or the two arrays, or a list of images and their labels. Hidden files and
            tables (csv, tsv, JSON) in a folder are skipped.

    Raises:
        InputError: the source has another form.
    """
    if not isinstance(source, str | Path):
        return _of_arrays(source)
    path = Path(source)
    if path.is_dir():
        idx_file = _idx_in(path)
        return _of_idx(idx_file) if idx_file else list(_of_classes(path))
    if is_idx(path):
        return _of_idx(path)
    if path.suffix == ".npz":
        arrays = _of_npz(path)
        if "labels" not in arrays:
            raise InputError(
                "{path} has no array of labels, named {labels}", path, " or ".join(LABELS)
            )
        return _paired(arrays["images"], arrays["labels"], str(path))
    refuse_unreadable(path)
    raise InputError(
        "{path}: labelled images are a folder of class folders, an IDX file "
        "(train-images-idx3-ubyte.gz) or an .npz file with images and labels",
        path,
    )


def stream_images(source: Any) -> Iterator[ImageSource]:
    """Yield images without labels, at least one.

    Args:
        source: a folder, whose images at any depth are sorted by name; a file; an IDX or .npz file;
            an array; a list of files, Pillow images and arrays. Hidden files and tables in a folder
            are skipped.

    Raises:
        InputError: another file is not an image.
    """
    if not isinstance(source, str | Path):
        yield from _in_memory(source)
        return
    path = Path(source)
    if path.is_dir():
        idx_file = _idx_in(path)
        if idx_file:
            yield from images_of_array(read_idx(idx_file), str(idx_file))
            return
        files = _files_below(path)
        if not files:
            raise InputError("{path} contains no images", path)
        yield from map(_opened, files)
    elif is_idx(path):
        yield from images_of_array(read_idx(path), str(path))
    elif path.suffix == ".npz":
        yield from images_of_array(_of_npz(path)["images"], str(path))
    else:
        yield _opened(path)


def images_of_array(images: Any, source: str) -> list[ImageSource]:
    """The images in an array.

    Args:
        images: (images, height, width), optionally with channels as the last axis; bytes, or floats
            from 0 to 1, which are converted to bytes.
        source: origin of the array, for messages.

    Raises:
        InputError: the array has other values or another shape.
    """
    array = _as_bytes(images, Message("{source}: images", source) if source else "images")
    sources = []
    for number, one in enumerate(array, start=1):
        digest = hashlib.blake2b(one.tobytes(), digest_size=16).hexdigest()
        name = Message("picture {index}", number)
        name = Message("{source}, {name}", source, name) if source else name
        size = (one.shape[0], one.shape[1])
        sources.append(ImageSource(one, name, digest, size, 1 if one.ndim == 2 else 3))
    return sources


def first_of(given: Container[str], names: Sequence[str]) -> str | None:
    """The first of ``names`` that is among the given ones."""
    return next((name for name in names if name in given), None)


def is_image(source: Any) -> bool:
    """Whether the source is a single image: a Pillow image, or a file other than IDX and .npz."""
    if isinstance(source, Path):
        return not (is_idx(source) or source.suffix == ".npz")
    return hasattr(source, "mode") and hasattr(source, "getexif")


def _in_memory(images: Any) -> list[ImageSource]:
    """The images in an array, or in a list of files, Pillow images and arrays."""
    if not isinstance(images, list | tuple) or not any(
        isinstance(image, str | Path) or is_image(image) for image in images
    ):
        return images_of_array(images, "")
    return [_one_in_memory(image, number) for number, image in enumerate(images, start=1)]


def _one_in_memory(image: Any, number: int) -> ImageSource:
    if isinstance(image, str | Path):
        return _opened(Path(image))
    name = Message("picture {index}", number)
    if not is_image(image):
        (pixels,) = images_of_array(np.asarray(image)[None], "")
        return replace(pixels, name=name)
    try:
        digest = hashlib.blake2b(image.tobytes(), digest_size=16).hexdigest()
    except Exception as error:  # Pillow decodes pixels lazily
        raise InputError("{name} cannot be read: it is damaged or cut off", name) from error
    return ImageSource(image, name, digest, _size_upright(image), 1 if _is_grey(image.mode) else 3)


def _is_grey(mode: str) -> bool:
    return mode in ("1", "L", "LA") or is_deep(mode)


def _as_bytes(images: Any, what: str) -> np.ndarray:
    try:
        array = np.asarray(images)
    except ValueError:
        array = np.asarray(None)
    if array.dtype == object:
        raise InputError(
            "{what}: the images have different sizes, or are not arrays of numbers", what
        )
    if array.ndim == 4 and array.shape[-1] == 1:
        array = array[..., 0]
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[-1] != 3) or not array.size:
        raise InputError(
            "{what} have the shape {shape}; it must be (N, H, W) or (N, H, W, 3)", what, array.shape
        )
    array = checked_values(array, what)
    return array if array.dtype == np.uint8 else np.round(array * 255).astype(np.uint8)


def _of_arrays(source: Any) -> list[LabelledImage]:
    if not isinstance(source, tuple | list) or len(source) != 2:
        raise InputError(
            "labelled images in memory are images and their labels: (images, labels), or a table "
            "with both"
        )
    return _paired(source[0], np.asarray(source[1]), "")


def _paired(images: Any, labels: np.ndarray, source: str) -> list[LabelledImage]:
    sources = images_of_array(images, source) if source else _in_memory(images)
    where = f"{source}: " if source else ""
    if labels.ndim != 1 or len(labels) != len(sources):
        raise InputError(
            "{where}{count:,} images and labels of shape {shape}; every image needs one label",
            where,
            len(sources),
            labels.shape,
        )
    return list(zip(sources, labels.tolist(), strict=True))


def _of_idx(path: Path) -> list[LabelledImage]:
    images = read_idx(path)
    if images.ndim < 3:
        raise InputError("{path} has {ndim} dimensions; a file of images has 3", path, images.ndim)
    other = labels_beside(path)
    labels = read_idx(other)
    if labels.ndim != 1:
        raise InputError(
            "{value} has {ndim} dimensions; a file of labels has 1", other, labels.ndim
        )
    if len(labels) != len(images):
        raise InputError(
            "{path} has {count:,} images and {value} {count2:,} labels; they do not belong "
            "together",
            path,
            len(images),
            other,
            len(labels),
        )
    return _paired(images, labels, str(path))


def _idx_in(folder: Path) -> Path | None:
    """The IDX file of images in a folder, if any; ``InputError`` if there are several."""
    files = [path for path in sorted(folder.iterdir()) if is_idx_of_images(path)]
    # A plain file and its gzip are equivalent.
    kinds = {path.name.removesuffix(".gz"): path for path in files}
    if len(kinds) > 1:
        names = ", ".join(path.name for path in kinds.values())
        raise InputError(
            "{folder} contains several files of images; name one of them: {names}", folder, names
        )
    return files[0] if files else None


def _of_npz(path: Path) -> Mapping[str, np.ndarray]:
    """``images``, and ``labels`` if present."""
    arrays_by_role = {}
    with open_npz(path, "arrays of numbers are needed, images all of one size") as arrays:
        for kind, names in (("images", IMAGES), ("labels", LABELS)):
            name = first_of(arrays, names)
            if name is not None:
                arrays_by_role[kind] = arrays[name]
        names_present = ", ".join(arrays) or "none"
    if "images" not in arrays_by_role:
        raise InputError(
            "{path} has no array of images, named {images} ({names_present})",
            path,
            " or ".join(IMAGES),
            names_present,
        )
    return arrays_by_role


def _of_classes(folder: Path) -> Iterator[LabelledImage]:
    """Yield all images in the subfolders of ``folder``, with the subfolder's name as label."""
    paths = [path for path in sorted(folder.iterdir()) if _is_read(path)]
    classes = [path for path in paths if path.is_dir()]
    if not classes:
        raise InputError(
            "{folder} has no class folders: put the images of each class in a folder named "
            "after it",
            folder,
        )
    for path in paths:
        if path not in classes:
            raise InputError("{path} is in none of the class folders of {folder}", path, folder)
    for label in classes:
        files = _files_below(label)
        if not files:
            raise InputError("{label} is a class folder without images", label)
        for path in files:
            yield _opened(path), label.name


def _files_below(folder: Path) -> Sequence[Path]:
    """All files except tables, hidden files and files in hidden folders."""
    below = (path for path in folder.rglob("*") if path.is_file() and _is_read(path))
    return sorted(
        path
        for path in below
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _is_read(path: Path) -> bool:
    """Whether a path in a folder of images must be an image, or a folder of images."""
    name = path.name.lower().removesuffix(".gz")
    return not name.startswith(".") and (not name.endswith(_TABLES) or path.is_dir())


def _opened(path: Path) -> ImageSource:
    """Open a file without decoding its pixels."""
    image = _pillow()
    refuse_unreadable(path)
    data = path.read_bytes()
    try:
        with image.open(io.BytesIO(data)) as opened:
            size, mode = _size_upright(opened), opened.mode
    except image.DecompressionBombError:
        most = 2 * (image.MAX_IMAGE_PIXELS or 0)  # above this, Pillow raises an error
        raise InputError(
            "{path} has more than {most:,} pixels; make it smaller", path, most
        ) from None
    except Exception:  # Pillow's errors are of many kinds
        raise InputError("{path} is not an image that Pillow can read", path) from None
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    return ImageSource(path, str(path), digest, size, 1 if _is_grey(mode) else 3)


def _size_upright(opened: Any) -> tuple[int, int]:
    """(height, width) of the result of ``_decoded``."""
    # Pillow already rotates the size of TIFF files. PngImageFile.getexif would decode the pixels.
    orientation = (
        None if opened.format == "TIFF" else _pillow().Image.getexif(opened).get(_ORIENTATION)
    )
    size = opened.height, opened.width
    return size[::-1] if orientation in _QUARTER_TURNS else size


def _decoded(path: Path) -> Any:
    """The image of a file, rotated by its EXIF orientation."""
    image = _pillow()
    try:
        with image.open(path) as opened:
            return _upright(opened, str(path))
    except InputError:
        raise
    except Exception as error:
        reason = "it is damaged or cut off" if path.exists() else "it no longer exists"
        raise InputError("{path} cannot be read: {reason}", path, reason) from error


def _upright(image: Any, name: str) -> Any:
    """A Pillow image, rotated by its EXIF orientation."""
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(image)
    return (
        read_deep_grey(upright, Message("{name}: its pixels", name))
        if is_deep(upright.mode)
        else upright
    )


def _pillow() -> Any:
    with needing("images in files need Pillow: pip install 'ownbert[vision]'"):
        from PIL import Image
    return Image


_UBYTE = 0x08
# Such as train-images-idx3-ubyte.gz; some copies have a dot before idx.
_NAME = re.compile(r"[-.]idx(\d)(-ubyte)?(\.gz)?$")


def is_idx(path: Path) -> bool:
    """Whether a file is an IDX file, by its name."""
    return _NAME.search(path.name) is not None


def is_idx_of_images(path: Path) -> bool:
    """Whether a file is an IDX file with three dimensions or more, by its name."""
    match = _NAME.search(path.name)
    return match is not None and int(match[1]) >= 3


def read_idx(path: Path) -> np.ndarray:
    """Read the data of a file, uint8 with its dimensions.

    Raises:
        InputError: the file is not an IDX file, has a wrong length, or contains another type than
            bytes.
    """
    refuse_unreadable(path)
    data = path.read_bytes()
    if data[:2] == GZIP_MAGIC:
        try:
            data = gzip.decompress(data)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise InputError("{path}: the gzip data is damaged or cut short", path) from None
    if len(data) < 4 or data[:2] != b"\0\0" or not data[3]:
        raise InputError(
            "{path} is not an IDX file: it begins with {hex}, but must begin with 00 00",
            path,
            data[:4].hex(" ") or "nothing",
        )
    if data[2] != _UBYTE:
        raise InputError(
            "{path} contains numbers of type 0x{data:02x}; only 0x08 (bytes) is supported",
            path,
            data[2],
        )
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise InputError("{path} is cut off in its header", path)
    shape = tuple(np.frombuffer(data, ">u4", count=data[3], offset=4).tolist())
    expected, actual = int(np.prod(shape, dtype=object)), len(data) - start
    if actual != expected:
        wrong = "cut off" if actual < expected else "too long"
        raise InputError(
            "{path} is {wrong}: its header says {shape}, which is {expected:,} bytes, but "
            "{actual:,} follow",
            path,
            wrong,
            " x ".join(map(str, shape)),
            expected,
            actual,
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def labels_beside(path: Path) -> Path:
    """The file of labels that belongs to a file of images, by its name.

    For train-images-idx3-ubyte.gz this is train-labels-idx1-ubyte.gz, plain or gzip.

    Raises:
        InputError: there is no such file.
    """
    name = _NAME.sub(lambda m: m[0].replace(f"idx{m[1]}", "idx1"), path.name)
    name = name.replace("images", "labels")
    labels_path = path.with_name(name)
    plain = labels_path.with_name(name.removesuffix(".gz"))
    existing = [p for p in (labels_path, plain, plain.with_name(f"{plain.name}.gz")) if p.exists()]
    if not existing or existing[0] == path:
        raise InputError("{path} has no labels: {labels_path} is missing", path, labels_path)
    return existing[0]
