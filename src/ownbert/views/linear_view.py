"""A linear model on a view: fit, save, load, predict."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ownbert.exceptions import InputError
from ownbert.views.linear_files import LINEAR, reading_linear, save_linear
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
        arrays = {} if beside else {f"view.{k}": v for k, v in self.view.arrays().items()}
        settings = {"view": self.view.name, "kind": self.kind, "beside": beside}
        save_linear(folder, LINEAR, self.model, arrays, settings)

    @classmethod
    def load(cls, folder: Path) -> "LinearView":
        """Read a model written by ``save``.

        Raises:
            InputError: a file is missing, damaged, or of another version.
        """
        with reading_linear(folder, LINEAR) as (model, arrays, settings):
            name = settings.get("view")
            if name not in list(VIEWS):
                raise InputError(
                    f"{folder / LINEAR}.json was written by another version of ownbert"
                )
            if settings.get("beside"):
                view = cls.load(folder.resolve().parents[1] / name).view
            else:
                own = {k: v for k, v in arrays.items() if k.startswith("view.")}
                view = VIEWS[name].from_arrays({k.removeprefix("view."): own[k] for k in own})
            return cls(view, model, str(settings["kind"]))
