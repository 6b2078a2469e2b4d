"""What config.json says of bfloat16: that a folder's answers or vectors agree in it.

The key names the checksums of the weights that were compared, so it says nothing of others: a
program that trains the folder further may carry the keys of config.json over.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint.description import Description, describe
from ownbert.checkpoint.model_files import AGREEMENT_KEY, CONFIG, weights_checksums
from ownbert.files import atomic_path, read_json

ANSWERS, VECTORS = "answers", "vectors"


def record_agreement(folder: Path, what: str) -> None:
    """Write into the config.json of a finished folder that it may be computed in bfloat16.

    Args:
        folder: of the model, whose weights are written.
        what: agrees with float32: ``ANSWERS`` or ``VECTORS``.
    """
    value = {"bfloat16": what, "weights": weights_checksums(folder)}
    values = {**read_json(folder / CONFIG), AGREEMENT_KEY: value}
    with atomic_path(folder / CONFIG) as path:
        path.write_bytes(json.dumps(values, ensure_ascii=False, indent=2).encode())


def claims(values: Mapping[str, Any], what: Collection[str] = (ANSWERS, VECTORS)) -> bool:
    """Whether a config.json says, if of other weights, that one of ``what`` agrees in bfloat16."""
    return (values.get(AGREEMENT_KEY) or {}).get("bfloat16") in what


def agrees(folder: Path | Description, what: Collection[str] = (ANSWERS, VECTORS)) -> bool:
    """Whether a folder says of its own weights that one of ``what`` agrees in bfloat16."""
    found = describe(folder, with_decoder=True)
    if not claims(found.values, what):
        return False
    assert found.folder is not None
    return found.values[AGREEMENT_KEY]["weights"] == weights_checksums(found.folder)


def without_agreement(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config.json for other weights."""
    return {key: value for key, value in values.items() if key != AGREEMENT_KEY}
