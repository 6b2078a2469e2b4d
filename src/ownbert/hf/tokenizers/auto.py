"""The tokenizer classes of the families, and ``AutoTokenizer``, which chooses among them.

Every ``...TokenizerFast`` of Transformers is the same class as ``...Tokenizer`` here.
"""

import os
from typing import Any

from ownbert.errors import InputError
from ownbert.files import read_json
from ownbert.hf.tokenizers.files import folder_of
from ownbert.hf.tokenizers.tokenizer import PreTrainedTokenizerFast
from ownbert.text.files import (
    CONFIG,
    MODEL_CONFIG,
    TOKENIZER,
    choose_style,
    guess_style,
    kind_of,
    read_backend,
)
from ownbert.text.styles import BERT, CLASSES, MODEL_TYPES, ROBERTA, class_name

# Arguments by position, as in 4.57.6.
_ORDERS = {
    BERT.name: "vocab_file do_lower_case do_basic_tokenize never_split unk_token sep_token "
    "pad_token cls_token mask_token tokenize_chinese_chars strip_accents",
    ROBERTA.name: "vocab_file merges_file errors bos_token eos_token sep_token cls_token "
    "unk_token pad_token mask_token add_prefix_space",
    "albert": "vocab_file do_lower_case remove_space keep_accents bos_token eos_token unk_token "
    "sep_token pad_token cls_token mask_token",
}
_PIECES_ORDER = "vocab_file bos_token eos_token sep_token cls_token unk_token pad_token mask_token"


def _make(name: str) -> type[PreTrainedTokenizerFast]:
    style, inputs = CLASSES[name]
    body = {
        "__doc__": f"{name} of Transformers 4.57.6; see ``PreTrainedTokenizerFast``.",
        "__module__": __name__,
        "style": style,
        "order": tuple(_ORDERS.get(style.name, _PIECES_ORDER).split()),
        "vocab_files_names": {**style.files, "tokenizer_file": TOKENIZER},
        "model_input_names": list(inputs),
    }
    return type(name, (PreTrainedTokenizerFast,), body)


BertTokenizer = BertTokenizerFast = _make("BertTokenizer")
RobertaTokenizer = RobertaTokenizerFast = _make("RobertaTokenizer")
XLMRobertaTokenizer = XLMRobertaTokenizerFast = _make("XLMRobertaTokenizer")
CamembertTokenizer = CamembertTokenizerFast = _make("CamembertTokenizer")
AlbertTokenizer = AlbertTokenizerFast = _make("AlbertTokenizer")
DistilBertTokenizer = DistilBertTokenizerFast = _make("DistilBertTokenizer")
ElectraTokenizer = ElectraTokenizerFast = _make("ElectraTokenizer")
MobileBertTokenizer = MobileBertTokenizerFast = _make("MobileBertTokenizer")
PreTrainedTokenizer = PreTrainedTokenizerFast


class AutoTokenizer:
    """``from_pretrained`` alone: the class that a folder's files ask for."""

    def __init__(self):
        raise InputError("AutoTokenizer.from_pretrained(folder) makes tokenizers")

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: "str | os.PathLike[str]", *args: Any, **kwargs: Any
    ) -> PreTrainedTokenizerFast:
        """The tokenizer of a folder; ``kwargs`` replace what its tokenizer_config.json says.

        The class is that of ``tokenizer_type``, else of tokenizer_config.json
        (``tokenizer_class``), else of config.json, else the one that the files fit. Raises
        ``InputError`` where there is no such folder, or no tokenizer in it.
        """
        kind = kwargs.pop("tokenizer_type", None)
        if kind is not None and kind not in MODEL_TYPES:
            raise InputError(f"tokenizer_type is {kind!r}; one of {', '.join(MODEL_TYPES)}")
        name = MODEL_TYPES[kind] if kind else _class_of(pretrained_model_name_or_path, kwargs)
        found: type[PreTrainedTokenizerFast] = globals()[name] if name else PreTrainedTokenizerFast
        return found.from_pretrained(pretrained_model_name_or_path, *args, **kwargs)


def _class_of(name: Any, kwargs: dict[str, Any]) -> str | None:
    """The name of the class for a folder; None for the general one."""
    folder = folder_of(name, kwargs.get("subfolder") or "")
    config, whole = read_json(folder / CONFIG, missing={}), folder / TOKENIZER
    stated = config.get("tokenizer_class")
    known = isinstance(stated, str) and stated.removesuffix("Fast") in CLASSES
    if stated and not known and whole.is_file():
        return None
    found = class_name(config, read_json(folder / MODEL_CONFIG, missing={}))
    if found or not whole.is_file():
        return found or choose_style(folder, None).tokenizer_class
    backend = read_backend(whole)
    style = guess_style(backend)
    general = kind_of(backend) == "blank" or (style is BERT and kind_of(backend) != "wordpiece")
    return None if general else style.tokenizer_class
