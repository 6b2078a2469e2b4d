"""Files that tests of ``fit`` read and write."""

import csv
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ownbert.fitting.rows.labelled_rows import LabelledRows, find_task, read_labelled
from ownbert.tables.columns import ColumnNames


def labelled(
    train: Any, dev: Any = None, *, task: str | None = None, **options: Any
) -> LabelledRows:
    """The rows of files or tables as fit reads them, with their task."""
    return read_labelled(find_task(train, ColumnNames(), task), train, dev, seed=0, **options)


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Iterable[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def json_of(folder: Path, name: str = "report.json") -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def texts_of(path: Path) -> list[str]:
    with open(path, newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def sentence_model(pretrained: Path, folder: Path) -> Path:
    """A copy whose text vectors are means."""
    shutil.copytree(pretrained, folder)
    modules = [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder
