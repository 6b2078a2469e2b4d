"""Transformers' API: BertModel, BertFor..., BertConfig, BertTokenizer, ...

Change ``from transformers import`` to ``from ownbert import``. Model and configuration classes are
generated from ``families`` when their names are first used.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():  # a submodule, found by the import system
        raise AttributeError(name)
    from ownbert.hf.classes import class_named

    value = _tokenizer(name) or class_named(name)
    if value is None:
        raise AttributeError(f"module 'ownbert.hf' has no attribute {name!r}")
    return value


def _tokenizer(name: str) -> Any:
    from ownbert.hf.tokenizers import auto_tokenizer as auto
    from ownbert.hf.tokenizers import batch_encoding as encoding
    from ownbert.hf.tokenizers import wordpiece

    if name == "BatchEncoding":
        return encoding.BatchEncoding
    if not name.removesuffix("Fast").endswith("Tokenizer"):
        return None
    return getattr(auto, name, None) or getattr(wordpiece, name, None)
