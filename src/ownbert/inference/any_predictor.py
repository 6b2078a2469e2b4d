"""The predictor of a folder, whatever is in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.data.readers.columns import ColumnNames
from ownbert.hub import model_folder
from ownbert.inference.default_precision import blend_of, default_precision
from ownbert.inference.predictor import NetworkPredictor
from ownbert.tasks.task import Task

if TYPE_CHECKING:
    from ownbert.inference.blend_predictor import BlendPredictor


def open_predictor(
    folder: str | Path,
    *,
    columns: ColumnNames | None = None,
    device: str = "auto",
    precision: str | None = "float32",
    network: bool = False,
    task: Task | None = None,
    engine: str | None = None,
) -> "NetworkPredictor | BlendPredictor":
    """The predictor of a folder: a blend, an ensemble or one network.

    Args:
        folder: of the model.
        columns, device, task, engine: as of ``NetworkPredictor``.
        precision: None: as the folder says (``default_precision``); ``notes`` has what was chosen.
        network: of a blend only the network that is its Hugging Face folder.

    Raises:
        InputError: the folder cannot be used.
    """
    folder = model_folder(folder)
    blend = None if network else blend_of(folder)
    chosen = default_precision(
        precision, folder, device=device, engine=engine, network=network, blend=blend
    )
    given: dict[str, Any] = {"columns": columns, "device": device, "precision": chosen.name}
    given["engine"] = engine
    if blend is None:
        found = NetworkPredictor(folder, task=task, **given)
    else:
        from ownbert.inference.blend_predictor import BlendPredictor

        found = BlendPredictor(folder, blend=blend, **given)
    found.precision_note = chosen.note
    return found
