"""Tokenizer families as data: files, special tokens and their positions in inputs, class names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


# The order in which Transformers lists special tokens, and adds missing ones to a vocabulary.
SPECIAL_NAMES = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
# Special tokens that every model trained here needs, in the order of ``Tokenizer.special_ids``.
NEEDED_NAMES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
WITH_TYPES = ("input_ids", "token_type_ids", "attention_mask")
WITHOUT_TYPES = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class Style:
    """A tokenizer family.

    Args:
        tokenizer_class: Transformers' class, without ``Fast``.
        files: names of the files that a tokenizer is built from if there is no tokenizer.json.
        special: special tokens by name (``pad_token`` and so on).
        settings: arguments of Transformers' constructor, with their defaults.
        double_sep: whether a pair has two separators between the texts, and token type 0 in both.
        additional: further special tokens.
        cls_last: whether the token ``start`` follows the last separator, with a separate token
            type, and padding is on the left.
        start: name of the special token before a text; None: no such token.
        end: name of the special token after each text.
        behind: names of special tokens that the files may lack; their ids follow those of the
            files.
    """

    name: str
    tokenizer_class: str
    files: Mapping[str, str]
    special: Mapping[str, str]
    settings: Mapping[str, Any]
    double_sep: bool = False
    additional: tuple[str, ...] = ()
    cls_last: bool = False
    start: str | None = "cls_token"
    end: str = "sep_token"
    behind: tuple[str, ...] = ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The names of the special tokens that a vocabulary must contain."""
        return tuple(dict.fromkeys(n for n in (*NEEDED_NAMES, self.end) if n in self.special))


