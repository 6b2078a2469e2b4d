"""The place of the campaign: made once for all of its tests."""

import pytest

from hostile.place import Place, make_place


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Tiny valid inputs of every command. Commands that succeed or fail must leave them as they
    are; folders of models are added when they are needed."""
    root = tmp_path_factory.mktemp("hostile") / "place"
    return make_place(root)
