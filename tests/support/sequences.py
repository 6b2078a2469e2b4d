"""Sequences of numbers, to be copied or sorted: what a Transformer learns in seconds."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ownbert.translation.translation_run import train_translation

Row = list[str]

# Small, without dropout and smoothing: these tasks have no noise.
SETTINGS: dict[str, Any] = {
    "kind": "blank",
    "model.N": 2,
    "d_model": 64,
    "d_ff": 128,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    "schedule": "wsd",
    "learning_rate": 3e-3,
    "warmup": 0.1,
    "decay": 0.5,
    "average": 1,
    "batch_tokens": 1024,
    "precision": "float32",
    "quiet": True,
}


def rows(count: int, *, seed: int, longest: int = 6) -> list[Row]:
    draw = random.Random(seed)
    return [
        [str(draw.randrange(10, 20)) for _ in range(draw.randint(2, longest))] for _ in range(count)
    ]


def copying(folder: Path, *, count: int, epochs: int) -> Path:
    """The folder of a model that learnt to copy so many rows."""
    pairs = files(folder, rows(count, seed=0), list, "train")
    train_translation(folder / "run", **SETTINGS, **pairs, epochs=epochs)
    return folder / "run"


def files(folder: Path, made: list[Row], answer: Callable[[Row], Row], name: str) -> dict[str, str]:
    """The two files of pairs, by the options that take them."""
    paths = {"source": folder / f"{name}.source", "target": folder / f"{name}.target"}
    paths["source"].write_text("".join(" ".join(row) + "\n" for row in made))
    paths["target"].write_text("".join(" ".join(answer(row)) + "\n" for row in made))
    return {option: str(path) for option, path in paths.items()}
