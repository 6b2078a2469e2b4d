"""Transformers' API: BertModel, BertFor..., BertConfig, BertTokenizer, ...

Change ``from transformers import`` to ``from ownbert import``. Model and configuration classes are
generated from ``families`` when their names are first used.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():  # a submodule, found by the import system
        raise AttributeError(name)
    if name == "BatchEncoding" or name.removesuffix("Fast").endswith("Tokenizer"):
        from ownbert.hf.tokenizers import auto_tokenizer, batch_encoding, wordpiece

        places = (vars(module) for module in (auto_tokenizer, wordpiece, batch_encoding))
        value = next((place[name] for place in places if name in place), None)
    else:
        from ownbert.hf.classes import class_named

        value = class_named(name)
    if value is None:
        raise AttributeError(f"module 'ownbert.hf' has no attribute {name!r}")
    return value
