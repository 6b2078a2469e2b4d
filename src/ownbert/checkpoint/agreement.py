"""Records in config.json that a folder's predictions or vectors agree in bfloat16 and float32.

The record includes the checksums of the compared weights, because a program that trains the folder
further may copy the keys of config.json.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ownbert.checkpoint.description import Description
from ownbert.checkpoint.model_files import AGREEMENT_KEY, CONFIG, weights_checksums
from ownbert.files.json_files import read_json
from ownbert.files.writing import atomic_path

ANSWERS, VECTORS = "answers", "vectors"


def record_agreement(folder: Path, what: str) -> None:
    """Record in the config.json of a finished folder that bfloat16 may be used.

    Args:
        what: outputs that agree with float32: ``ANSWERS`` or ``VECTORS``.
    """
    value = {"bfloat16": what, "weights": weights_checksums(folder)}
    values = {**read_json(folder / CONFIG), AGREEMENT_KEY: value}
    with atomic_path(folder / CONFIG) as path:
        path.write_bytes(json.dumps(values, ensure_ascii=False, indent=2).encode())


def claims(values: Mapping[str, Any], what: Collection[str] = (ANSWERS, VECTORS)) -> bool:
    """Whether a config.json records agreement of one of ``what``, possibly for other weights."""
    return (values.get(AGREEMENT_KEY) or {}).get("bfloat16") in what


def agrees(description: Description, what: Collection[str] = (ANSWERS, VECTORS)) -> bool:
    """Whether a model folder records agreement of one of ``what`` for its own weights."""
    if not claims(description.values, what):
        return False
    assert description.folder is not None
    return description.values[AGREEMENT_KEY]["weights"] == weights_checksums(description.folder)
