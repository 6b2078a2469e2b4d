"""A linear model on a view: fitted, saved, loaded, asked for scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ownbert.errors import InputError
from ownbert.files import atomic_path, make_folder, read_json, write_json
from ownbert.views.features import VIEWS, Texts, View
from ownbert.views.linear import LinearModel

# What is in a folder of a linear model: settings, and arrays.
SETTINGS, ARRAYS = "linear.json", "linear.safetensors"
_FORMAT = 1


@dataclass(frozen=True)
class LinearView:
    """Scores from texts.

    Args:
        view: what makes features of a text.
        model: what makes scores of the features.
        kind: how texts are split into tokens.
    """

    view: View
    model: LinearModel
    kind: str

    def scores(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """(N, C): log-probabilities, logits, or numbers of N texts or pairs of texts."""
        return self.model.scores(self.view.features(Texts(texts, self.kind)))

    def save(self, folder: Path) -> None:
        """Write it into a folder."""
        arrays = {f"view.{name}": value for name, value in self.view.arrays().items()}
        arrays |= {"weights": self.model.weights, "bias": self.model.bias}
        make_folder(folder)
        with atomic_path(folder / ARRAYS) as path:
            save_file({k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)
        write_json(
            folder / SETTINGS,
            {"format": _FORMAT, "view": self.view.name, "kind": self.kind, "link": self.model.link},
        )

    @classmethod
    def load(cls, folder: Path) -> "LinearView":
        """Read what ``save`` wrote.

        Raises:
            InputError: a file is missing, damaged, or of another version.
        """
        settings = read_json(folder / SETTINGS)
        name = settings.get("view")
        if settings.get("format") != _FORMAT or name not in list(VIEWS):
            raise InputError(f"{folder / SETTINGS} is not of this version of ownbert")
        try:
            arrays = load_file(folder / ARRAYS)
            if not all(np.isfinite(v).all() for v in arrays.values()):
                raise ValueError("some numbers are not finite")
            own = {k.removeprefix("view."): v for k, v in arrays.items() if k.startswith("view.")}
            model = LinearModel.from_arrays(arrays, settings["link"])
            return cls(VIEWS[name].from_arrays(own), model, str(settings["kind"]))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise InputError(f"{folder / ARRAYS} cannot be read: {error}") from None
