"""blend.json: the models of a ``fit`` folder and their weights."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ownbert.checkpoint.model_files import CONFIG
from ownbert.checks import list_of, maybe, number, object_, record, text, whole
from ownbert.config.head_spec import MOST_LABELS
from ownbert.exceptions import InputError
from ownbert.files.folders import inside
from ownbert.files.json_files import read_json, write_json
from ownbert.language.messages import Message
from ownbert.run.file_names import BLEND
from ownbert.tables.columns import ColumnNames
from ownbert.tasks.finetune_recipe import TEXT_TASKS
from ownbert.tasks.task import KEY, Task, restored_task

_FORMAT = 1
KINDS = ("network", "linear", "frozen")
# The folder of a member that is the network in the blend's own folder.
ROOT = "."
# Fitted weights are at most 10.
_MOST_WEIGHT = 1e3
# Fitted offsets are log frequencies.
_MOST_OFFSET = 1e3
_FOLDERS = list_of(text, least=1, most=1000)
_MEMBER = {"name": text, "kind": text, "folders": _FOLDERS, "weight": number(0, _MOST_WEIGHT)}
_COUNT = whole(0, 2**53)
_NETWORK = {
    "name": text,
    "rows": maybe(_COUNT),
    "same": maybe(_COUNT),
    "factor": number(0, _MOST_WEIGHT),
    "offsets": list_of(number(-_MOST_OFFSET, _MOST_OFFSET), most=MOST_LABELS),
}
_KEYS_OF_FILE = record(
    {
        "members": list_of(record(_MEMBER), most=1000),
        "labels": list_of(text, most=MOST_LABELS),
        "offsets": list_of(number(-_MOST_OFFSET, _MOST_OFFSET), most=MOST_LABELS),
        "network": maybe(record(_NETWORK, required=("name",))),
        KEY: object_,
    }
)


@dataclass(frozen=True)
class BlendMember:
    """A model of a blend.

    Args:
        kind: network, linear or frozen.
        folders: model folders relative to the blend's folder; their logits are averaged.
        weight: weight of the logits.
    """

    name: str
    kind: str
    folders: tuple[str, ...]
    weight: float


class OwnNetwork(NamedTuple):
    """The network in the folder of a blend, which Transformers loads.

    Args:
        rows: held-out rows that it was compared with the blend on; None if it was not.
        same: number of these rows for which both predict the same.
        factor: factor that its logits were multiplied by when it was saved.
        offsets: (C) offsets that were added to them.
    """

    name: str
    rows: int | None = None
    same: int | None = None
    factor: float = 1.0
    offsets: tuple[float, ...] = ()


@dataclass(frozen=True)
class Blend:
    """Models whose weighted logits are added.

    Args:
        members: at least one model.
        offsets: (C) offsets added to the logits, one per label or regression value.
        network: the network in the folder; None without one, and in folders of earlier versions.
        shifted: whether the offsets favour rare labels, as those of earlier versions do, so that
            probabilities are not calibrated.
    """

    members: tuple[BlendMember, ...]
    task: Task
    offsets: tuple[float, ...]
    network: OwnNetwork | None = None
    shifted: bool = False

    @property
    def is_network(self) -> bool:
        """Whether the network in the folder predicts alone."""
        if len(self.members) != 1 or len(self.members[0].folders) != 1:
            return False
        (member,) = self.members
        known = self.network is not None and self.network.name == member.name
        return known or member.folders == (ROOT,)

    @property
    def is_root(self) -> bool:
        """Whether the folder can be opened like that of a single network."""
        (member, *others) = self.members
        as_it_is = member.weight == 1 and not any(self.offsets)
        return not others and member.folders == (ROOT,) and as_it_is

    def write(self, folder: Path) -> None:
        """Write the blend into a folder."""
        members = [asdict(member) for member in self.members]
        settings = {"format": _FORMAT, "labels": list(self.task.labels), "offsets": self.offsets}
        network = {} if self.network is None else {"network": self.network._asdict()}
        values = {**settings, **network, **self.task.values(), "members": members}
        write_json(folder / BLEND, values)

    @classmethod
    def read(cls, folder: Path, columns: ColumnNames | None = None) -> "Blend":
        """Read the blend written by ``write``.

        Args:
            columns: columns named by the user; by default those used in training.

        Raises:
            InputError: the file is damaged or of another version, or a model is missing.
        """
        path = folder / BLEND
        saved = read_json(path, check=_KEYS_OF_FILE)
        if saved.get("format") != _FORMAT:
            raise InputError("{path} was written by another version of ownbert", path)
        try:
            members = tuple(
                BlendMember(m["name"], m["kind"], tuple(m["folders"]), float(m["weight"]))
                for m in saved["members"]
            )
            labels, settings = tuple(saved["labels"]), saved[KEY]
            # Folders of earlier versions have no offsets.
            offsets = tuple(map(float, saved.get("offsets") or [0.0] * len(labels)))
            network = saved.get("network")
        except KeyError as error:
            raise InputError("{path} is damaged: {error!r}", path, error) from None
        if not members or any(m.kind not in KINDS for m in members):
            raise InputError(
                "{path} is damaged: its models must be of {kinds}", path, ", ".join(KINDS)
            )
        if not labels or len(set(labels)) < len(labels):
            raise InputError("{path} is damaged: its labels must be distinct", path)
        if len(offsets) != len(labels):
            raise InputError("{path} is damaged: it needs one offset for each label", path)
        missing = [p for m in members for p in m.folders if not inside(folder, p, path).is_dir()]
        if missing:
            raise InputError(
                "{folder}, which {path} names, does not exist", folder / missing[0], path
            )
        try:
            if (name := settings["name"]) not in TEXT_TASKS:
                raise InputError(
                    "a blend supports {text_tasks}, not {name!r}", ", ".join(TEXT_TASKS), name
                )
            task = restored_task(name, settings, labels, columns)
            if not all(isinstance(v, str | None) for v in vars(task.columns).values()):
                raise ValueError(f"the columns are {settings['columns']!r}")
            if not 0 <= np.min(least := getattr(task, "threshold", 0.5)) <= np.max(least) <= 1:
                raise ValueError(f"the threshold is {settings['threshold']!r}")
        except InputError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError("{path} is damaged: {key}: {error!r}", path, KEY, error) from None
        own = None
        if network is not None:
            values = {name: network[name] for name in OwnNetwork._fields if name in network}
            values["offsets"] = tuple(map(float, values.get("offsets", ())))
            own = OwnNetwork(**values)
        # Since probabilities are calibrated, the decision of a single label is saved, also None.
        shifted = name == "classify" and "decision" not in settings and any(offsets)
        return cls(members, task, offsets, own, shifted)


def blend_of(folder: Path, columns: ColumnNames | None = None) -> Blend | None:
    """The blend of a ``fit`` folder; None for others."""
    return Blend.read(folder, columns) if (folder / BLEND).exists() else None


def network_note(folder: Path) -> str | None:
    """A note for uses of the network in a ``fit`` folder if other models predict: how often both
    agreed; None for other folders, also those without a network."""
    if not (folder / CONFIG).is_file() or (blend := blend_of(folder)) is None or blend.is_network:
        return None
    note = Message(
        "{folder} predicts with other models than the network in its folder, and only this "
        "network is used here",
        folder.name,
    )
    if blend.network is None or not blend.network.rows:
        return note
    same = "; both gave the same prediction for {same:,} of {rows:,} held-out rows"
    return note + Message(same, blend.network.same, blend.network.rows)
