"""The models of a server, which can be reloaded while it runs."""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ownbert.exceptions import InputError
from ownbert.serve.api.refusals import Refusal, bad_field
from ownbert.serve.served_model import ServedModel


class Models:
    """The models of a server by name; a model can be reloaded while the server runs.

    Args:
        models: at least one; a single model also serves requests that name none.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.name: model for model in models}
        self._exchange = threading.Lock()

    def __iter__(self) -> Any:
        return iter(self._models.values())

    def get(self, name: str | None) -> ServedModel:
        """The model with a name, or the only one.

        Raises:
            Refusal: unknown name, or no name although there are several models.
        """
        if name is None:
            if len(self._models) > 1:
                known = ", ".join(self._models)
                raise bad_field(f"there are several models; choose one of {known}", "model")
            return next(iter(self._models.values()))
        if name not in self._models:
            known = ", ".join(self._models)
            message = f"no model {name!r}; choose one of {known}"
            raise Refusal(404, message, "model_not_found", "model")
        return self._models[name]

    def reload(self, name: str | None) -> ServedModel:
        """Load a folder again and switch to it; if that fails, keep the old model.

        Raises:
            Refusal: the folder cannot be used, or another reload is in progress.
        """
        old = self.get(name)
        if not self._exchange.acquire(blocking=False):
            # Waiting requests would block threads and repeat the reload.
            raise Refusal(429, "a model is being loaded; try again later", "loading", retry_after=1)
        try:
            torch.set_num_threads(1)  # no second thread team besides the computing one
            new = old.reloaded()
            new.warm_up()
            self._models[old.name] = new
        except InputError as error:
            raise Refusal(409, f"{old.name} was not reloaded: {error}", "not_loaded") from None
        finally:
            self._exchange.release()
        return new
