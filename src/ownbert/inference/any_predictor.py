"""The predictor of a folder, whatever is in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ownbert.data.readers.columns import ColumnNames
from ownbert.hub import model_folder
from ownbert.inference.predictor import NetworkPredictor
from ownbert.run.file_names import BLEND

if TYPE_CHECKING:
    from ownbert.inference.blend_predictor import BlendPredictor


def open_predictor(
    folder: str | Path,
    *,
    columns: ColumnNames | None = None,
    device: str = "auto",
    precision: str = "float32",
    network: bool = False,
    engine: str | None = None,
) -> "NetworkPredictor | BlendPredictor":
    """The predictor of a folder: a blend, an ensemble or one network.

    Args:
        folder: of the model.
        columns, device, precision, engine: as of ``NetworkPredictor``.
        network: of a blend only the network that is its Hugging Face folder.

    Raises:
        InputError: the folder cannot be used.
    """
    given: dict[str, Any] = {"columns": columns, "device": device, "precision": precision}
    given["engine"] = engine
    folder = model_folder(folder)
    if (folder / BLEND).exists() and not network:
        from ownbert.inference.blend_predictor import BlendPredictor

        return BlendPredictor(folder, **given)
    return NetworkPredictor(folder, **given)
