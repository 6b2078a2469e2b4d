"""Names of Transformers: ``BertModel``, ``BertForMaskedLM``, ``BertConfig``, ``BertTokenizer``, ...

Models are ``ownbert.nn.model.Model``, called as those of Transformers are (``models.py``).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():  # a submodule, found by the import system
        raise AttributeError(name)
    if name == "BatchEncoding" or name.removesuffix("Fast").endswith("Tokenizer"):
        from ownbert.transformers.pretrained_tokenizer import TOKENIZERS
        from ownbert.transformers.tokenizer_call import BatchEncoding

        named = {"BatchEncoding": BatchEncoding, **TOKENIZERS}
        value = named.get(name.removesuffix("Fast"))
        if value is None:
            raise AttributeError(f"ownbert has no {name}; use transformers.AutoTokenizer")
    else:
        from ownbert.transformers.models import named

        value = named(name)
    if value is None:
        raise AttributeError(f"module 'ownbert.transformers' has no attribute {name!r}")
    return value
