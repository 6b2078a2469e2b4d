"""The tokenizer classes of the families, and ``AutoTokenizer``, which chooses among them.

``...Tokenizer`` and ``...TokenizerFast`` of Transformers are one class here.
"""

import os
from typing import Any

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.hf.tokenizers.pretrained_tokenizer import PreTrainedTokenizerFast
from ownbert.hf.tokenizers.tokenizer_files import find_folder
from ownbert.text.folder.tokenizer_folder import TOKENIZER, TokenizerFolder, guess_style, kind_of
from ownbert.text.styles import BERT, CLASSES, MODEL_TYPES, ROBERTA

# Names of positional arguments, as in Transformers 4.57.6.
_ORDERS = {
    BERT.name: "vocab_file do_lower_case do_basic_tokenize never_split unk_token sep_token "
    "pad_token cls_token mask_token tokenize_chinese_chars strip_accents",
    ROBERTA.name: "vocab_file merges_file errors bos_token eos_token sep_token cls_token "
    "unk_token pad_token mask_token add_prefix_space",
    "albert": "vocab_file do_lower_case remove_space keep_accents bos_token eos_token unk_token "
    "sep_token pad_token cls_token mask_token",
    "t5": "vocab_file tokenizer_file eos_token unk_token pad_token extra_ids "
    "additional_special_tokens add_prefix_space",
    "deberta-v2": "vocab_file do_lower_case split_by_punct bos_token eos_token unk_token "
    "sep_token pad_token cls_token mask_token",
}
_ORDERS["xlnet"] = _ORDERS["albert"]
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
    if style.cls_last:
        body |= {"padding_side": "left", "pad_type": 3}
    return type(name, (PreTrainedTokenizerFast,), body)


BertTokenizer = BertTokenizerFast = _make("BertTokenizer")
RobertaTokenizer = RobertaTokenizerFast = _make("RobertaTokenizer")
XLMRobertaTokenizer = XLMRobertaTokenizerFast = _make("XLMRobertaTokenizer")
CamembertTokenizer = CamembertTokenizerFast = _make("CamembertTokenizer")
AlbertTokenizer = AlbertTokenizerFast = _make("AlbertTokenizer")
XLNetTokenizer = XLNetTokenizerFast = _make("XLNetTokenizer")
DebertaV2Tokenizer = DebertaV2TokenizerFast = _make("DebertaV2Tokenizer")
DistilBertTokenizer = DistilBertTokenizerFast = _make("DistilBertTokenizer")
ElectraTokenizer = ElectraTokenizerFast = _make("ElectraTokenizer")
MobileBertTokenizer = MobileBertTokenizerFast = _make("MobileBertTokenizer")
T5Tokenizer = T5TokenizerFast = _make("T5Tokenizer")
PreTrainedTokenizer = PreTrainedTokenizerFast


class AutoTokenizer:
    """``from_pretrained`` creates a tokenizer of the class named in a folder's files."""

    def __init__(self):
        raise InputError("use AutoTokenizer.from_pretrained(folder)")

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: "str | os.PathLike[str]", *args: Any, **kwargs: Any
    ) -> PreTrainedTokenizerFast:
        """Load the tokenizer of a folder.

        Args:
            pretrained_model_name_or_path: the folder, or the name of a model on the hub.
            args, kwargs: arguments of the class, which override tokenizer_config.json.
                ``tokenizer_type`` selects the class; by default it is determined by
                tokenizer_config.json (``tokenizer_class``), else by config.json, else by the names
                and contents of the files.

        Raises:
            InputError: there is no such folder, or no tokenizer in it.
        """
        name, kind = pretrained_model_name_or_path, kwargs.pop("tokenizer_type", None)
        if kind is not None:
            known(*MODEL_TYPES)("tokenizer_type", kind)
            return globals()[MODEL_TYPES[kind]].from_pretrained(name, *args, **kwargs)
        folder = find_folder(name, kwargs)
        chosen = _class_of(folder)
        tokenizer_class: type[PreTrainedTokenizerFast] = (
            globals()[chosen] if chosen else PreTrainedTokenizerFast
        )
        return tokenizer_class.from_folder(folder, *args, **{**kwargs, "name_or_path": str(name)})


def _class_of(folder: TokenizerFolder) -> str | None:
    """The name of the tokenizer class for a folder; None for the generic one."""
    stated = folder.config.get("tokenizer_class")
    known = isinstance(stated, str) and stated.removesuffix("Fast") in CLASSES
    has_backend = folder.has(TOKENIZER)
    if stated and not known and has_backend:
        return None
    class_name = folder.class_name
    if class_name or not has_backend:
        return class_name or folder.style().tokenizer_class
    backend = folder.backend()
    style = guess_style(backend)
    generic = kind_of(backend) == "blank" or (style is BERT and kind_of(backend) != "wordpiece")
    return None if generic else style.tokenizer_class