_BRACKETS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_ANGLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
}
_ALBERT = {
    "bos_token": "[CLS]",
    "eos_token": "[SEP]",
    "unk_token": "<unk>",
    "sep_token": "[SEP]",
    "pad_token": "<pad>",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_PIECES = {"vocab_file": "sentencepiece.bpe.model"}

BERT = Style(
    "bert",
    "BertTokenizer",
    {"vocab_file": "vocab.txt"},
    _BRACKETS,
    {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True},
)
ROBERTA = Style(
    "roberta",
    "RobertaTokenizer",
    {"vocab_file": "vocab.json", "merges_file": "merges.txt"},
    _ANGLES,
    {"add_prefix_space": False, "trim_offsets": True},
    double_sep=True,
)
XLM_ROBERTA = Style("xlm-roberta", "XLMRobertaTokenizer", _PIECES, _ANGLES, {}, double_sep=True)
CAMEMBERT = Style(
    "camembert",
    "CamembertTokenizer",
    _PIECES,
    _ANGLES,
    {},
    double_sep=True,
    additional=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
)
ALBERT = Style(
    "albert",
    "AlbertTokenizer",
    {"vocab_file": "spiece.model"},
    _ALBERT,
    {"do_lower_case": True, "remove_space": True, "keep_accents": False},
)
# Sentinels of span corruption.
SENTINEL = "<extra_id_{}>"
T5 = Style(
    "t5",
    "T5Tokenizer",
    {"vocab_file": "spiece.model"},
    {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
    {"extra_ids": 100},
    additional=tuple(map(SENTINEL.format, range(100))),
    start=None,
    end="eos_token",
)
XLNET = Style(
    "xlnet",
    "XLNetTokenizer",
    {"vocab_file": "spiece.model"},
    {**_ANGLES, "sep_token": "<sep>", "cls_token": "<cls>"},
    {"do_lower_case": False, "remove_space": True, "keep_accents": False},
    additional=("<eop>", "<eod>"),
    cls_last=True,
)
DEBERTA = Style(
    "deberta-v2",
    "DebertaV2Tokenizer",
    {"vocab_file": "spm.model"},
    {"bos_token": "[CLS]", "eos_token": "[SEP]", **_BRACKETS},
    {"do_lower_case": False, "split_by_punct": False},
    behind=("mask_token",),
)
STYLES = (BERT, ROBERTA, ALBERT, T5, XLM_ROBERTA, CAMEMBERT, XLNET, DEBERTA)

# Style and model inputs by ``tokenizer_class`` of tokenizer_config.json.
CLASSES: dict[str, tuple[Style, tuple[str, ...]]] = {
    "BertTokenizer": (BERT, WITH_TYPES),
    "DistilBertTokenizer": (BERT, WITHOUT_TYPES),
    "ElectraTokenizer": (BERT, WITH_TYPES),
    "MobileBertTokenizer": (BERT, WITH_TYPES),
    "RobertaTokenizer": (ROBERTA, WITHOUT_TYPES),
    "XLMRobertaTokenizer": (XLM_ROBERTA, WITHOUT_TYPES),
    "CamembertTokenizer": (CAMEMBERT, WITHOUT_TYPES),
    "AlbertTokenizer": (ALBERT, WITH_TYPES),
    "DebertaV2Tokenizer": (DEBERTA, WITH_TYPES),
    "T5Tokenizer": (T5, WITHOUT_TYPES),
    "XLNetTokenizer": (XLNET, WITH_TYPES),
}
# Tokenizer classes by ``model_type`` of config.json.
MODEL_TYPES = {
    "bert": "BertTokenizer",
    "ernie": "BertTokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "roberta": "RobertaTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "xlm-roberta-xl": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "t5": "T5Tokenizer",
    "xlnet": "XLNetTokenizer",
}


def additional_tokens(style: Style, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The additional special tokens of a family; for T5, ``extra_ids`` sentinels."""
    if style is not T5:
        return style.additional
    count = settings.get("extra_ids")
    return tuple(map(SENTINEL.format, range(100 if count is None else int(count))))


def class_name(config: Mapping[str, object], model_config: Mapping[str, object]) -> str | None:
    """The tokenizer class, without ``Fast``, by the files of a folder; None if it is unknown."""
    for named in (config.get("tokenizer_class"), model_config.get("tokenizer_class")):
        if isinstance(named, str) and named.removesuffix("Fast") in CLASSES:
            return named.removesuffix("Fast")
    model_type = model_config.get("model_type")
    return MODEL_TYPES.get(model_type) if isinstance(model_type, str) else None


# Token type of XLNet's <cls>.
_CLS_SEGMENT = 2


@dataclass(frozen=True)
class InputFormat:
    """The special tokens of a family around a single text or a pair.

    - BERT: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
    - Without ``cls_id`` (T5): A </s> and A </s> B </s>; both texts have the same token type.
    - ``double_sep`` (RoBERTa): <s> A </s> </s> B </s>; both texts have the same token type.
    - ``cls_last`` (XLNet): A <sep> <cls> and A <sep> B <sep> <cls>; <cls> has its own token type.
    """

    cls_id: int | None
    sep_id: int
    double_sep: bool = False
    cls_last: bool = False

    def special(self, texts: int = 1) -> int:
        """The number of special tokens for one text or two."""
        return len(self._cls) + (1 if texts == 1 else 3 if self.double_sep else 2)

    @property
    def _cls(self) -> list[int]:
        return [] if self.cls_id is None else [self.cls_id]

    @property
    def before(self) -> int:
        """The number of special tokens before the first text."""
        return 0 if self.cls_last else len(self._cls)

    @property
    def behind(self) -> int:
        """The number of special tokens after the last text."""
        return 2 if self.cls_last else 1

    def template(self, *lengths: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """The sequence of one or two texts with these numbers of tokens: its ids, to be filled with
        those of the texts; its token types; the start of each text."""
        import numpy as np

        size = sum(lengths) + self.special(len(lengths))
        ids = np.full(size, self.sep_id, dtype=np.int64)
        types = np.zeros(size, dtype=np.int64)
        starts, at = [], self.before
        for length in lengths:
            starts.append(at)
            at += length + 1 + self.double_sep
        if len(lengths) > 1 and self.cls_id is not None and not self.double_sep:
            types[starts[1] :] = 1
        if self.cls_id is not None:
            ids[-1 if self.cls_last else 0] = self.cls_id
        if self.cls_last:
            types[-1] = _CLS_SEGMENT
        return ids, types, starts

    def one(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text with special tokens."""
        return self._filled(ids)[0]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of a pair of texts with special tokens, and their token types."""
        return self._filled(first, second)

    def _filled(self, *texts: Sequence[int]) -> tuple[list[int], list[int]]:
        ids, types, starts = self.template(*map(len, texts))
        for text, start in zip(texts, starts, strict=True):
            ids[start : start + len(text)] = text
        return ids.tolist(), types.tolist()

    def types(self, length: int) -> list[int]:
        """The token types of a single text; ``length`` includes special tokens."""
        if self.cls_last and length:
            return [0] * (length - 1) + [_CLS_SEGMENT]
        return [0] * length
