"""Options of fine-tuning on pictures: those of their own, and what others mean there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ownbert.cli import task_options as own
from ownbert.cli.options import DATA, LEARNING, MODEL, RUN

Model = Annotated[
    Path | None,
    typer.Option(
        help="Folder of a ViT to start from.", show_default="a new one", rich_help_panel=MODEL
    ),
]
_SOURCES = (
    "a folder of class folders, an IDX file (train-images-idx3-ubyte.gz, with the labels beside "
    "it), or .npz with images and labels"
)
Train = Annotated[
    Path | None, typer.Option(help=f"Pictures to learn: {_SOURCES}.", rich_help_panel=DATA)
]
Dev = Annotated[
    Path | None,
    typer.Option(
        help="Pictures that tell when to stop, in the same way; without them all epochs are run.",
        rich_help_panel=DATA,
    ),
]
LabelsPerClass = Annotated[
    int | None,
    typer.Option(
        help="Learn from so many pictures of each label, drawn by --seed.",
        show_default="all",
        rich_help_panel=DATA,
    ),
]
ImageSize = Annotated[
    str | None,
    typer.Option(
        help="Of a new model: what pictures are resized to, in pixels, or height,width.",
        show_default="theirs, up to 96",
        rich_help_panel=MODEL,
    ),
]
Patch = Annotated[
    str | None,
    typer.Option(
        help="Of a new model: side of a patch in pixels, or height,width.",
        show_default="8 patches a side",
        rich_help_panel=MODEL,
    ),
]
HiddenSize = Annotated[
    int | None,
    typer.Option(help="Of a new model.", show_default="128", rich_help_panel=MODEL),
]
Layers = Annotated[
    int | None, typer.Option(help="Of a new model.", show_default="6", rich_help_panel=MODEL)
]
Heads = Annotated[
    int | None,
    typer.Option(help="Of a new model: attention heads.", show_default="4", rich_help_panel=MODEL),
]
Flip = Annotated[
    bool | None,
    typer.Option(
        "--flip",
        help="Mirror half of the training pictures, where left and right mean nothing.",
        rich_help_panel=LEARNING,
    ),
]
Shift = Annotated[
    float | None,
    typer.Option(
        help="Move training pictures by up to this share of their sides.",
        show_default="0.1",
        rich_help_panel=LEARNING,
    ),
]
Crop = Annotated[
    float | None,
    typer.Option(
        help="Cut out a part of each training picture, at least this share of its area.",
        show_default="1: all of it",
        rich_help_panel=LEARNING,
    ),
]
Dropout = Annotated[
    float | None,
    typer.Option(help="Dropout everywhere.", show_default="0", rich_help_panel=MODEL),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        help="Pictures a batch.",
        show_default="64 for a new model, else 16, or 32 from 3,000 pictures",
        rich_help_panel=DATA,
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        help="Times through the data.",
        show_default="60 for a new model, or 20 from 3,000 pictures; else 12, or 4",
        rich_help_panel=RUN,
    ),
]

# In the place of options of all tasks; those that are None are not there.
OPTIONS: Mapping[str, Any] = {
    "model": Model,
    "train": Train,
    "dev": Dev,
    "labels_per_class": LabelsPerClass,
    "image_size": ImageSize,
    "patch": Patch,
    "hidden_size": HiddenSize,
    "layers": Layers,
    "heads": Heads,
    "flip": Flip,
    "shift": Shift,
    "crop": Crop,
    "class_weights": own.ClassWeights,
    "label_smoothing": own.LabelSmoothing,
    "max_length": None,
    "batch_size": BatchSize,
    "dropout": Dropout,
    "pretrain_steps": None,
    "adversarial": None,
    "epochs": Epochs,
}
HELP = """One label a picture, by a ViT: a new one, or one from a folder.

A folder with a folder of pictures for each class (the extra vision reads them), IDX files as
MNIST's, or an .npz file with the arrays images and labels. Training pictures are shifted, and
with --flip mirrored, each time they are seen.

Example: ownbert finetune image --train pictures/train --dev pictures/dev -o runs/pictures
"""
