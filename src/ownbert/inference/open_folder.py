"""The single entry point for using a folder of any kind."""

from pathlib import Path

from ownbert.hub import model_folder
from ownbert.inference.blend import blend_of
from ownbert.inference.engines import FLOAT32, Compute
from ownbert.inference.opened import Networks, Opened, describe_members
from ownbert.nn.default_dtype import in_float32
from ownbert.tables.columns import ColumnNames


@in_float32
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
    blend = None if compute.network else blend_of(folder, columns)
    if blend is not None and blend.is_root:
        blend = None
    paths = [folder]
    if blend is not None:
        members = (member for member in blend.members if member.kind == "network")
        paths = [folder / path for member in members for path in member.folders]
    described = {path: describe_members(path) for path in paths}
    networks = [network for of_path in described.values() for network in of_path]
    if compute.network:  # an ensemble has no network of its own
        networks = [network for network in networks if network.folder == folder]
    compute = compute.settled(networks)
    if blend is None:
        return Networks(folder, described[folder], compute, columns=columns)
    from ownbert.inference.opened_blend import OpenedBlend

    return OpenedBlend(folder, blend, compute, described)
