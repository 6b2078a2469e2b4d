"""One label per picture, by a ViT (Dosovitskiy et al. 2021): a new one, or one from a folder."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ownbert.checkpoint.description import Description, describe, describe_config
from ownbert.config import EncoderConfig, Image
from ownbert.data.batch import Batch
from ownbert.data.images.augmentation import Augmentation
from ownbert.data.images.image_files import ImageSource, read_labelled_images, stream_images
from ownbert.data.images.pixels import Processor
from ownbert.errors import InputError
from ownbert.nn.model import Model
from ownbert.tasks.classification import SingleLabelTask
from ownbert.tasks.image_input import EncodedPictures, ImageInputBuilder, PictureRow, Views
from ownbert.tasks.recipe import FinetuneModel, FinetuneRecipe, Vit
from ownbert.tasks.rows import Row, label_text

# A new model reads pictures in their own size up to this side, in pixels; others are made smaller.
_SIDE = 96
# Of a new model, patches along the longer side at most, and the side of a patch at least.
_GRID, _PATCH = 8, 2
# So many training pictures tell the mean and the standard deviation.
_MEASURED = 5000
# For new weights: peak learning rate, batch, and how often few and many pictures are seen.
_RATE, _BATCH = 1e-3, 64
_FEW, _EPOCHS_OF_FEW, _EPOCHS = 3000, 60, 20


class ImageTask(SingleLabelTask):
    """Softmax over the labels, on the class token; rows hold a picture and no text."""

    name = "image"
    problem_type = "single_label_classification"
    measures = ("accuracy", "macro_f1", "mcc")
    uses = frozenset({"class_weights", "label_smoothing", "flip", "shift", "crop"})
    unit = "pictures"
    keeps = ()
    in_memory = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.processor: Processor | None = None
        if others := [name for name, value in vars(self.columns).items() if value is not None]:
            raise InputError(f"a {others[0]} column is of no use to image: pictures have none")

    # The model and what it reads.

    def origin(self, model: FinetuneModel) -> Description | None:
        if model.pretrain_steps:
            raise InputError("model.pretrain_steps is of no use to image: pictures have no words")
        if not model.folder:
            if model.from_scratch:
                raise InputError("model.from_scratch takes the size of a model; --model is needed")
            return None
        if model.vit != Vit():
            raise InputError(
                f"model.vit is for a new model, and {model.folder} has its own sizes; leave one out"
            )
        said = describe(model.folder)
        self.refuse_other_kind(said, model.folder)
        return said

    def refuse_other_kind(self, said: Description, folder: str | Path) -> None:
        if said.config.image is None:
            raise InputError(
                f"{folder} reads texts and image is about pictures; give the folder of a ViT, or "
                "none for a new one"
            )

    def designed(self, recipe: FinetuneRecipe, rows: Sequence[Row]) -> Description:
        pictures, vit = list(map(_picture, rows)), recipe.model.vit
        size, patch = sizes_for(pictures, vit)
        channels = max(picture.channels for picture in pictures)
        image = Image(size=size, patch=patch, channels=channels)
        self.processor = measured(pictures, image)
        values: dict[str, Any] = {
            "model_type": "vit",
            "architectures": ["ViTForImageClassification"],
            "hidden_size": vit.hidden_size,
            "num_hidden_layers": vit.layers,
            "num_attention_heads": vit.heads,
            "intermediate_size": 4 * vit.hidden_size,
            "initializer_range": round(vit.hidden_size**-0.5, 4),
            "image_size": image.size,
            "patch_size": image.patch,
            "num_channels": image.channels,
        }
        return describe_config(values, "model.vit")

    def input_builder(
        self, folder: str | Path, config: EncoderConfig, max_length: int | None = None
    ) -> ImageInputBuilder:
        if self.processor is None:
            self.processor = Processor.load(folder)
        assert config.image is not None
        return ImageInputBuilder(self.processor, config.image, folder or "the new model")

    def completed(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        if recipe.data.max_length is not None:
            raise InputError("data.max_length is of no use to image; see model.vit.image_size")
        if recipe.optim.adversarial:
            raise InputError("optim.adversarial is of no use to image: it moves word vectors")
        model = replace(recipe.model, dropout=recipe.model.dropout or 0.0)
        if not model.new:
            return replace(recipe, model=model)
        if not model.folder:
            vit = replace(model.vit, image_size=builder.image.size, patch=builder.image.patch)
            model = replace(model, vit=vit)
        few = self.seen < _FEW
        epochs = recipe.run.epochs or (_EPOCHS_OF_FEW if few else _EPOCHS)
        rate = recipe.optim.learning_rate or _RATE
        return replace(
            recipe,
            model=model,
            data=replace(recipe.data, batch_size=recipe.data.batch_size or _BATCH),
            run=replace(recipe.run, epochs=epochs),
            optim=replace(recipe.optim, learning_rate=rate),
        )

    # Reading.

    def read(self, path: Any) -> list[Row]:
        """``path`` may be two arrays, (images, labels); see ``data.images.image_files``."""
        return [
            PictureRow(line, (picture.digest,), label_text(label, picture.name), picture=picture)
            for line, (picture, label) in enumerate(read_labelled_images(path), start=1)
        ]

    def stream(self, path: Any) -> Iterator[Row]:
        """``path`` may be an array of pictures; see ``data.images.image_files``."""
        for line, picture in enumerate(stream_images(path), start=1):
            yield PictureRow(line, (picture.digest,), picture=picture)

    def learn(self, rows: Sequence[Row], source: str | Path) -> None:
        super().learn(rows, source)
        self.seen = len(rows)

    def encode(
        self, rows: Sequence[Row], builder: ImageInputBuilder, *, training: bool
    ) -> EncodedPictures:
        targets = [None if row.target is None else self.target(row) for row in rows]
        settings = self.settings
        augmentation = Augmentation(settings.flip, settings.shift, settings.crop)
        return EncodedPictures(
            Views(list(map(_picture, rows)), targets, builder),
            notes=[None] * len(rows),
            augmentation=augmentation if training else None,
            seed=self.seed,
        )

    def raw(self, logits: Tensor, batch: Batch, model: Model) -> list[np.ndarray]:
        return list(self.probabilities(logits.float()).cpu().numpy())

    def shown(self, decided: np.ndarray, row: Row) -> dict[str, Any]:
        path = _picture(row).path
        return {**({} if path is None else {"file": str(path)}), **super().shown(decided, row)}

    # On disk.

    def write(self, folder: Path, model: Any) -> None:
        assert self.processor is not None
        self.processor.save(folder)


def sizes_for(pictures: Sequence[ImageSource], vit: Vit) -> tuple[tuple[int, int], tuple[int, int]]:
    """(height, width) of what a new model reads and of its patches.

    By default pictures that are all of one size keep it, up to 96 pixels a side and rounded up to
    whole patches; others become squares of the median side, or of 96 pixels where that is larger.
    There are at most eight patches along a side, each of two pixels or more.
    """
    size: tuple[int, ...] | None = vit.image_size
    if size is None:
        sizes = np.asarray([picture.size for picture in pictures])
        first = (int(sizes[0, 0]), int(sizes[0, 1]))
        if (sizes == first).all() and max(first) <= _SIDE:
            size = first
        else:
            size = (min(_SIDE, round(float(np.median(sizes)))),) * 2
    patch = vit.patch or (max(_PATCH, math.ceil(max(size) / _GRID)),) * 2
    if vit.image_size is None:
        size = tuple(-(-side // part) * part for side, part in zip(size, patch, strict=True))
    return (size[0], size[1]), (patch[0], patch[1])


def measured(pictures: Sequence[ImageSource], image: Image) -> Processor:
    """The processor of a new model, with the mean and standard deviation of each channel of
    pictures, of 5,000 in equal steps where there are more."""
    ones, zeros = (1.0,) * image.channels, (0.0,) * image.channels
    plain = Processor(image.size, zeros, ones, image.channels)
    builder = ImageInputBuilder(plain, image, "")
    places = np.linspace(0, len(pictures) - 1, min(len(pictures), _MEASURED)).round().astype(int)
    sums, squares = np.zeros(image.channels), np.zeros(image.channels)
    for place in places:
        pixels = builder.pixels(pictures[place]).astype(np.float64)
        sums += pixels.mean((1, 2))
        squares += (pixels**2).mean((1, 2))
    mean = sums / len(places)
    # Pictures of one shade would be divided by nothing.
    std = np.sqrt(np.maximum(squares / len(places) - mean**2, 1e-4))
    mean, std = (tuple(float(round(x, 4)) for x in numbers) for numbers in (mean, std))
    return Processor(image.size, mean, std, image.channels)


def _picture(row: Row) -> ImageSource:
    assert isinstance(row, PictureRow)
    return row.picture
