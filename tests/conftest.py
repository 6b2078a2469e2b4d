"""Fixtures of the whole test suite."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data that several checkouts share, in a folder beside the repository."""
    folder = Path(__file__).resolve().parents[1] / ".." / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the shared data folder (../shared/data), which is not here")
    return folder.resolve()
