"""A linear model on a view: fit, save, load, predict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.exceptions import InputError
from ownbert.views.linear_files import LINEAR, load_linear, save_linear
from ownbert.views.linear_models import LinearModel
from ownbert.views.view_features import VIEWS, Texts, View


@dataclass(frozen=True)
class LinearView:
    """Computes scores of texts."""

    view: View
    model: LinearModel
    kind: str

    def scores(self, texts: Sequence[tuple[str, ...]]) -> np.ndarray:
        """(N, C) log-probabilities, logits, or values of N texts or pairs of texts."""
        return self.model.scores(self.view.features(Texts(texts, self.kind)))

    def save(self, folder: Path, *, beside: bool = False) -> None:
        """Write the model into a folder.

        Args:
            folder: folder to write.
            beside: skip the view, which may be large; it is loaded from ``folder/../../NAME``,
                where NAME is the view's name.
        """
        view_arrays = {} if beside else self.view.arrays()
        settings = {"view": self.view.name, "kind": self.kind, "beside": beside}
        save_linear(
            folder, LINEAR, self.model, {f"view.{k}": v for k, v in view_arrays.items()}, settings
        )

    @classmethod
    def load(cls, folder: Path) -> "LinearView":
        """Read a model written by ``save``.

        Raises:
            InputError: a file is missing, damaged, or of another version.
        """

        def make(
            model: LinearModel, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]
        ) -> LinearView:
            name = settings.get("view")
            if name not in list(VIEWS):
                raise InputError(
                    f"{folder / LINEAR}.json was written by another version of ownbert"
                )
            if settings.get("beside"):
                view = cls.load(folder.resolve().parents[1] / name).view
                return cls(view, model, str(settings["kind"]))
            view_arrays = {
                k.removeprefix("view."): v for k, v in arrays.items() if k.startswith("view.")
            }
            return cls(VIEWS[name].from_arrays(view_arrays), model, str(settings["kind"]))

        return load_linear(folder, LINEAR, make)
