"""The precision of ``predict``, ``evaluate`` and ``embed`` where the user names none."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ownbert.checkpoint.agreement import ANSWERS, VECTORS, agrees, claims
from ownbert.hub import model_folder
from ownbert.inference.engines import TORCH
from ownbert.inference.predictor import list_members
from ownbert.run.file_names import BLEND
from ownbert.train.device import pick_device, pick_precision

if TYPE_CHECKING:
    from ownbert.inference.blend import Blend

_NOTE = "bfloat16, as the model card allows; --precision float32 gives the last digits"


class ChosenPrecision(NamedTuple):
    """A precision by its name, and a note for the user if it is not the one to be expected."""

    name: str
    note: str = ""


def default_precision(
    named: str | None,
    folder: str | Path,
    *,
    device: str = "auto",
    engine: str | None = None,
    network: bool = False,
    blend: "Blend | None" = None,
    what: Collection[str] = (ANSWERS, VECTORS),
) -> ChosenPrecision:
    """The precision that a folder is used in.

    Where none is named, that is bfloat16 on a CPU that multiplies it natively, if the folder, or
    each of the networks whose answers are put together, says that it agrees with float32; else
    float32.

    Args:
        named: float32, bfloat16, auto or None.
        folder: of the model, an ensemble or a blend.
        device, engine: that compute.
        network: only the network of the folder itself.
        blend: that of the folder, where it has been read already.
        what: must agree.

    Raises:
        InputError: the device is not known, or the folder cannot be used.
    """
    if named is not None:
        return ChosenPrecision(named)
    if engine in (None, TORCH):
        found = model_folder(folder)
        members = [found] if network else list(_networks(found, blend or blend_of(found)))
        # First what costs nothing: exported files are used without torch.
        if (
            members
            and all(claims(member, what) for member in members)
            and pick_device(device).type == "cpu"
            and pick_precision("auto", "cpu") == "bfloat16"
            and all(agrees(member, what) for member in members)
        ):
            return ChosenPrecision("bfloat16", f"note: {_NOTE}")
    return ChosenPrecision("float32")


def blend_of(folder: Path) -> "Blend | None":
    """The blend of a folder of ``fit``; None for others.

    Raises:
        InputError: its file is damaged.
    """
    if not (folder / BLEND).exists():
        return None
    from ownbert.inference.blend import Blend

    return Blend.read(folder)


def _networks(folder: Path, blend: "Blend | None") -> Iterator[Path]:
    """The folders of the networks that answer together."""
    if blend is None:
        yield from list_members(folder)
        return
    for member in blend.members:
        if member.kind == "network":
            for path in member.folders:
                yield from list_members(folder / path)
