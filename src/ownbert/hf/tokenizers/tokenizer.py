"""A tokenizer with the arguments and results of Transformers 4.57.6.

It behaves as the fast tokenizers there do; docs/tokenizers.md lists where it does not.
"""

import logging
import os
from typing import Any, ClassVar

from ownbert.errors import InputError
from ownbert.hf.tokenizers.backend import make_backend, prepared
from ownbert.hf.tokenizers.calls import Calls
from ownbert.hf.tokenizers.encoding import BatchEncoding
from ownbert.hf.tokenizers.options import SIDES, CallOptions
from ownbert.hf.tokenizers.padding import pad_batch
from ownbert.hf.tokenizers.special import ADDITIONAL, plain
from ownbert.hf.tokenizers.wordpiece import BasicTokenizer, WordpieceTokenizer
from ownbert.text.build import special_token
from ownbert.text.styles import BERT, SPECIAL_NAMES

log = logging.getLogger("ownbert.tokenizer")

VERY_LARGE = int(1e30)
CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


class PreTrainedTokenizerFast(Calls):
    """Any tokenizer; the classes of ``ownbert.hf.tokenizers.auto`` add a family's files and tokens.

    Arguments are those of 4.57.6, by name or in its order: the family's files or
    ``tokenizer_file`` or ``tokenizer_object``, the family's rules, special tokens,
    ``model_max_length``, ``padding_side``, ``truncation_side``, ``model_input_names``,
    ``clean_up_tokenization_spaces``, ``split_special_tokens``. Others are kept and saved.
    """

    # The names of arguments that are given by position.
    order: ClassVar[tuple[str, ...]] = ()
    vocab_files_names: ClassVar[dict[str, str]] = {"tokenizer_file": "tokenizer.json"}
    is_fast = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
        kwargs = {**(self.style.settings if self.style else {}), **self._named(args, kwargs)}
        self.deprecation_warnings: dict[str, bool] = {}
        self.name_or_path = str(kwargs.pop("name_or_path", ""))
        listed = kwargs.pop("added_tokens_decoder", None) or {}
        files = {name: kwargs.pop(name, None) for name in {*self.vocab_files_names, "vocab_file"}}
        self.vocab_file = files["vocab_file"]
        self._tokenizer, built = make_backend(self.style, files, kwargs)
        if built and self.style is BERT:
            kwargs.setdefault("clean_up_tokenization_spaces", True)
        self.init_kwargs = dict(kwargs)
        self._take_settings(kwargs)
        self._take_special(kwargs, built=built)
        prepared(self, [listed[index] for index in sorted(listed)], kwargs, built=built)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.order):
            names = ", ".join(self.order) or "none"
            raise InputError(f"{type(self).__name__}: by position there are {names}")
        given = dict(zip(self.order, args, strict=False))
        twice = [name for name in given if name in kwargs]
        if twice:
            raise InputError(f"{type(self).__name__}: {', '.join(twice)} is given twice")
        return {**given, **kwargs}

    def _take_settings(self, kwargs: dict[str, Any]) -> None:
        limit = kwargs.get("model_max_length", kwargs.get("max_len"))
        self.model_max_length: int = VERY_LARGE if limit is None else limit
        for name in ("padding_side", "truncation_side"):
            side = kwargs.get(name, getattr(self, name))
            if side not in SIDES:
                raise InputError(f"{name} is {side!r}; it is {' or '.join(SIDES)}")
            setattr(self, name, side)
        self.model_input_names = list(kwargs.get("model_input_names") or self.model_input_names)
        self.clean_up_tokenization_spaces = bool(kwargs.get("clean_up_tokenization_spaces", False))
        self.split_special_tokens = bool(kwargs.get("split_special_tokens", False))
        self.add_prefix_space = bool(kwargs.get("add_prefix_space", False))
        self.pad_token_type_id = int(kwargs.get("pad_token_type_id") or 0)

    def _take_special(self, kwargs: dict[str, Any], *, built: bool) -> None:
        style = self.style
        defaults = style.special if style else {}
        for name in SPECIAL_NAMES:
            value = kwargs.get(name, defaults.get(name))
            if isinstance(value, str) and style:
                value = special_token(style, name, value, built=built)
            self.set_special(name, value)
        more = kwargs.get(ADDITIONAL)
        if more is None:
            more = style.additional if style else ()
        self.additional_special_tokens = list(more)

    @property
    def do_lower_case(self) -> bool:
        """Whether text is lower-cased, for the families that can."""
        return bool(self.init_kwargs.get("do_lower_case"))

    @property
    def basic_tokenizer(self) -> BasicTokenizer:
        """BERT's first half, text to words."""
        if self.style is not BERT:
            raise AttributeError(f"{type(self).__name__} has no basic_tokenizer")
        names = ("do_lower_case", "never_split", "tokenize_chinese_chars", "strip_accents")
        given = {name: self.init_kwargs[name] for name in names if name in self.init_kwargs}
        return BasicTokenizer(**given)

    @property
    def wordpiece_tokenizer(self) -> WordpieceTokenizer:
        """BERT's second half, words to pieces."""
        if self.style is not BERT:
            raise AttributeError(f"{type(self).__name__} has no wordpiece_tokenizer")
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        return WordpieceTokenizer(vocabulary, self.unk_token or "[UNK]")

    # Ids and text.

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **_: Any,
    ) -> str:
        """The text of ids, a list or a tensor; see ``clean_up_tokenization``."""
        ids = plain(token_ids)
        ids = [ids] if isinstance(ids, int) else ids
        try:
            text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise InputError("decode needs one list of ids, whole numbers from 0") from error
        clean = clean_up_tokenization_spaces
        if clean is None:
            clean = self.clean_up_tokenization_spaces
        return self.clean_up_tokenization(text) if clean else text

    def batch_decode(self, sequences: Any, *args: Any, **kwargs: Any) -> list[str]:
        """``decode`` of every row."""
        return [self.decode(ids, *args, **kwargs) for ids in sequences]

    @staticmethod
    def clean_up_tokenization(out_string: str) -> str:
        """English text without the blanks before punctuation and short forms."""
        for apart, joined in CLEAN_UP:
            out_string = out_string.replace(apart, joined)
        return out_string

    def pad(
        self,
        encoded_inputs: Any,
        padding: Any = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        **options: Any,
    ) -> BatchEncoding:
        """Pad encodings: one, many in one mapping, or a list of mappings (a collate function).

        More options: ``padding_side``, ``return_attention_mask``, ``return_tensors``, ``verbose``.
        """
        named = {"padding": padding, "max_length": max_length, "truncation": False, **options}
        found = CallOptions.of((), {**named, "pad_to_multiple_of": pad_to_multiple_of})
        return pad_batch(self, encoded_inputs, found.resolved(self))

    # Files.

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: "str | os.PathLike[str]", *args: Any, **kwargs: Any
    ) -> Any:
        """The tokenizer of a folder; ``kwargs`` replace what its tokenizer_config.json says."""
        from ownbert.hf.tokenizers.files import from_folder

        return from_folder(cls, pretrained_model_name_or_path, args, kwargs)

    def save_pretrained(
        self,
        save_directory: "str | os.PathLike[str]",
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
        **_: Any,
    ) -> tuple[str, ...]:
        """Write the files that Transformers 4.57.6 and 5 load; their paths."""
        from ownbert.hf.tokenizers.files import save

        return save(self, save_directory, legacy_format, filename_prefix)

    def save_vocabulary(
        self, save_directory: "str | os.PathLike[str]", filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write the vocabulary alone; the paths of its files."""
        from ownbert.hf.tokenizers.files import save_vocabulary

        return save_vocabulary(self, save_directory, filename_prefix)

    def say_once(self, what: str) -> None:
        if not self.deprecation_warnings.get(what):
            self.deprecation_warnings[what] = True
            log.warning("%s", what)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, "
            f"vocab_size={self.vocab_size}, model_max_length={self.model_max_length}, "
            f"padding_side={self.padding_side!r}, truncation_side={self.truncation_side!r}, "
            f"special_tokens={self.special_tokens_map})"
        )
