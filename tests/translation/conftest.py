"""A translation model that several modules look at."""

from pathlib import Path

import pytest

from support.sequences import copying
from support.shared import made_once


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half-learnt copying, whose answers are neither all right nor all alike; do not write into
    it."""

    def make(folder: Path) -> None:
        copying(folder, count=1000, epochs=4)

    return made_once(tmp_path_factory, "copying", make) / "run"
