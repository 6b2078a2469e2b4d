"""Errors on held-out rows are those that the final models, with more rows, are expected to have."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest

from ownbert.fitting.finished_folder import gains_of_all_rows
from support.fit_files import labelled

LABELS = ("red", "green", "blue", "grey")


def table(path: Path, rng: random.Random, rows: int) -> Path:
    """Rows with three of 60 words per label, so that more rows teach more words."""
    found = []
    for _ in range(rows):
        label = rng.choice(LABELS)
        words = [f"{label}{rng.randrange(60)}" for _ in range(3)]
        found.append((" ".join([*words, f"any{rng.randrange(20)}"]), label))
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *found])
    return path


@pytest.mark.parametrize("rows", [120, 1600])
def test_final_models_are_expected_to_err_less(tmp_path: Path, rows: int):
    path = table(tmp_path / "train.csv", random.Random(0), rows)
    found = labelled(path)
    gains = gains_of_all_rows(found)
    assert gains is not None
    assert gains.shape == (2, len(found.held_out))
    assert np.isfinite(gains).all()
    assert np.median(gains[0]) < 0


def test_with_a_dev_file_the_final_models_are_those_compared(tmp_path: Path):
    rng = random.Random(0)
    path, dev = (table(tmp_path / name, rng, 80) for name in ("train.csv", "dev.csv"))
    assert gains_of_all_rows(labelled(path, dev)) is None
