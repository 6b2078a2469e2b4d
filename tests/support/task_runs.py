"""What the tests of tasks share: short trainings, files of rows, and rows in any company."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ownbert import finetune
from ownbert.inference.open_folder import open_folder
from support.floats import assert_close


def tuned(task: str, files: Path, model: Path, output: Path, *overrides: str, **options: Any):
    """A model fine-tuned for an epoch on train.* and dev.* of a folder."""
    usual: dict[str, Any] = {"quiet": True, "epochs": 1, "overrides": overrides}
    for part in {"train", "dev"} - options.keys():
        usual[part] = next(files.glob(f"{part}.*"))
    return finetune(task, model=model, output=output, **(usual | options))


def read_jsonl(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def assert_same_in_any_company(folder: Path, data: Any) -> None:
    """The outputs of a row do not depend on the others; nothing is cut."""
    predictor = open_folder(folder)
    rows = data if isinstance(data, list) else predictor.task.read(data)
    together, _ = predictor.raws(rows)
    for row, raw in zip(rows, together, strict=True):
        (alone,), _ = predictor.raws([row])
        assert_close(np.asarray(raw), alone)
    assert predictor.cut == 0
