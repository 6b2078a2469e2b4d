"""``describe`` counts what Transformers counts, for every family and architecture."""

import json
from pathlib import Path

import pytest

from ownbert.inspect.describe import describe
from support.parity_models import BASES, MOSTLY_SLOW, their_model


@pytest.mark.parametrize(("model_type", "architecture"), MOSTLY_SLOW)
def test_as_many_parameters(model_type: str, architecture: str, tmp_path: Path):
    theirs = their_model(model_type, architecture)
    config = {**theirs.config.to_dict(), "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    overview = describe(tmp_path, tokens=5)
    assert overview.parameters == sum(p.numel() for p in theirs.parameters())
    if (model_type, architecture) in BASES:
        assert f"{overview.parameters:,}" in str(overview)
