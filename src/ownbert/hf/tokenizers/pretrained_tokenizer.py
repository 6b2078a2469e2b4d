"""A tokenizer with the arguments and results of Transformers 4.57.6.

It behaves like its fast tokenizers; docs/tokenizers.md lists the differences. The class is long
because that API is one class; everything longer than a few lines is in the other modules here.
"""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ownbert.checks import known
from ownbert.exceptions import InputError
from ownbert.hf.recognition import blank, recognized
from ownbert.hf.tokenizers import special, training
from ownbert.hf.tokenizers import tokenizer_files as files
from ownbert.hf.tokenizers.backend import apply_settings, make_backend
from ownbert.hf.tokenizers.batch_encoding import BatchEncoding, as_lists
from ownbert.hf.tokenizers.call_options import (
    LONE_SURROGATE,
    NOT_UNICODE,
    SIDES,
    CallOptions,
    batch_of,
    by_name,
    encode_texts,
    holds_ids,
)
from ownbert.hf.tokenizers.padding import Ids, pad_batch, truncate
from ownbert.hf.tokenizers.wordpiece import BasicTokenizer, WordpieceTokenizer
from ownbert.text.bert_rules import keep_whole
from ownbert.text.folder.tokenizer_config import ARGUMENTS
from ownbert.text.folder.tokenizer_folder import TOKENIZER, TokenizerFolder, kind_of, never_split_of
from ownbert.text.input_format import InputFormat
from ownbert.text.styles import BERT, ROBERTA, WITH_TYPES, Style
from ownbert.text.subword import with_prefix_space

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken

VERY_LARGE = int(1e30)
CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


def _is_vocabulary(name: "str | os.PathLike[str]") -> bool:
    return os.path.isfile(name) and not os.fspath(name).endswith(".json")


