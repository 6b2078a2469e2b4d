"""Names of Transformers: ``BertModel``, ``BertForMaskedLM``, ``BertConfig``, ``BertTokenizer``, ...

Models are ``ownbert.nn.model.Model``, called as those of Transformers are (``models.py``).
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
        from ownbert.hf.models import named

        value = named(name)
    if value is None:
        raise AttributeError(f"module 'ownbert.hf' has no attribute {name!r}")
    return value
