"""Makes objects of OwnBERT pass ``isinstance`` checks of Transformers, if it is imported.

``Trainer`` only writes a config.json for a ``PreTrainedModel`` of Transformers, and only pads
batches for a ``PreTrainedTokenizerBase``.
"""

import sys
from functools import cache
from typing import Any


def recognized(ours: type, module: str, name: str) -> type:
    """The value of ``__class__``: the object's class, or one that also derives from
    Transformers'."""
    theirs = getattr(sys.modules.get(module), name, None)
    return ours if theirs is None else _derived(ours, theirs)


@cache
def _derived(ours: type, theirs: type) -> type:
    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)  # objects only claim this class

    members = {"__new__": new, "__module__": ours.__module__, "__qualname__": ours.__qualname__}
    return type(ours.__name__, (ours, theirs), members)


def blank(kind: type) -> Any:
    """An empty object for ``pickle`` and ``copy``, which reject one whose ``__class__`` differs."""
    return object.__new__(kind)
