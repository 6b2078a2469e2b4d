"""blend.json: the models of a ``fit`` folder and their weights."""

from dataclasses import asdict, dataclass
from pathlib import Path

from ownbert.checks import list_of, number, object_, record, text
from ownbert.config.head_spec import MOST_LABELS
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json, write_json
from ownbert.run.file_names import BLEND
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.tasks.task import KEY, Task, restored_task

_FORMAT = 1
KINDS = ("network", "linear", "frozen")
# Fitted weights are at most 10.
_MOST_WEIGHT = 1e3
# Fitted offsets are log frequencies.
_MOST_OFFSET = 1e3
_FOLDERS = list_of(text, least=1, most=1000)
_MEMBER = {"name": text, "kind": text, "folders": _FOLDERS, "weight": number(0, _MOST_WEIGHT)}
_KEYS_OF_FILE = record(
    {
        "members": list_of(record(_MEMBER), most=1000),
        "labels": list_of(text, most=MOST_LABELS),
        "offsets": list_of(number(-_MOST_OFFSET, _MOST_OFFSET), most=MOST_LABELS),
        KEY: object_,
    }
)


@dataclass(frozen=True)
class BlendMember:
    """A model of a blend.

    Args:
        name: name of the model.
        kind: network, linear or frozen.
        folders: model folders relative to the blend's folder; their logits are averaged.
        weight: weight of the logits.
    """

    name: str
    kind: str
    folders: tuple[str, ...]
    weight: float


@dataclass(frozen=True)
class Blend:
    """Models whose weighted logits are added.

    Args:
        members: at least one model.
        task: the task that they predict.
        offsets: (C) offsets added to the logits, one per label or regression value.
    """

    members: tuple[BlendMember, ...]
    task: Task
    offsets: tuple[float, ...]

    def write(self, folder: Path) -> None:
        """Write the blend into a folder."""
        members = [asdict(member) for member in self.members]
        settings = {"format": _FORMAT, "labels": list(self.task.labels), "offsets": self.offsets}
        write_json(folder / BLEND, {**settings, **self.task.values(), "members": members})

    @classmethod
    def read(cls, folder: Path, columns: ColumnNames | None = None) -> "Blend":
        """Read the blend written by ``write``.

        Args:
            folder: the folder of the blend.
            columns: columns named by the user; by default those used in training.

        Raises:
            InputError: the file is damaged or of another version, or a model is missing.
        """
        path = folder / BLEND
        saved = read_json(path, check=_KEYS_OF_FILE)
        if saved.get("format") != _FORMAT:
            raise InputError(f"{path} was written by another version of ownbert")
        try:
            members = tuple(
                BlendMember(m["name"], m["kind"], tuple(m["folders"]), float(m["weight"]))
                for m in saved["members"]
            )
            labels, settings = tuple(saved["labels"]), saved[KEY]
            # Folders of earlier versions have no offsets.
            offsets = tuple(map(float, saved.get("offsets") or [0.0] * len(labels)))
        except KeyError as error:
            raise InputError(f"{path} is damaged: {error!r}") from None
        if not members or any(m.kind not in KINDS for m in members):
            raise InputError(f"{path} is damaged: its models must be of {', '.join(KINDS)}")
        if not labels or len(set(labels)) < len(labels):
            raise InputError(f"{path} is damaged: its labels must be distinct")
        if len(offsets) != len(labels):
            raise InputError(f"{path} is damaged: it needs one offset for each label")
        missing = [p for m in members for p in m.folders if not inside(folder, p, path).is_dir()]
        if missing:
            raise InputError(f"{folder / missing[0]}, which {path} names, does not exist")
        try:
            if (name := settings["name"]) not in TEXT_TASKS:
                raise InputError(f"a blend supports {', '.join(TEXT_TASKS)}, not {name!r}")
            task = restored_task(name, settings, labels, columns)
            if not all(isinstance(v, str | None) for v in vars(task.columns).values()):
                raise ValueError(f"the columns are {settings['columns']!r}")
            if not 0 <= getattr(task, "threshold", 0.5) <= 1:
                raise ValueError(f"the threshold is {settings['threshold']!r}")
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{path} is damaged: {KEY}: {error!r}") from None
        return cls(members, task, offsets)


def blend_of(folder: Path, columns: ColumnNames | None = None) -> Blend | None:
    """The blend of a ``fit`` folder; None for others.

    Raises:
        InputError: blend.json is damaged.
    """
    return Blend.read(folder, columns) if (folder / BLEND).exists() else None
