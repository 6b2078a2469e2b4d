"""The former name of ``ownbert.transformers``: names imported from it say what to use instead."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(
        f"ownbert.hf is gone: BertModel, BertTokenizer etc. are in ownbert itself "
        f"(ownbert.{name if name[0].isupper() else 'BertModel'}); other classes are those of "
        "transformers, with ownbert.speed_up(model)"
    )
