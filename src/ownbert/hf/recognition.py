"""Our objects pass the ``isinstance`` checks of Transformers, if that is imported.

``Trainer`` writes a config.json only for a ``PreTrainedModel`` of Transformers, and pads the rows
of a batch only for a ``PreTrainedTokenizerBase``.
"""

import sys
from functools import cache
from typing import Any


def recognized(ours: type, module: str, name: str) -> type:
    """What ``__class__`` of an object is: its class, or one that is also derived from theirs."""
    theirs = getattr(sys.modules.get(module), name, None)
    return ours if theirs is None else _derived(ours, theirs)


@cache
def _derived(ours: type, theirs: type) -> type:
    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)  # only named by objects: there are none of this class

    members = {"__new__": new, "__module__": ours.__module__, "__qualname__": ours.__qualname__}
    return type(ours.__name__, (ours, theirs), members)


def blank(kind: type) -> Any:
    """An object for ``pickle`` and ``copy`` to fill; they refuse one that names another class."""
    return object.__new__(kind)
