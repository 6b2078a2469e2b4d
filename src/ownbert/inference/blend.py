"""blend.json: which models a folder of ``ownbert fit`` has, and the weight of each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ownbert.data.readers.columns import ColumnNames
from ownbert.errors import InputError
from ownbert.files import read_json, write_json
from ownbert.run.run_folder import BLEND
from ownbert.tasks.recipe import TaskSettings
from ownbert.tasks.task import KEY, Task, task_class

_FORMAT = 1
KINDS = ("network", "linear", "frozen")


@dataclass(frozen=True)
class BlendMember:
    """A model of a blend.

    Args:
        name: of the model.
        kind: network, linear or frozen.
        folders: relative to that of the blend; the scores of several are averaged.
        weight: of its scores.
    """

    name: str
    kind: str
    folders: tuple[str, ...]
    weight: float


@dataclass(frozen=True)
class Blend:
    """The models whose scores are added.

    Args:
        members: at least one.
        labels: those of the task.
        values: what the task saves of itself, as in config.json.
    """

    members: tuple[BlendMember, ...]
    labels: tuple[str, ...]
    values: Mapping[str, Any]

    def task(self, columns: ColumnNames | None = None) -> Task:
        """The task that the rows are answered for. columns: named by the user."""
        saved = self.values[KEY]
        name = saved["name"]
        named = {k: v for k, v in vars(columns or ColumnNames()).items() if v is not None}
        task = task_class(name)(
            TaskSettings.of(name, saved.get("settings") or {}),
            ColumnNames(**{**(saved.get("columns") or {}), **named}),
            self.labels,
        )
        task.restore(saved)
        return task

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        members = [asdict(member) for member in self.members]
        about = {"format": _FORMAT, "labels": list(self.labels), **self.values}
        write_json(folder / BLEND, {**about, "members": members})

    @classmethod
    def read(cls, folder: Path) -> "Blend":
        """Read what ``write`` wrote.

        Raises:
            InputError: the file is damaged or of another version, or a model is missing.
        """
        path = folder / BLEND
        found = read_json(path)
        if found.get("format") != _FORMAT:
            raise InputError(f"{path} is not of this version of ownbert")
        try:
            members = tuple(
                BlendMember(
                    str(m["name"]),
                    str(m["kind"]),
                    tuple(map(str, m["folders"])),
                    float(m["weight"]),
                )
                for m in found["members"]
            )
            labels = tuple(map(str, found["labels"]))
            values = {KEY: dict(found[KEY])}
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path} is damaged: {error!r}") from None
        if not members or any(m.kind not in KINDS for m in members):
            raise InputError(f"{path} is damaged: its models must be of {', '.join(KINDS)}")
        missing = [p for m in members for p in m.folders if not _inside(folder, p).is_dir()]
        if missing:
            raise InputError(f"{folder / missing[0]}, which {path} names, does not exist")
        return cls(members, labels, values)


def _inside(folder: Path, path: str) -> Path:
    """A folder below that of the blend; a foreign file cannot name others."""
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise InputError(f"{folder / BLEND} names {path!r}, which is not below its folder")
    return folder / path
