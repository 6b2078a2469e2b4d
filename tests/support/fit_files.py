"""Files that tests of ``fit`` read and write."""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import ownbert
from ownbert.fitting.rows.labelled_rows import LabelledRows, find_task, read_labelled
from ownbert.tables.columns import ColumnNames


def labelled(
    train: Any, dev: Any = None, *, task: str | None = None, **options: Any
) -> LabelledRows:
    """The rows of files or tables as fit reads them, with their task."""
    return read_labelled(find_task(train, ColumnNames(), task), train, dev, seed=0, **options)


def write_table(columns: Mapping[str, Sequence[Any]], path: Path) -> Path:
    """A table as csv, tsv, jsonl or parquet, by the ending of its name."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(columns)), path)
        return path
    records = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        else:
            tabs = path.suffix == ".tsv"
            writer = csv.DictWriter(file, [*columns], delimiter="\t" if tabs else ",")
            writer.writeheader()
            writer.writerows(records)
    return path


def fit_files(folder: Path, model: Path, output: Path, **options: Any) -> ownbert.Predictor:
    """What fit makes of train.csv, dev.csv and test.csv, from one network of a model."""
    files = {name: folder / f"{name}.csv" for name in ("dev", "test")}
    given = {**files, "model": model, "seeds": 1, "minutes": 10, "output": output, "quiet": True}
    return ownbert.fit(folder / "train.csv", **{**given, **options})


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
