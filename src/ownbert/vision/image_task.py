"""Image classification with a new or pretrained ViT (Dosovitskiy et al. 2021)."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.batches.example import Example
from ownbert.checkpoint.description import Description, describe, describe_config
from ownbert.config.variants import Image
from ownbert.exceptions import InputError
from ownbert.tables.memory import is_table, table_of
from ownbert.tables.tables import Source
from ownbert.tasks.classification import LabelDecision, SingleLabelTask
from ownbert.tasks.finetune_recipe import FinetuneModel, FinetuneRecipe, Vit
from ownbert.tasks.metrics import RANKING
from ownbert.tasks.row_network import RowNetwork
from ownbert.tasks.rows import Row, label_text
from ownbert.tasks.task import DEFAULT
from ownbert.vision.augmentation import Augmentation
from ownbert.vision.image_files import (
    IMAGES,
    LABELS,
    ImageSource,
    first_of,
    is_image,
    read_labelled_images,
    stream_images,
)
from ownbert.vision.image_input import (
    EncodedImages,
    ImageExamples,
    ImageInputBuilder,
    ImageRow,
)
from ownbert.vision.pixels import Processor

# Default number of labels per image, as in Transformers pipelines.
_BEST = 5
# Maximum side, in pixels, at which a new model keeps the images' own size.
_SIDE = 96
# A new model's maximum number of patches per side, and minimum side of a patch in pixels.
_GRID, _PATCH = 8, 2
# Number of training images for computing mean and standard deviation of the pixels.
_SAMPLED = 5000
# For new weights: peak learning rate and batch size.
_RATE, _BATCH = 1e-3, 64
_FEW, _EPOCHS_OF_FEW, _EPOCHS = 3000, 60, 20


class ImageTask(SingleLabelTask):
    """Softmax over the labels on the class token; rows contain an image and no text."""

    name = "image"
    purpose = "assigns one of its labels to each image"
    example_inputs = ("images", "test-images")
    example_row = '"image.png"'
    problem_type = "single_label_classification"
    metrics = ("accuracy", "macro_f1", "mcc", "f1", *RANKING)
    unit = "images"
    saved_attributes = ("positive", "decision")
    reads_arrays = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.processor: Processor | None = None
        if others := [name for name, value in vars(self.columns).items() if value is not None]:
            raise InputError(
                "a {others} column does not apply to image: images have none", others[0]
            )

    # Model and input.

    def describe_base(self, model: FinetuneModel) -> Description | None:
        if model.pretrain_steps:
            raise InputError("model.pretrain_steps does not apply to image: images have no words")
        for name in ("layer_gate", "attention_blur"):
            if getattr(model, name) is not None:
                raise InputError(
                    "model.{name} does not apply to image: it is for text models", name
                )
        if not model.folder:
            if model.from_scratch:
                raise InputError(
                    "model.from_scratch takes the size of a model; {--model} is needed"
                )
            return None
        if model.vit != Vit():
            raise InputError(
                "model.vit is for a new model, but {folder} has its own sizes; omit one of them",
                model.folder,
            )
        description = describe(model.folder)
        self.check_modality(description, model.folder)
        return description

    def check_modality(self, description: Description, folder: str | Path) -> None:
        if description.config.image is None:
            raise InputError(
                "{folder} reads texts, but image needs an image model; give the folder of a "
                "ViT, or none for a new one",
                folder,
            )

    def describe_new(self, recipe: FinetuneRecipe, rows: Sequence[Row]) -> Description:
        images, vit = list(map(_image, rows)), recipe.model.vit
        size, patch = choose_sizes(images, vit)
        channels = max(image.channels for image in images)
        image = Image(size=size, patch=patch, channels=channels)
        self.processor = fit_processor(images, image)
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
        self, description: Description, max_length: int | None = None
    ) -> ImageInputBuilder:
        folder, image = description.folder, description.config.image
        assert image is not None
        if self.processor is None:
            assert folder is not None
            self.processor = Processor.load(folder)
        return ImageInputBuilder(self.processor, image, folder or "the new model")

    def complete_recipe(self, recipe: FinetuneRecipe, builder: Any) -> FinetuneRecipe:
        if recipe.data.max_length is not None:
            raise InputError("data.max_length does not apply to image; see model.vit.image_size")
        if recipe.optim.adversarial:
            raise InputError("optim.adversarial does not apply to image: it perturbs word vectors")
        model = replace(recipe.model, dropout=recipe.model.dropout or 0.0)
        if not model.new:
            return replace(recipe, model=model)
        if not model.folder:
            vit = replace(model.vit, image_size=builder.image.size, patch=builder.image.patch)
            model = replace(model, vit=vit)
        few = self.train_size < _FEW
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

    def is_one_row(self, data: Any) -> bool:
        """Whether the data are one image: a file, a Pillow image or an array of two dimensions, or
        of three with the channels last."""
        if isinstance(data, str | os.PathLike):
            return not Path(data).is_dir() and is_image(Path(data))
        if isinstance(data, np.ndarray):
            return data.ndim == 2 or (data.ndim == 3 and data.shape[-1] in (1, 3))
        return is_image(data)

    def source(self, data: Any, *, name: str = "data", labelled: bool) -> Any:
        """Images, or images with labels, or a table with a column for each."""
        rows = isinstance(data, list) and data and isinstance(data[0], Mapping)
        if not (rows or is_table(data) or isinstance(data, Mapping)):
            return data
        image_table = table_of(data, name=name)
        columns = [first_of(image_table.names, names) for names in (IMAGES, LABELS)]
        needed = columns if labelled else columns[:1]
        if None in needed:
            what = "images and labels" if labelled else "images"
            raise InputError(
                "{name}: no columns of {what} among {names}; name them image and label",
                name,
                what,
                ", ".join(image_table.names),
            )
        cells = list(image_table.rows([column for column in needed if column is not None]))
        images = [row[0] for row in cells]
        return (images, [row[1] for row in cells]) if labelled else images

    def read(self, path: Any) -> list[Row]:
        """Read image files, or two arrays (images, labels); see ``vision.image_files``."""
        return [
            ImageRow(line, (image.digest,), label_text(label, image.name), image=image)
            for line, (image, label) in enumerate(read_labelled_images(path), start=1)
        ]

    def stream(self, path: Any) -> Iterator[Row]:
        """Stream image files, or an array of images; see ``vision.stream_images``."""
        for line, image in enumerate(stream_images(path), start=1):
            yield ImageRow(line, (image.digest,), image=image)

    def learn(self, rows: Sequence[Row], source: Source) -> None:
        super().learn(rows, source)
        self.train_size = len(rows)

    def encode(
        self, rows: Sequence[Row], builder: ImageInputBuilder, *, training: bool
    ) -> EncodedImages:
        examples = ImageExamples(list(map(_image, rows)), self.targets(rows), builder)
        if not training:
            return EncodedImages(examples)
        settings = self.settings
        augmentation = Augmentation(settings.flip, settings.shift, settings.crop)
        return EncodedImages(examples, augmentation=augmentation, seed=self.seed)

    def raw(
        self, logits: np.ndarray, examples: Sequence[Example], network: RowNetwork
    ) -> list[np.ndarray]:
        return list(self.probabilities(logits))

    def made_row(self, text: str) -> Any:
        return None

    def shown_texts(self, row: Row) -> Sequence[str]:
        return (_image(row).name,)

    def identity(self, row: Row) -> dict[str, Any]:
        path = _image(row).path
        return {} if path is None else {"file": str(path)}

    def answer(self, decided: LabelDecision, row: Row, top_k: int | None = DEFAULT) -> Any:
        return super().answer(decided, row, _BEST if top_k is DEFAULT else top_k)

    # Saving.

    def write(self, folder: Path, model: Any) -> None:
        assert self.processor is not None
        self.processor.save(folder)


def choose_sizes(
    images: Sequence[ImageSource], vit: Vit
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Choose (height, width) in pixels of a new model's input and of its patches.

    By default images of equal size keep it, up to 96 pixels per side and rounded up to whole
    patches; others are resized to squares of the median side, at most 96 pixels. There are at most
    eight patches per side, of at least two pixels each.
    """
    size: tuple[int, ...] | None = vit.image_size
    if size is None:
        sizes = np.asarray([image.size for image in images])
        first = (int(sizes[0, 0]), int(sizes[0, 1]))
        if (sizes == first).all() and max(first) <= _SIDE:
            size = first
        else:
            size = (min(_SIDE, round(float(np.median(sizes)))),) * 2
    patch = vit.patch or (max(_PATCH, math.ceil(max(size) / _GRID)),) * 2
    if vit.image_size is None:
        size = tuple(-(-side // part) * part for side, part in zip(size, patch, strict=True))
    return (size[0], size[1]), (patch[0], patch[1])


def fit_processor(images: Sequence[ImageSource], image: Image) -> Processor:
    """Create the processor of a new model from the mean and standard deviation of each channel.

    Both are computed on at most 5,000 training images, evenly spaced.
    """
    ones, zeros = (1.0,) * image.channels, (0.0,) * image.channels
    plain = Processor(image.size, zeros, ones, image.channels)
    builder = ImageInputBuilder(plain, image, "")
    chosen = np.linspace(0, len(images) - 1, min(len(images), _SAMPLED)).round().astype(int)
    sums, squares = np.zeros(image.channels), np.zeros(image.channels)
    for index in chosen:
        pixels = builder.pixels(images[index]).astype(np.float64)
        sums += pixels.mean((1, 2))
        squares += (pixels**2).mean((1, 2))
    mean = sums / len(chosen)
    # At least 0.01, because images of a single shade have no variance.
    std = np.sqrt(np.maximum(squares / len(chosen) - mean**2, 1e-4))
    mean, std = (tuple(float(round(x, 4)) for x in numbers) for numbers in (mean, std))
    return Processor(image.size, mean, std, image.channels)


def _image(row: Row) -> ImageSource:
    assert isinstance(row, ImageRow)
    return row.image
