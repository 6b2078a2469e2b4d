"""A linear model on a view: fitted, saved, loaded, asked for scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ownbert.errors import InputError
from ownbert.views.linear_files import LINEAR, load_linear, save_linear
from ownbert.views.linear_models import LinearModel
from ownbert.views.view_features import VIEWS, Texts, View


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

    def save(self, folder: Path, *, beside: bool = False) -> None:
        """Write it into a folder.

        Args:
            beside: the view, which may be large, is not written; ``folder/../../NAME`` has it, with
                another model. NAME: of the view.
        """
        own = {} if beside else self.view.arrays()
        settings = {"view": self.view.name, "kind": self.kind, "beside": beside}
        save_linear(folder, LINEAR, self.model, {f"view.{k}": v for k, v in own.items()}, settings)

    @classmethod
    def load(cls, folder: Path) -> "LinearView":
        """Read what ``save`` wrote.

        Raises:
            InputError: a file is missing, damaged, or of another version.
        """

        def make(
            model: LinearModel, arrays: Mapping[str, np.ndarray], settings: Mapping[str, Any]
        ) -> LinearView:
            name = settings.get("view")
            if name not in list(VIEWS):
                raise InputError(f"{folder / LINEAR}.json is not of this version of ownbert")
            if settings.get("beside"):
                view = cls.load(folder.resolve().parents[1] / name).view
                return cls(view, model, str(settings["kind"]))
            own = {k.removeprefix("view."): v for k, v in arrays.items() if k.startswith("view.")}
            return cls(VIEWS[name].from_arrays(own), model, str(settings["kind"]))

        return load_linear(folder, LINEAR, make)
