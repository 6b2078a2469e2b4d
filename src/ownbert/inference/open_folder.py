"""The single entry point for using a folder of any kind."""

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
    folder: str | Path, compute: Compute = FLOAT32, *, columns: ColumnNames | None = None
) -> Opened:
    """Open a folder of ``finetune``, ``fit``, ``probe`` or ``export``: a blend, ensemble or
    network.

    Args:
        folder: model folder.
        compute: device, precision and engine.
        columns: columns named by the user; by default those used in training.

    Raises:
        NoTaskHead: the folder was not fine-tuned for a task.
        InputError: the folder cannot be used.
    """
    folder = model_folder(folder)
    blend, described = _describe_folders(folder, compute)
    compute = _resolve_compute(folder, compute, described)
    if blend is None:
        return Networks(folder, described[folder], compute, columns=columns)
    from ownbert.inference.opened_blend import OpenedBlend

    return OpenedBlend(folder, blend, compute, columns=columns, described=described)


def settled(
    folder: str | Path, compute: Compute, what: Collection[str] = (ANSWERS, VECTORS)
) -> Compute:
    """The settings for a folder that is opened elsewhere; see ``Compute.settled``.

    Raises:
        InputError: the folder cannot be used.
    """
    if compute.precision is not None:
        return compute
    folder = model_folder(folder)
    return _resolve_compute(folder, compute, _describe_folders(folder, compute)[1], what)


def blend_of(folder: Path) -> "Blend | None":
    """The blend of a ``fit`` folder; None for others.

    Raises:
        InputError: blend.json is damaged.
    """
    if not (folder / BLEND).exists():
        return None
    from ownbert.inference.blend import Blend

    return Blend.read(folder)


_Described = dict[Path, list[Description]]


def _describe_folders(folder: Path, compute: Compute) -> "tuple[Blend | None, _Described]":
    """The blend if it is used, and the networks of each folder involved."""
    blend = None if compute.network else blend_of(folder)
    if blend is None:
        return None, {folder: describe_members(folder)}
    networks = (member for member in blend.members if member.kind == "network")
    paths = [folder / path for member in networks for path in member.folders]
    return blend, {path: describe_members(path) for path in paths}


def _resolve_compute(
    folder: Path,
    compute: Compute,
    described: _Described,
    what: Collection[str] = (ANSWERS, VECTORS),
) -> Compute:
    networks = [each for several in described.values() for each in several]
    if compute.network:  # an ensemble has no network of its own
        networks = [each for each in networks if each.folder == folder]
    return compute.settled(networks, what)
