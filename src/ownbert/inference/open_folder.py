"""One way in: a folder of any kind is read once, and ready to answer rows."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from ownbert.checkpoint import Description
from ownbert.checkpoint.agreement import ANSWERS, VECTORS
from ownbert.hub import model_folder
from ownbert.inference.compute import FLOAT32, Compute
from ownbert.inference.opened import Networks, Opened, describe_members
from ownbert.run.file_names import BLEND
from ownbert.tables.columns import ColumnNames

if TYPE_CHECKING:
    from ownbert.inference.blend import Blend


def open_folder(
    folder: str | Path,
    compute: Compute = FLOAT32,
    *,
    columns: ColumnNames | None = None,
) -> Opened:
    """A folder of ``finetune``, ``fit``, ``probe`` or ``export``: a blend, an ensemble or one
    network.

    Args:
        folder: of the model.
        compute: what computes.
        columns: named by the user; others are as in training.

    Raises:
        NoTaskHead: it was not fine-tuned for a task.
        InputError: the folder cannot be used.
    """
    folder = model_folder(folder)
    blend, described = _described(folder, compute)
    compute = _settled(folder, compute, described)
    if blend is None:
        return Networks(folder, described[folder], compute, columns=columns)
    from ownbert.inference.opened_blend import OpenedBlend

    return OpenedBlend(folder, blend, compute, columns=columns, described=described)


def settled(
    folder: str | Path, compute: Compute, what: Collection[str] = (ANSWERS, VECTORS)
) -> Compute:
    """What computes a folder that is opened elsewhere, with the precision that it says; see
    ``Compute.settled``.

    Raises:
        InputError: the folder cannot be used.
    """
    if compute.precision is not None:
        return compute
    folder = model_folder(folder)
    return _settled(folder, compute, _described(folder, compute)[1], what)


def blend_of(folder: Path) -> "Blend | None":
    """The blend of a folder of ``fit``; None for others.

    Raises:
        InputError: its file is damaged.
    """
    if not (folder / BLEND).exists():
        return None
    from ownbert.inference.blend import Blend

    return Blend.read(folder)


_Described = dict[Path, list[Description]]


def _described(folder: Path, compute: Compute) -> "tuple[Blend | None, _Described]":
    """The blend that answers, if there is one, and the networks of each folder that does."""
    blend = None if compute.network else blend_of(folder)
    if blend is None:
        return None, {folder: describe_members(folder)}
    networks = (member for member in blend.members if member.kind == "network")
    paths = [folder / path for member in networks for path in member.folders]
    return blend, {path: describe_members(path) for path in paths}


def _settled(
    folder: Path,
    compute: Compute,
    described: _Described,
    what: Collection[str] = (ANSWERS, VECTORS),
) -> Compute:
    networks = [each for several in described.values() for each in several]
    if compute.network:  # of an ensemble none is that of the folder itself
        networks = [each for each in networks if each.folder == folder]
    return compute.settled(networks, what)