class PreTrainedTokenizerFast:
    """A tokenizer of any kind; the classes of ``auto_tokenizer`` add a family's files and tokens.

    Arguments are those of Transformers 4.57.6, by name or in its order: the family's files or
    ``tokenizer_file`` or ``tokenizer_object``, the family's rules, special tokens,
    ``model_max_length``, ``padding_side``, ``truncation_side``, ``model_input_names``,
    ``clean_up_tokenization_spaces``, ``split_special_tokens``. Others are kept and saved.

    Raises:
        InputError: a file is missing or damaged, or a value is invalid.
    """

    style: ClassVar[Style | None] = None
    # Names of positional arguments.
    order: ClassVar[tuple[str, ...]] = ()
    vocab_files_names: ClassVar[dict[str, str]] = {"tokenizer_file": TOKENIZER}
    SPECIAL_TOKENS_ATTRIBUTES = special.ATTRIBUTES
    is_fast = True
    model_input_names: Sequence[str] = WITH_TYPES
    padding_side: str = "right"
    # Default token type of padding.
    pad_type: ClassVar[int] = 0
    truncation_side: str = "right"

    bos_token, bos_token_id = special.token_and_id("bos_token")
    eos_token, eos_token_id = special.token_and_id("eos_token")
    unk_token, unk_token_id = special.token_and_id("unk_token")
    sep_token, sep_token_id = special.token_and_id("sep_token")
    pad_token, pad_token_id = special.token_and_id("pad_token")
    cls_token, cls_token_id = special.token_and_id("cls_token")
    mask_token, mask_token_id = special.token_and_id("mask_token")

    def __init__(self, *args: Any, **kwargs: Any):
        style = self.style
        given = by_name(type(self).__name__, self.order, args, kwargs)
        ARGUMENTS(type(self).__name__, given)
        settings = {**(style.settings if style else {}), **given}
        self.deprecation_warnings: dict[str, bool] = {}
        self.name_or_path = str(settings.pop("name_or_path", ""))
        added = settings.pop("added_tokens_decoder", None) or {}
        paths = {name: settings.pop(name, None) for name in {*self.vocab_files_names, "vocab_file"}}
        self.vocab_file = paths["vocab_file"]
        self._tokenizer, built = make_backend(style, paths, settings)
        # A copy with rules that cannot be saved, created when first needed.
        self._copy: tokenizers.Tokenizer | None = None
        if built and style is BERT:
            settings.setdefault("clean_up_tokenization_spaces", True)
        self.init_kwargs = settings
        limit = settings.get("model_max_length", settings.get("max_len"))
        self.model_max_length: int = VERY_LARGE if limit is None else limit
        for name in ("padding_side", "truncation_side"):
            side = settings.get(name, getattr(self, name))
            known(*SIDES)(name, side)
            setattr(self, name, side)
        self.model_input_names = list(settings.get("model_input_names") or self.model_input_names)
        self.clean_up_tokenization_spaces = bool(settings.get("clean_up_tokenization_spaces"))
        self.split_special_tokens = bool(settings.get("split_special_tokens"))
        self.add_prefix_space = bool(settings.get("add_prefix_space"))
        self.pad_token_type_id = int(settings.get("pad_token_type_id") or self.pad_type)
        self._special = special.initial_tokens(style, settings, built=built)
        in_order = [added[index] for index in sorted(added)]
        apply_settings(self._tokenizer, style, self._special, in_order, settings, built=built)

    def __getstate__(self) -> dict[str, Any]:
        # The copy may run Python code, which cannot be pickled, so it is created again.
        return {**self.__dict__, "_copy": None}

    def __reduce__(self) -> tuple:
        return blank, (type(self),), self.__getstate__()

    @property
    def __class__(self) -> type:  # pyright: ignore
        name = "PreTrainedTokenizerBase"
        return recognized(type(self), "transformers.tokenization_utils_base", name)

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, "
            f"vocab_size={self.vocab_size}, model_max_length={self.model_max_length}, "
            f"padding_side={self.padding_side!r}, truncation_side={self.truncation_side!r}, "
            f"special_tokens={self.special_tokens_map})"
        )

    # Files.

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: "str | os.PathLike[str]", *args: Any, **kwargs: Any
    ) -> Any:
        """Load the tokenizer of a folder, or of a vocabulary in a single file.

        Args:
            pretrained_model_name_or_path: the folder, the file, or the name of a model on the hub.
            args, kwargs: arguments of the class, which override tokenizer_config.json.

        Raises:
            InputError: there is no such folder, or no tokenizer of this class in it.
        """
        name = pretrained_model_name_or_path
        if cls.style and len(cls.style.files) == 1 and _is_vocabulary(name):
            changes = {k: v for k, v in kwargs.items() if k not in files.HUB_ARGUMENTS}
            return cls(name, *args, **changes)
        folder = files.find_folder(name, kwargs)
        return cls.from_folder(folder, *args, **{**kwargs, "name_or_path": str(name)})

    @classmethod
    def from_folder(cls, folder: TokenizerFolder, *args: Any, **kwargs: Any) -> Any:
        """Like ``from_pretrained``, for a folder whose files may have been read already."""
        changes = {k: v for k, v in kwargs.items() if k not in files.HUB_ARGUMENTS}
        own = cls.style.files if cls.style else {}
        return cls(*args, **files.read_arguments(folder, own, changes, cls.__name__))

    def save_pretrained(
        self,
        save_directory: "str | os.PathLike[str]",
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
        **_: Any,
    ) -> tuple[str, ...]:
        """Write files that Transformers 4.57.6 and 5 can load; return their paths.

        Args:
            save_directory: folder to write, created if necessary.
            legacy_format: True omits tokenizer.json, False omits the vocabulary's own files.
            filename_prefix: prefix of the file names, followed by a hyphen.
        """
        given = [name for name in files.SAVED_IF_GIVEN if name in self.init_kwargs]
        settings = self.init_kwargs | {n: getattr(self, n) for n in (*files.ALWAYS_SAVED, *given)}
        settings["tokenizer_class"] = type(self).__name__
        contents = files.folder_contents(
            self._tokenizer,
            settings,
            self.special_tokens_map_extended,
            files.vocabulary_contents(self._tokenizer, self.style, self.vocab_file),
            legacy_format,
        )
        return files.write_prefixed(save_directory, contents, filename_prefix)

    def save_vocabulary(
        self, save_directory: "str | os.PathLike[str]", filename_prefix: str | None = None
    ) -> tuple[str, ...]:
        """Write the vocabulary's own files; return their paths.

        Raises:
            InputError: the file of the SentencePiece model no longer exists.
        """
        contents = files.vocabulary_contents(self._tokenizer, self.style, self.vocab_file)
        if not contents:
            raise InputError(
                "the file of the SentencePiece model is missing; save_pretrained does not need it"
            )
        return files.write_prefixed(save_directory, contents, filename_prefix)

    # Vocabulary.

    @property
    def backend_tokenizer(self) -> "tokenizers.Tokenizer":
        return self._tokenizer

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary without added tokens, which ``len`` includes."""
        return self._tokenizer.get_vocab_size(with_added_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        """The id of each token, including added tokens."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    vocab = property(get_vocab)

    @property
    def ids_to_tokens(self) -> dict[int, str]:
        return dict(sorted((index, token) for token, index in self.get_vocab().items()))

    @property
    def added_tokens_decoder(self) -> "dict[int, AddedToken]":
        return self._tokenizer.get_added_tokens_decoder()

    def get_added_vocab(self) -> dict[str, int]:
        """The id of each added token, in ascending order."""
        added = self.added_tokens_decoder
        return {added[index].content: index for index in sorted(added)}

    added_tokens_encoder = property(get_added_vocab)

    def convert_tokens_to_ids(self, tokens: "str | Iterable[str] | None") -> Any:
        """The id of a token, or of each of several; unknown tokens have the id of ``unk_token``."""
        if tokens is None:
            return None
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        if LONE_SURROGATE.search(tokens):
            raise InputError(NOT_UNICODE)
        index = self._tokenizer.token_to_id(tokens)
        if index is not None or self.unk_token is None:
            return index
        return self._tokenizer.token_to_id(self.unk_token)

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id, or of each of several; None for an unknown id."""
        ids = as_lists(ids)
        if isinstance(ids, int):
            return self._tokenizer.id_to_token(ids) if ids >= 0 else None
        skip = set(self.all_special_ids) if skip_special_tokens else ()
        return [self.convert_ids_to_tokens(int(index)) for index in ids if int(index) not in skip]

    # Called by Transformers' collator for whole-word masking.
    _convert_id_to_token = convert_ids_to_tokens

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens that are never split; return how many are new to the vocabulary."""
        if not new_tokens:
            return 0
        tokens = list(new_tokens) if isinstance(new_tokens, list | tuple) else [new_tokens]
        if any(isinstance(each, str) and LONE_SURROGATE.search(each) for each in tokens):
            raise InputError(NOT_UNICODE)
        self._copy = None
        if special_tokens:
            return self._tokenizer.add_special_tokens(tokens)
        return self._tokenizer.add_tokens(tokens)

    def add_special_tokens(
        self, special_tokens_dict: Mapping[str, Any], replace_additional_special_tokens: bool = True
    ) -> int:
        """Set attributes such as ``mask_token`` and add their tokens; return how many are new.

        Args:
            special_tokens_dict: tokens by attribute name.
            replace_additional_special_tokens: whether additional tokens replace the existing ones.

        Raises:
            InputError: an attribute is unknown.
        """
        keep = not replace_additional_special_tokens
        new = special.update_special(self._special, special_tokens_dict, keep_additional=keep)
        return self.add_tokens(new, special_tokens=True)

    def train_new_from_iterator(
        self,
        text_iterator: Iterable[Any],
        vocab_size: int,
        length: int | None = None,
        new_special_tokens: "Sequence[str | AddedToken] | None" = None,
        special_tokens_map: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Train a tokenizer with the same rules on other texts.

        Args:
            text_iterator: texts, or batches of texts.
            vocab_size: size of the new vocabulary.
            length: number of texts, for the progress bar.
            new_special_tokens: further special tokens.
            special_tokens_map: new texts of special tokens, by their old texts.
            kwargs: options of the trainer of the ``tokenizers`` library.
        """
        names, new = special_tokens_map or {}, list(new_special_tokens or ())
        learnt = training.learnt_anew(
            self._tokenizer, text_iterator, vocab_size, length, new, names, kwargs
        )
        settings = {k: v for k, v in self.init_kwargs.items() if k != files.READ_BACKEND}
        for name, token in self._special.items():
            if name != special.ADDITIONAL:
                settings[name] = training.renamed(token, names)
        old = self._special.get(special.ADDITIONAL, [])
        settings[special.ADDITIONAL] = [training.renamed(token, names) for token in old] + new
        return type(self)(tokenizer_object=learnt, **settings)

    # Special tokens.

    @property
    def additional_special_tokens(self) -> list[str]:
        return [special.text_of(token) for token in self._special.get(special.ADDITIONAL, ())]

    @additional_special_tokens.setter
    def additional_special_tokens(self, tokens: "list[str | AddedToken] | None") -> None:
        special.set_special(self._special, special.ADDITIONAL, tokens)

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        return self.convert_tokens_to_ids(self.additional_special_tokens)

    @additional_special_tokens_ids.setter
    def additional_special_tokens_ids(self, ids: list[int]) -> None:
        self.additional_special_tokens = self.convert_ids_to_tokens(ids)

    def get_sentinel_tokens(self) -> list[str]:
        """T5's sentinels ``<extra_id_0>`` and so on, without duplicates."""
        tokens = dict.fromkeys(self.additional_special_tokens)
        return [token for token in tokens if re.fullmatch(r"<extra_id_\d+>", token)]

    def get_sentinel_token_ids(self) -> list[int]:
        return self.convert_tokens_to_ids(self.get_sentinel_tokens())

    @property
    def special_tokens_map_extended(self) -> dict[str, Any]:
        """Tokens by attribute name, with their matching rules."""
        return special.ordered(self._special)

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        """Texts of tokens by attribute name."""
        return special.texts(self.special_tokens_map_extended)

    @property
    def all_special_tokens_extended(self) -> "list[str | AddedToken]":
        return special.unique_tokens(self._special)

    @property
    def all_special_tokens(self) -> list[str]:
        return [special.text_of(token) for token in self.all_special_tokens_extended]

    @property
    def all_special_ids(self) -> list[int]:
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """The number of special tokens for one text, or for a pair."""
        return self._tokenizer.num_special_tokens_to_add(pair)

    @property
    def max_len_single_sentence(self) -> int:
        return self.model_max_length - self.num_special_tokens_to_add(False)

    @property
    def max_len_sentences_pair(self) -> int:
        return self.model_max_length - self.num_special_tokens_to_add(True)

    def build_inputs_with_special_tokens(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None
    ) -> Ids:
        """The ids of one or two texts with special tokens."""
        return self._surrounded(token_ids_0, token_ids_1)[0]

    def _surrounded(self, first: Ids, second: Ids | None) -> tuple[Ids, Ids]:
        """The ids of one or two texts with special tokens, and their token types."""
        style = self.style
        if style is None:
            more = list(second or ())
            return [*first, *more], [0] * len(first) + [1] * len(more)
        start = None if style.start is None else self.cls_token_id
        end = getattr(self, f"{style.end}_id")
        around = InputFormat(start, end, style.double_sep, style.cls_last)
        if second is not None:
            return around.pair(first, second)
        ids = around.one(first)
        return ids, around.types(len(ids))

    def create_token_type_ids_from_sequences(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None
    ) -> Ids:
        """Token types: 0 for the first text and 1 for the second, each with its special tokens;
        always 0 in RoBERTa and T5, and 2 for XLNet's last token."""
        return self._surrounded(token_ids_0, token_ids_1)[1]

    def get_special_tokens_mask(
        self,
        token_ids_0: Ids,
        token_ids_1: Ids | None = None,
        already_has_special_tokens: bool = False,
    ) -> Ids:
        """1 at special tokens, including those to be added, else 0."""
        if already_has_special_tokens:
            if token_ids_1 is not None:
                raise InputError("give ids that have their special tokens as one list")
            known = set(self.all_special_ids)
            return [int(index in known) for index in token_ids_0]
        pair = None if token_ids_1 is None else [-1] * len(token_ids_1)
        built = self.build_inputs_with_special_tokens([-1] * len(token_ids_0), pair)
        return [int(index != -1) for index in built]

    # BERT's rules.

    @property
    def do_lower_case(self) -> bool:
        """Whether text is lower-cased, in families with this option."""
        return bool(self.init_kwargs.get("do_lower_case"))

    @property
    def never_split(self) -> tuple[str, ...]:
        """Words that are neither split nor lower-cased, as in the slow BertTokenizer."""
        usable = kind_of(self._tokenizer) == "wordpiece"
        basic = self.init_kwargs.get("do_basic_tokenize", True)
        return never_split_of(self.init_kwargs) if usable and basic else ()

    @property
    def basic_tokenizer(self) -> BasicTokenizer:
        """The first step of BERT's tokenizer: text to words."""
        if self.style is not BERT:
            raise AttributeError(f"{type(self).__name__} has no basic_tokenizer")
        names = ("do_lower_case", "never_split", "tokenize_chinese_chars", "strip_accents")
        given = {name: self.init_kwargs[name] for name in names if name in self.init_kwargs}
        return BasicTokenizer(**given)

    @property
    def wordpiece_tokenizer(self) -> WordpieceTokenizer:
        """The second step of BERT's tokenizer: words to pieces."""
        if self.style is not BERT:
            raise AttributeError(f"{type(self).__name__} has no wordpiece_tokenizer")
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=False)
        return WordpieceTokenizer(vocabulary, self.unk_token or "[UNK]")

    # Text to ids.

    def __call__(
        self,
        text: Any = None,
        text_pair: Any = None,
        text_target: Any = None,
        text_pair_target: Any = None,
        *positional: Any,
        **options: Any,
    ) -> BatchEncoding:
        """Encode one or several texts or pairs of texts.

        Args:
            text, text_pair: the texts.
            text_target, text_pair_target: target texts, whose ids become ``labels``, or the result
                if there is no ``text``.
            positional, options: see ``CallOptions``.

        Raises:
            InputError: an input is not a text, or an option is invalid.
        """
        call_options = CallOptions.of(positional, options)
        if text is None and text_target is None:
            raise InputError("the tokenizer needs text or text_target")
        if text is None:
            return self._encode(text_target, text_pair_target, call_options)
        encoded = self._encode(text, text_pair, call_options)
        if text_target is not None:
            targets = self._encode(text_target, text_pair_target, call_options)
            encoded["labels"] = targets["input_ids"]
        return encoded

    def encode_plus(
        self, text: Any, text_pair: Any = None, *positional: Any, **options: Any
    ) -> BatchEncoding:
        """Encode one text or pair: strings, tokens of the vocabulary, ids, or words."""
        return self._encode_one(text, text_pair, CallOptions.of(positional, options))

    def encode(self, text: Any, text_pair: Any = None, *positional: Any, **options: Any) -> Any:
        """The ids of one text or pair."""
        return self.encode_plus(text, text_pair, *positional, **options)["input_ids"]

    def batch_encode_plus(
        self, batch_text_or_text_pairs: Any, *positional: Any, **options: Any
    ) -> BatchEncoding:
        """Encode a list of inputs of ``encode_plus``, or of pairs of them."""
        if not isinstance(batch_text_or_text_pairs, list | tuple):
            raise InputError("batch_encode_plus needs a list of texts or of pairs")
        return self._encode_many(batch_text_or_text_pairs, CallOptions.of(positional, options))

    def tokenize(
        self, text: str, pair: str | None = None, add_special_tokens: bool = False, **options: Any
    ) -> list[str]:
        """The tokens of a text, by default without special tokens."""
        encoded = self.encode_plus(text, pair, add_special_tokens, **options)
        tokens = encoded.tokens()
        if not self.never_split or not isinstance(text, str):
            return tokens
        # Words of ``never_split`` that are not in the vocabulary are returned unchanged.
        sources = (text, pair or "")
        aligned = zip(tokens, encoded.sequence_ids(), encoded[0].offsets, strict=True)
        return [
            self._unsplit_word(sources[which][start:end], token)
            if token == self.unk_token and which is not None
            else token
            for token, which, (start, end) in aligned
        ]

    def _unsplit_word(self, source: str, token: str) -> str:
        normalizer = self._tokenizer.normalizer
        lowered = source.lower() if getattr(normalizer, "lowercase", False) else source
        for form in (unicodedata.normalize("NFC", lowered), normalizer.normalize_str(source)):
            if form in self.never_split:
                return form
        return token

    def _encode(self, text: Any, pair: Any, options: CallOptions) -> BatchEncoding:
        batch = batch_of(text, pair, words=options.is_split_into_words)
        if batch is None:
            return self._encode_one(text, pair, options)
        return self._encode_many(batch, options)

    def _encode_one(self, text: Any, pair: Any, options: CallOptions) -> BatchEncoding:
        if not options.is_split_into_words and isinstance(text, list | tuple):
            prepend = options.return_tensors is not None
            pair_ids = None if pair is None else self._ids(pair)
            return self._from_ids(self._ids(text), pair_ids, options.resolved(self), prepend)
        encoded = self._encode_texts([(text, pair) if pair else text], options)
        if options.return_tensors is not None or options.return_overflowing_tokens:
            return encoded
        row = {k: v[0] if v and isinstance(v[0], list) else v for k, v in encoded.items()}
        return BatchEncoding(row, encoded.encodings)

    def _encode_many(self, batch: Any, options: CallOptions) -> BatchEncoding:
        if options.is_split_into_words or not batch or not holds_ids(batch[0]):
            return self._encode_texts(batch, options)
        options = options.resolved(self)
        pairs = [item if isinstance(item[0], list | tuple) else (item, None) for item in batch]
        rows = [
            self._row(self._ids(a), None if b is None else self._ids(b), options) for a, b in pairs
        ]
        if options.padding != "do_not_pad":
            return pad_batch(rows, options, self)
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        return BatchEncoding(columns, tensor_type=options.return_tensors)

    def _encode_texts(self, texts: Any, options: CallOptions) -> BatchEncoding:
        encoder = self._encoder(words=options.is_split_into_words)
        return encode_texts(encoder, texts, options.resolved(self), self)

    def _encoder(self, *, words: bool) -> "tokenizers.Tokenizer":
        """The backend, or its copy for words that are never split or are given separately."""
        spaced = words and self.style is ROBERTA and not self.add_prefix_space
        if not (spaced or self.never_split):
            return self._tokenizer
        if self._copy is None:
            # The slow RobertaTokenizer adds a space before each given word.
            self._copy = (
                with_prefix_space(self._tokenizer)
                if spaced
                else keep_whole(self._tokenizer, self.never_split)
            )
        return self._copy

    # Inputs that are ids.

    def prepare_for_model(
        self, ids: Ids, pair_ids: Ids | None = None, *positional: Any, **options: Any
    ) -> BatchEncoding:
        """Make an input from the ids of one or two texts; for the options see ``CallOptions``."""
        prepend = options.pop("prepend_batch_axis", False)
        call_options = CallOptions.of(positional, options).resolved(self)
        return self._from_ids(list(ids), pair_ids, call_options, prepend)

    def truncate_sequences(
        self,
        ids: Ids,
        pair_ids: Ids | None = None,
        num_tokens_to_remove: int = 0,
        truncation_strategy: str = "longest_first",
        stride: int = 0,
    ) -> tuple[Ids, Ids | None, Ids]:
        """The truncated ids of both texts, and the removed ones."""
        strategy, side = str(truncation_strategy), self.truncation_side
        return truncate(
            ids, pair_ids, num_tokens_to_remove, strategy=strategy, stride=stride, side=side
        )

    def pad(
        self,
        encoded_inputs: Any,
        padding: Any = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        **options: Any,
    ) -> BatchEncoding:
        """Pad encodings: a mapping of one or several, or a list of mappings (a collate function).

        Args:
            encoded_inputs: the encodings.
            padding, max_length, pad_to_multiple_of: as in ``CallOptions``.
            options: ``padding_side``, ``return_attention_mask``, ``return_tensors``, ``verbose``.

        Raises:
            InputError: there are no ids, or columns of different lengths.
        """
        named = {"padding": padding, "max_length": max_length, "truncation": False, **options}
        call_options = CallOptions.of((), {**named, "pad_to_multiple_of": pad_to_multiple_of})
        return pad_batch(encoded_inputs, call_options.resolved(self), self)

    def _ids(self, text: Any) -> Ids:
        """The ids of a string, or of a list of tokens or ids."""
        if isinstance(text, str):
            return self.encode(text, add_special_tokens=False, verbose=False)
        return [self.convert_tokens_to_ids(t) if isinstance(t, str) else int(t) for t in text]

    def _from_ids(
        self, ids: Ids, pair: Ids | None, options: CallOptions, prepend: bool
    ) -> BatchEncoding:
        row = self._row(ids, pair, options)
        if options.padding != "do_not_pad":
            row = pad_batch(row, replace(options, return_tensors=None), self).data
        return BatchEncoding(row, None, options.return_tensors, prepend)

    def _row(self, ids: Ids, pair: Ids | None, options: CallOptions) -> dict[str, Any]:
        """An input of ids: truncated, with special tokens, not yet padded."""
        around = self.num_special_tokens_to_add(pair is not None)
        length = len(ids) + len(pair or ()) + (around if options.add_special_tokens else 0)
        overflowing: Ids = []
        if options.truncation != "do_not_truncate" and options.max_length:
            ids, pair, overflowing = self.truncate_sequences(
                ids, pair, length - options.max_length, options.truncation, options.stride
            )
        row: dict[str, Any] = {}
        if options.return_overflowing_tokens:
            row["overflowing_tokens"] = overflowing
            row["num_truncated_tokens"] = length - (options.max_length or length)
        if options.add_special_tokens:
            row["input_ids"], types = self._surrounded(ids, pair)
            mask = self.get_special_tokens_mask(ids, pair)
        else:
            row["input_ids"] = ids + (pair or [])
            types = mask = [0] * len(row["input_ids"])
        if options.returns("token_type_ids", self.model_input_names):
            row["token_type_ids"] = types
        if options.return_special_tokens_mask:
            row["special_tokens_mask"] = mask
        if options.returns("attention_mask", self.model_input_names):
            row["attention_mask"] = [1] * len(row["input_ids"])
        if options.return_length:
            row["length"] = len(row["input_ids"])
        return row

    # Ids to text.

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of tokens."""
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **_: Any,
    ) -> str:
        """Decode ids to text.

        Args:
            token_ids: ids, as a list or a tensor.
            skip_special_tokens: whether to omit special tokens.
            clean_up_tokenization_spaces: see ``clean_up_tokenization``; by default the tokenizer's.

        Raises:
            InputError: the input is not a list of ids.
        """
        ids = as_lists(token_ids)
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
        """Remove spaces before punctuation and contractions in English text."""
        for separated, joined in CLEAN_UP:
            out_string = out_string.replace(separated, joined)
        return out_string
