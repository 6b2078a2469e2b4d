"""The models of a server, one of which may be exchanged while it runs."""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ownbert.errors import InputError
from ownbert.serve.api.refusals import Refusal, bad_field
from ownbert.serve.served_model import ServedModel


class Models:
    """The models of a server by their names; one may be exchanged while it runs.

    Args:
        models: at least one; the first is the one for requests that name none, if it is alone.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self._models = {model.name: model for model in models}
        self._exchange = threading.Lock()

    def __iter__(self) -> Any:
        return iter(self._models.values())

    def __len__(self) -> int:
        return len(self._models)

    def get(self, name: str | None) -> ServedModel:
        """The model of a name, or the only one.

        Raises:
            Refusal: there is none, or there are several and none is named.
        """
        if name is None:
            if len(self._models) > 1:
                known = ", ".join(self._models)
                raise bad_field(f"there are several models; name one of {known}", "model")
            return next(iter(self._models.values()))
        if name not in self._models:
            known = ", ".join(self._models)
            raise Refusal(404, f"no model {name!r}; there is {known}", "model_not_found", "model")
        return self._models[name]

    def reload(self, name: str | None) -> ServedModel:
        """Load a folder anew and use it from then on; if that fails, the old one stays.

        Raises:
            Refusal: the folder cannot be used, or another one is being loaded.
        """
        old = self.get(name)
        if not self._exchange.acquire(blocking=False):
            # Those that wait would load it again and again, and take the threads of others.
            raise Refusal(429, "a model is being loaded; come back later", "loading", retry_after=1)
        try:
            torch.set_num_threads(1)  # of this thread: no second team beside that which computes
            new = old.reloaded()
            new.warm_up()
            self._models[old.name] = new
        except InputError as error:
            raise Refusal(409, f"{old.name} stays as it was: {error}", "not_loaded") from None
        finally:
            self._exchange.release()
        return new
