"""``load`` and ``save``: a model on disk is an ordinary Hugging Face folder.

Functions that need torch are imported on first use, because exported files run without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ownbert.checkpoint.description import FEATURES as FEATURES
from ownbert.checkpoint.description import Description as Description
from ownbert.checkpoint.description import architecture_of as architecture_of
from ownbert.checkpoint.description import describe as describe
from ownbert.checkpoint.description import load_tokenizer as load_tokenizer
from ownbert.checkpoint.description import require_tables as require_tables
from ownbert.checkpoint.description import vocabulary_fingerprint as vocabulary_fingerprint
from ownbert.checkpoint.model_files import CONFIG as CONFIG
from ownbert.checkpoint.model_files import require_float as require_float

if TYPE_CHECKING:
    from ownbert.checkpoint.copying import LoadReport as LoadReport
    from ownbert.checkpoint.copying import copy_weights as copy_weights
    from ownbert.checkpoint.copying import first_of as first_of
    from ownbert.checkpoint.copying import named_tensors as named_tensors
    from ownbert.checkpoint.saved_model import load as load
    from ownbert.checkpoint.saved_model import new_model as new_model
    from ownbert.checkpoint.saved_model import save as save

_MODULES = {
    **dict.fromkeys(("LoadReport", "copy_weights", "first_of", "named_tensors"), "copying"),
    **dict.fromkeys(("load", "new_model", "save"), "saved_model"),
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"ownbert.checkpoint.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'ownbert.checkpoint' has no attribute {name!r}")
