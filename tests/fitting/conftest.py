"""A folder of ``fit`` that several modules look at."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ownbert.finetuning import default_settings
from ownbert.fitting import findings
from support.fit_files import fit_files
from support.shared import made_once


@contextmanager
def few_steps(fewest: int = 32) -> Iterator[None]:
    """Networks of few rows are trained for a sixth of the usual steps, or for fewer, and what is
    said of scores is estimated from fewer samples: the tests are of what is made of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(default_settings, "_EPOCHS_OF_FEW", 3)
        patch.setattr(default_settings, "_FEWEST_STEPS", fewest)
        patch.setattr(findings, "_SAMPLES", 80)
        yield


@pytest.fixture(autouse=True)
def short_trainings() -> Iterator[None]:
    with few_steps():
        yield


@pytest.fixture(scope="session")
def fitted(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What fit makes of ``topics``, from the pretrained model; do not write into it."""

    def make(folder: Path) -> None:
        lines = (topics / "corpus.txt").read_text().splitlines(keepends=True)
        (folder / "unlabelled.txt").write_text("".join(lines[:60]))
        with few_steps(16):
            unlabelled = folder / "unlabelled.txt"
            fit_files(topics, pretrained, folder / "best", unlabelled=unlabelled)

    return made_once(tmp_path_factory, "fitted", make) / "best"
