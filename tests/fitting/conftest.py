"""A folder of ``fit`` that several modules look at."""

from pathlib import Path

import pytest

import ownbert
from support.shared import made_once


@pytest.fixture(scope="session")
def fitted(topics: Path, pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What fit makes of ``topics``, from the pretrained model; do not write into it."""

    def make(folder: Path) -> None:
        lines = (topics / "corpus.txt").read_text().splitlines(keepends=True)
        (folder / "unlabelled.txt").write_text("".join(lines[:60]))
        ownbert.fit(
            topics / "train.csv",
            dev=topics / "dev.csv",
            unlabelled=folder / "unlabelled.txt",
            model=pretrained,
            test=topics / "test.csv",
            seeds=1,
            minutes=10,
            output=folder / "best",
            quiet=True,
        )

    return made_once(tmp_path_factory, "fitted", make) / "best"
