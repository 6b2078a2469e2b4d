"""Label Studio's JSON: tasks with predictions for import, and exports of choices.

The labelling interface needs ``<Text name="text" value="$text"/>`` and ``<Choices name="label"
toName="text">``; exports may have other names.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json, write_json
from ownbert.files.text_files import open_text
from ownbert.tables.memory import MemoryTable, table_of
from ownbert.tables.tables import Source, as_text

ENDING = ".json"
_LABEL = "label"


def write_tasks(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write texts to label as tasks, with the suggested label as a prediction.

    Args:
        path: file to write.
        rows: mappings with ``text``, ``suggested`` (a label or a list of labels), ``score`` and
            other values to show.
    """
    tasks = []
    for row in rows:
        labels = row["suggested"]
        value = {"choices": labels if isinstance(labels, list) else [labels]}
        choice = {"from_name": _LABEL, "to_name": "text", "type": "choices", "value": value}
        prediction = {"model_version": "ownbert", "score": row["score"], "result": [choice]}
        data = {key: row[key] for key in row if key != _LABEL}
        tasks.append({"data": data, "predictions": [prediction]})
    write_json(path, tasks)


def is_export(path: Source) -> bool:
    """Whether a file is a JSON list; other .json tables have one object per line."""
    if isinstance(path, MemoryTable) or Path(path).suffix.lower() != ENDING:
        return False
    first = next((line for _, line in open_text(Path(path)) if line.strip()), "")
    return first.lstrip().startswith("[")


def read_export(path: str | Path) -> MemoryTable:
    """Read the tasks of an export as a table: their data and the label, None without a label.

    The last annotation that was not cancelled counts; several choices become a list.

    Raises:
        InputError: the file is not an export.
    """
    rows = []
    for number, task in enumerate(read_json(path, list), start=1):
        where = f"{path}, task {number}"
        try:
            data, annotations = dict(task["data"]), list(task.get("annotations") or ())
            chosen = [_choices(each, where) for each in annotations if not each["was_cancelled"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InputError(
                "{where} is not a task of a Label Studio JSON export, with data and annotations",
                where,
            ) from None
        label = next((each for each in reversed(chosen) if each), [None])
        rows.append({**data, _LABEL: label[0] if len(label) == 1 else label})
    return table_of(rows, name=str(path))


def _choices(annotation: Mapping[str, Any], where: str) -> list[str]:
    """The choices of an annotation."""
    results = [each for each in annotation["result"] if each["type"] == "choices"]
    return [as_text(name, _LABEL, where) for each in results for name in each["value"]["choices"]]
