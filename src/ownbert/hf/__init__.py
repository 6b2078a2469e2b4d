"""Transformers' API: BertModel, BertFor..., BertConfig, BertTokenizer, ...

Change ``from transformers import`` into ``from ownbert import``. Classes of models and
configurations are made from ``families`` when their names are first used.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():  # a module of this package, which import finds by itself
        raise AttributeError(name)
    found = _tokenizer(name) or _model(name)
    if found is None:
        raise AttributeError(f"module 'ownbert.hf' has no attribute {name!r}")
    return found


def _tokenizer(name: str) -> Any:
    from ownbert.hf.tokenizers import auto, encoding, wordpiece

    if name == "BatchEncoding":
        return encoding.BatchEncoding
    if not name.removesuffix("Fast").endswith("Tokenizer"):
        return None
    return getattr(auto, name, None) or getattr(wordpiece, name, None)


def _model(name: str) -> Any:
    from ownbert.families import all_families
    from ownbert.hf import marian, t5
    from ownbert.hf.classes import config_name, config_of, custom_model_of, model_of

    if name in (marian.MarianConfig.__name__, marian.MarianMTModel.__name__):
        return getattr(marian, name)
    if name in {model.__name__ for model in t5.CLASSES}:
        return getattr(t5, name)
    for family in all_families().values():
        if name in family.architectures:
            return model_of(name)
        config = config_name(family)
        if name == config:
            return config_of(family.model_type)
        if name == config.removesuffix("Config") + "PreTrainedModel":
            return custom_model_of(family.model_type)
    return None
