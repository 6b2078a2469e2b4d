"""A linear model on a view, and the files of a linear model: JSON settings, safetensors arrays."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes

from ownbert.exceptions import InputError
from ownbert.files.json_files import read_json, write_json
from ownbert.files.writing import atomic_path, make_folder
from ownbert.views import LINEAR
from ownbert.views.linear_models import LinearModel
from ownbert.views.view_features import VIEWS, Texts, View

_FORMAT = 2  # version 1 used single characters for LSA and word vectors of Chinese


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
                    "{folder}.json was written by another version of ownbert", folder / LINEAR
                )
            if settings.get("beside"):
                view = cls.load(folder.resolve().parents[1] / name).view
            else:
                own = {k: v for k, v in arrays.items() if k.startswith("view.")}
                view = VIEWS[name].from_arrays({k.removeprefix("view."): own[k] for k in own})
            return cls(view, model, str(settings["kind"]))


def save_linear(
    folder: Path,
    name: str,
    model: LinearModel,
    arrays: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
) -> None:
    """Write a linear model and its features' parameters into a folder.

    Args:
        folder: folder to write.
        name: stem of both file names.
        model: linear model.
        arrays: arrays of the features.
        settings: settings of the features.
    """
    arrays = {**arrays, "weights": model.weights, "bias": model.bias}
    if model.prior is not None:
        arrays["prior"] = model.prior
    make_folder(folder)
    with atomic_path(folder / f"{name}.safetensors") as path:
        # Errors of safetensors.save_file do not distinguish a full disk from other problems.
        path.write_bytes(to_bytes({k: np.ascontiguousarray(v) for k, v in arrays.items()}))
    write_json(folder / f"{name}.json", {"format": _FORMAT, **settings, "link": model.link})


@contextmanager
def reading_linear(
    folder: Path, name: str
) -> Iterator[tuple[LinearModel, Mapping[str, np.ndarray], Mapping[str, Any]]]:
    """Yield the model, arrays and settings written by ``save_linear``.

    Raises:
        InputError: a file is missing, damaged, or of another version; or the block fails.
    """
    path = folder / f"{name}.safetensors"
    settings = read_json(folder / f"{name}.json")
    if settings.get("format") != _FORMAT:
        raise InputError("{folder}.json was written by another version of ownbert", folder / name)
    try:
        arrays = load_file(path)
        if not all(np.isfinite(v).all() for v in arrays.values()):
            raise ValueError("some numbers are not finite")
        yield LinearModel.from_arrays(arrays, settings["link"]), arrays, settings
    except InputError:
        raise
    except (OSError, LookupError, ValueError, TypeError, ArithmeticError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
