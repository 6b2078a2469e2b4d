"""Tokenizers under the names of Transformers: texts to padded ids, masks and offsets, and back.

One class over the core's ``Tokenizer``, which reads and writes the folders. Its results are those
of the fast tokenizers of Transformers 4.57.6. The folders also load in Transformers, whose
``AutoTokenizer`` has the methods and options that are not here.
"""

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ownbert.checks import known, maybe, number
from ownbert.exceptions import InputError, in_short
from ownbert.hub import HUB_OPTIONS, pretrained_folder
from ownbert.text.bert_rules import wordpiece_backend
from ownbert.text.build import CONFIG_KEYS, with_prefix_space
from ownbert.text.styles import BERT, CLASSES, ROBERTA, SPECIAL_NAMES, WITH_TYPES
from ownbert.text.tokenizer import Tokenizer
from ownbert.text.tokenizer_folder import (
    TOKENIZER,
    TokenizerFolder,
    never_split_of,
    read_vocabulary,
)
from ownbert.transformers.tokenizer_call import (
    AUTO_TOKENIZER,
    NO_LIMIT,
    SIDES,
    BatchEncoding,
    CallOptions,
    as_lists,
    as_tensors,
)

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger("ownbert.tokenizer")

# Further columns of a call by option (return_...): their names, and attributes of an encoding.
COLUMNS = {
    "token_type_ids": ("token_type_ids", "type_ids"),
    "attention_mask": ("attention_mask", "attention_mask"),
    "special_tokens_mask": ("special_tokens_mask", "special_tokens_mask"),
    "offsets_mapping": ("offset_mapping", "offsets"),
}
# Options of ``from_pretrained`` that change BERT's rules, and those that apply to any tokenizer.
RULES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "never_split")
SETTINGS = ("model_max_length", "padding_side", "truncation_side", "model_input_names")
# What to use instead of some methods of Transformers; ``AutoTokenizer`` has the others.
INSTEAD = {
    **dict.fromkeys(("encode_plus", "batch_encode_plus", "prepare_for_model"), "tokenizer(texts)"),
    "train_new_from_iterator": "ownbert.learn_vocabulary(files, folder)",
    "save_vocabulary": "save_pretrained(folder)",
}
_NO_IDS = "a list of ids is needed, whole numbers from 0"
CLEAN_UP = (
    *((f" {mark}", mark) for mark in ".?!,"),
    (" ' ", "'"),
    *((f" {end}", end) for end in ("n't", "'m", "'s", "'ve", "'re")),
)


def _special(name: str) -> tuple[property, property]:
    """The attributes ``name`` (``mask_token``) and ``{name}_id``, None without such a token."""

    def token(tokenizer: "PreTrainedTokenizer") -> str | None:
        return tokenizer.core.special.get(name)

    def index(tokenizer: "PreTrainedTokenizer") -> int | None:
        text = token(tokenizer)
        return None if text is None else tokenizer.core.id_of(text)

    def refuse(tokenizer: "PreTrainedTokenizer", _: Any) -> None:
        raise AttributeError(f"{name} cannot be changed here; use {AUTO_TOKENIZER}")

    return property(token, refuse), property(index, refuse)


class PreTrainedTokenizer:
    """A tokenizer of any family; ``BertTokenizer`` and so on are those of one family.

    Attributes:
        core: the tokenizer that reads and writes the folder.
        name_or_path: folder or name that it was loaded from.
        padding_side, truncation_side: ``right`` or ``left``.
        model_input_names: columns that a call returns by default.
    """

    # The class in tokenizer_config.json; None: any.
    tokenizer_class: str | None = None
    is_fast = True

    bos_token, bos_token_id = _special("bos_token")
    eos_token, eos_token_id = _special("eos_token")
    unk_token, unk_token_id = _special("unk_token")
    sep_token, sep_token_id = _special("sep_token")
    pad_token, pad_token_id = _special("pad_token")
    cls_token, cls_token_id = _special("cls_token")
    mask_token, mask_token_id = _special("mask_token")

    def __init__(self, core: Any = None, name_or_path: str = "", **others: Any):
        if not isinstance(core, Tokenizer) or others:
            name = type(self).__name__
            raise InputError("load a folder or a vocab.txt with {name}.from_pretrained(path)", name)
        config, own = core.config, self.tokenizer_class
        self.core, self.name_or_path = core, name_or_path
        self.model_max_length = NO_LIMIT if core.max_length is None else core.max_length
        self.padding_side: str = config.get("padding_side") or SIDES[core.style.cls_last]
        self.truncation_side: str = config.get("truncation_side") or "right"
        stated = str(config.get("tokenizer_class") or own).removesuffix("Fast")
        inputs = CLASSES[stated][1] if stated in CLASSES else WITH_TYPES
        self.model_input_names = list(config.get("model_input_names") or inputs)
        self._pad_type = 3 if core.style.cls_last else 0  # that of XLNet
        self._fill = {
            "input_ids": self.pad_token_id,
            "token_type_ids": self._pad_type,
            "special_tokens_mask": 1,
            "attention_mask": 0,
        }
        self._lock = threading.Lock()  # the library sets truncation and padding for all threads
        # A copy of RoBERTa's rules for words, created when first needed.
        self._for_words: tokenizers.Tokenizer | None = None

    @classmethod
    def _checked(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        names = (*RULES, *SETTINGS)
        if unknown := [name for name in settings if name not in names]:
            message = "{kind} has no setting {unknown}; it has {names}; for others use {other}"
            listed = ", ".join(unknown), ", ".join(names)
            raise InputError(message, cls.__name__, *listed, AUTO_TOKENIZER)
        found = {name: value for name, value in settings.items() if value is not None}
        if "never_split" in found:
            found["never_split"] = sorted(never_split_of(found))
        CONFIG_KEYS(cls.__name__, found)
        for name in ("padding_side", "truncation_side"):
            maybe(known(*SIDES))(name, found.get(name))
        maybe(number(1, 1e300))("model_max_length", found.get("model_max_length"))
        return found

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: "str | os.PathLike[str]", **settings: Any
    ) -> Any:
        """Load the tokenizer of a folder, or BERT's from a vocab.txt.

        Args:
            pretrained_model_name_or_path: the folder, the file, or the name of a model on the hub.
            settings: settings that override those in tokenizer_config.json: for BERT's rules
                ``do_lower_case``, ``strip_accents``, ``tokenize_chinese_chars`` and
                ``never_split`` (words that are not split; one that is not in the vocabulary is the
                unknown token); ``model_max_length``, ``padding_side``, ``truncation_side``,
                ``model_input_names``; options of the hub (``revision``, ``subfolder``...).

        Raises:
            InputError: there is no such folder, no tokenizer in it or one of another family, or a
                setting is invalid.
        """
        name = pretrained_model_name_or_path
        of_hub = (*HUB_OPTIONS, "subfolder", "use_fast")
        changes = cls._checked({k: v for k, v in settings.items() if k not in of_hub})
        own = CLASSES[cls.tokenizer_class or "BertTokenizer"][0]
        path = pretrained_folder(name, settings, or_file=not str(name).endswith(".json"))
        if path.is_file():
            if own is not BERT:
                raise InputError("{kind} is loaded from a folder", cls.__name__)
            rules = {name: changes[name] for name in RULES[:3] if name in changes}
            backend = wordpiece_backend(read_vocabulary(path), **rules)
            config = {"clean_up_tokenization_spaces": True, **changes}
            config |= {"tokenizer_class": cls.tokenizer_class} if cls.tokenizer_class else {}
            return cls(Tokenizer(backend, config=config), str(name))
        folder = TokenizerFolder(path, changes=changes, preferred=cls.tokenizer_class)
        core = Tokenizer.load(folder)
        if core.style is BERT and not folder.has(TOKENIZER):
            core.config.setdefault("clean_up_tokenization_spaces", True)
        if cls.tokenizer_class and core.style is not own:
            raise InputError(
                "{path} contains a tokenizer of another family; use {name}.from_pretrained(folder)",
                path,
                core.style.tokenizer_class,
            )
        if core.kind != "wordpiece" and (rules := [rule for rule in RULES if rule in changes]):
            message = (
                "{rules}: only for BERT's rules, which the tokenizer in {path} does not have; "
                "use {auto_tokenizer}"
            )
            raise InputError(message, ", ".join(rules), path, AUTO_TOKENIZER)
        return cls(core, str(name))

    def save_pretrained(self, save_directory: "str | os.PathLike[str]") -> None:
        """Write files that this class, ``ownbert.Tokenizer`` and Transformers 4.57.6 and 5 load."""
        if not isinstance(save_directory, str | os.PathLike):
            raise InputError("save_pretrained needs a folder, not {path}", in_short(save_directory))
        self.current().save(save_directory)

    def current(self) -> Tokenizer:
        """``core`` with the current attributes."""
        sides = {"padding_side": self.padding_side, "truncation_side": self.truncation_side}
        self.core.config |= {**sides, "model_input_names": list(self.model_input_names)}
        limit = self.model_max_length
        self.core.max_length = None if limit >= NO_LIMIT else limit
        return self.core

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "core":  # asked for by copy and pickle
            raise AttributeError(name)
        instead = INSTEAD.get(name, AUTO_TOKENIZER)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}; use {instead}")

    def __getstate__(self) -> dict[str, Any]:
        # Rules with never_split run Python code, which cannot be pickled.
        core = self.core
        parts = (core.backend, core.max_length, core.special, core.config)
        return {**self.__dict__, "core": parts, "_for_words": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        backend, limit, special, config = state["core"]
        core = Tokenizer(backend, max_length=limit, special=special, config=config)
        self.__dict__ |= {**state, "core": core, "_lock": threading.Lock()}

    def __len__(self) -> int:
        return len(self.core)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name_or_path={self.name_or_path!r}, "
            f"vocab_size={self.vocab_size}, model_max_length={self.model_max_length}, "
            f"padding_side={self.padding_side!r}, special_tokens={self.special_tokens_map})"
        )

    @property
    def vocab_size(self) -> int:
        """Size of the vocabulary without added tokens, which ``len`` includes."""
        return self.core.backend.get_vocab_size(with_added_tokens=False)

    def get_vocab(self) -> dict[str, int]:
        """The id of each token, including added tokens."""
        return self.core.backend.get_vocab(with_added_tokens=True)

    vocab = property(get_vocab)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens: those with an attribute, then additional ones."""
        added = sorted(self.core.backend.get_added_tokens_decoder().items())
        more = self.core.style.additional  # XLNet's <eop> is not special in its file
        additional = [i for i, token in added if token.special or token.content in more]
        named = (self.core.id_of(token) for token in self.special_tokens_map.values())
        return list(dict.fromkeys([*(i for i in named if i is not None), *additional]))

    @property
    def all_special_tokens(self) -> list[str]:
        return self.convert_ids_to_tokens(self.all_special_ids)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """Special tokens by attribute name."""
        return {n: self.core.special[n] for n in SPECIAL_NAMES if n in self.core.special}

    def add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens that are never split; return how many were not added tokens before.

        The word embeddings of a model need ``len(tokenizer)`` rows afterwards.

        Args:
            new_tokens: a token or a list of tokens, texts or ``tokenizers.AddedToken``.
            special_tokens: whether they are special tokens.
        """
        tokens: Any = new_tokens if isinstance(new_tokens, list | tuple) else [new_tokens]
        texts = [_token(getattr(token, "content", token)) for token in tokens]
        core = self.core
        add = core.backend.add_special_tokens if special_tokens else core.backend.add_tokens
        count = add(list(tokens))
        if special_tokens:
            listed = core.config.get("additional_special_tokens") or ()
            core.config["additional_special_tokens"] = list(dict.fromkeys([*listed, *texts]))
        self.__setstate__(self.__getstate__())
        return count

    def convert_tokens_to_ids(self, tokens: "str | Sequence[str] | None") -> Any:
        """The id of a token, or of each of several; unknown tokens have the id of ``unk_token``."""
        if tokens is None:
            return None
        if isinstance(tokens, list | tuple):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        index = self.core.id_of(_token(tokens))
        return self.unk_token_id if index is None else index

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """The token of an id, or of each of several; None for an unknown id."""
        if isinstance(ids, int):
            return self.core.backend.id_to_token(ids) if 0 <= ids < len(self) else None
        skip = set(self.all_special_ids) if skip_special_tokens else ()
        return [self.convert_ids_to_tokens(index) for index in _ids(ids) if index not in skip]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of tokens."""
        if not isinstance(tokens, list | tuple) or not all(isinstance(t, str) for t in tokens):
            raise InputError("convert_tokens_to_string needs a list of tokens")
        decoder = self.core.backend.decoder
        return " ".join(tokens) if decoder is None else decoder.decode(list(tokens))

    def __call__(self, text: Any, text_pair: Any = None, **options: Any) -> BatchEncoding:
        """Encode one or several texts or pairs of texts.

        Args:
            text, text_pair: a text each, or a list of B texts; a text is a list of words with
                ``is_split_into_words``.
            options: ``add_special_tokens`` (default True); ``padding`` (True or ``longest``,
                ``max_length``, False); ``truncation`` (True or ``longest_first``, ``only_first``,
                ``only_second``, False); ``max_length``, by default that of the model; ``stride``,
                the number of tokens shared by overflowing rows; ``is_split_into_words``;
                ``pad_to_multiple_of``; ``padding_side``; ``return_tensors`` (``pt``, ``np``, None:
                lists); ``split_special_tokens``, whether special tokens in texts are split like
                other text; the columns ``return_token_type_ids``, ``return_attention_mask``,
                ``return_special_tokens_mask``, ``return_offsets_mapping`` (characters of each
                token); ``return_overflowing_tokens``, whether truncated tokens
                become further rows, with ``overflow_to_sample_mapping``.

        Raises:
            InputError: an input is not a text, or an option is invalid.
        """
        resolved = CallOptions.of(options, self.model_max_length)
        # Columns of NumPy or pandas, which the library would take for a pair.
        text, text_pair = (v.tolist() if hasattr(v, "tolist") else v for v in (text, text_pair))
        batch = _batch_of(text, text_pair, words=resolved.is_split_into_words)
        single = batch is None
        texts = [(text, text_pair) if text_pair else text] if batch is None else batch
        with self._lock:
            encodings = self._encodings(texts, resolved)
        columns, rows = self._columns(encodings, resolved)
        if resolved.return_tensors is not None:
            columns = as_tensors(columns, resolved.return_tensors)
        elif single and not resolved.return_overflowing_tokens:
            columns = {key: value[0] for key, value in columns.items()}
        return BatchEncoding(columns, rows)

    def encode(self, text: Any, text_pair: Any = None, **options: Any) -> Any:
        """The ids of one text or pair; for the options see ``__call__``."""
        return self(text, text_pair, **options)["input_ids"]

    def tokenize(self, text: str, pair: str | None = None, **options: Any) -> list[str]:
        """The tokens of a text, by default without special tokens."""
        if not isinstance(text, str):
            raise InputError("tokenize needs one text")
        return self(text, pair, **{"add_special_tokens": False, **options}).tokens()

    def get_special_tokens_mask(
        self, token_ids_0: Any, already_has_special_tokens: bool = True
    ) -> list[int]:
        """1 for special tokens among ids and 0 for others, as the collators of Transformers ask."""
        if not already_has_special_tokens:
            raise InputError("give the ids of a call, with their special tokens")
        special = set(self.all_special_ids)
        return [int(index in special) for index in _ids(token_ids_0)]

    def _encodings(self, texts: list[Any], options: CallOptions) -> "list[tokenizers.Encoding]":
        """Encode texts, or pairs as tuples; the backend keeps no option of the call."""
        encoder = self.core.encoder
        words = options.is_split_into_words
        if words and self.core.style is ROBERTA and not self.core.config.get("add_prefix_space"):
            # As in the slow RobertaTokenizer: the fast one refuses words without a space.
            self._for_words = self._for_words or with_prefix_space(encoder)
            encoder = self._for_words
        try:
            pair = bool(texts) and isinstance(texts[0], tuple)
            self._set_options(encoder, options, pair=pair and not words)
            special = options.add_special_tokens
            return encoder.encode_batch(texts, is_pretokenized=words, add_special_tokens=special)
        except TypeError as error:
            _require_characters(texts)
            raise InputError(
                "text must be a string, a list of strings (texts, or the words of one text with "
                "is_split_into_words=True) or a list of lists of words"
            ) from error
        except InputError:
            raise
        except BaseException as error:
            # The library panics, which is not an Exception, if a stride is too long for the rest of
            # a text of a pair, and raises a plain Exception if a text is too short to truncate.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise InputError(
                    "the text cannot be encoded with these arguments: {error}", error
                ) from None
            raise
        finally:
            encoder.encode_special_tokens = False
            encoder.no_truncation()
            encoder.no_padding()

    def _set_options(
        self, encoder: "tokenizers.Tokenizer", options: CallOptions, *, pair: bool
    ) -> None:
        encoder.encode_special_tokens = options.split_special_tokens
        if options.truncation != "do_not_truncate":
            limit = options.max_length or 0
            added = encoder.num_special_tokens_to_add(pair) * options.add_special_tokens
            if limit < added:  # which the library ignores
                message = (
                    "max_length is {limit}, but there are {added} special tokens around a text"
                )
                raise InputError(message, limit, added)
            encoder.enable_truncation(
                max_length=options.max_length,
                stride=options.stride,
                strategy=options.truncation,
                direction=self.truncation_side,
            )
        if options.padding != "do_not_pad":
            encoder.enable_padding(
                length=options.max_length if options.padding == "max_length" else None,
                direction=options.padding_side or self.padding_side,
                pad_id=self.pad_token_id,
                pad_token=self.pad_token,
                pad_type_id=self._pad_type,
                pad_to_multiple_of=options.pad_to_multiple_of,
            )

    def _columns(
        self, encodings: "list[tokenizers.Encoding]", options: CallOptions
    ) -> "tuple[dict[str, list[Any]], list[tokenizers.Encoding]]":
        """The requested columns, and the encodings of their rows, overflowing ones included."""
        overflow, names = options.return_overflowing_tokens, self.model_input_names
        groups = [[first, *first.overflowing] if overflow else [first] for first in encodings]
        rows = [row for group in groups for row in group]
        columns: dict[str, list[Any]] = {"input_ids": [row.ids for row in rows]}
        for name, (column, attribute) in COLUMNS.items():
            if options.returns(name, names):
                columns[column] = [getattr(row, attribute) for row in rows]
        if overflow:
            samples = [index for index, group in enumerate(groups) for _ in group]
            columns["overflow_to_sample_mapping"] = samples
        longest, limit = max((len(row.ids) for row in rows), default=0), self.model_max_length
        if options.max_length is None and longest > limit > 0:
            message = "a text has %d tokens, but the model takes at most %d; set truncation=True"
            log.warning(message, longest, limit)
        return columns, rows

    def pad(self, encoded_inputs: Any, padding: Any = True, **options: Any) -> BatchEncoding:
        """Pad encodings, as a collate function does.

        Args:
            encoded_inputs: sequences as a list of mappings, or as a mapping of lists.
            padding: as in ``__call__``.
            options: ``max_length``, ``pad_to_multiple_of``, ``padding_side``,
                ``return_attention_mask``, ``return_tensors``.

        Raises:
            InputError: there are no ids, or columns of different lengths.
        """
        resolved = CallOptions.of(
            {**options, "padding": padding, "truncation": False}, self.model_max_length
        )
        inputs: Any = encoded_inputs
        if isinstance(inputs, Mapping):
            inputs = {key: as_lists(value) for key, value in inputs.items()}
            if not all(isinstance(value, list) for value in inputs.values()):
                inputs = {}
            if len({len(value) for value in inputs.values()}) > 1:
                raise InputError("pad: the columns do not have the same number of rows")
            columns = zip(*inputs.values(), strict=True)
            inputs = [dict(zip(inputs, row, strict=True)) for row in columns]
        known = isinstance(inputs, list | tuple) and all(isinstance(row, Mapping) for row in inputs)
        rows = [{key: as_lists(row[key]) for key in row} for row in inputs] if known else []
        if not rows or not all(isinstance(row.get("input_ids"), list) for row in rows):
            raise InputError("pad needs the input_ids of several sequences, in a list or a mapping")
        for row in rows:
            lengths = {len(_ids(row[key])) for key in row.keys() & self._fill.keys()}
            if row.keys() != rows[0].keys() or len(lengths) > 1:
                raise InputError("pad: sequences need the same columns, as long as their input_ids")
        longest = max(len(row["input_ids"]) for row in rows)
        rows = [self._padded(row, resolved, longest) for row in rows]
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        tensors = resolved.return_tensors
        return BatchEncoding(columns if tensors is None else as_tensors(columns, tensors))

    def _padded(self, row: dict[str, Any], options: CallOptions, longest: int) -> dict[str, Any]:
        """Pad ids, masks and types of one sequence; other values are unchanged."""
        length = len(row["input_ids"])
        target = longest if options.padding == "longest" else options.max_length
        multiple = options.pad_to_multiple_of
        if target is not None and multiple:
            target = -(-target // multiple) * multiple
        if options.returns("attention_mask", self.model_input_names):
            row = {"attention_mask": [1] * length, **row}
        missing = 0 if options.padding == "do_not_pad" or target is None else target - length
        if missing <= 0:
            return row
        left = (options.padding_side or self.padding_side) == "left"
        padding = {key: [value] * missing for key, value in self._fill.items() if key in row}
        return row | {k: p + row[k] if left else row[k] + p for k, p in padding.items()}

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Decode ids to text.

        Args:
            token_ids: ids, a list or a tensor.
            skip_special_tokens: whether to omit special tokens.
            clean_up_tokenization_spaces: whether to remove spaces before English punctuation and
                contractions; by default as in tokenizer_config.json.

        Raises:
            InputError: the input is not a list of ids.
        """
        ids, clean = as_lists(token_ids), clean_up_tokenization_spaces
        ids = _ids([ids] if isinstance(ids, int) else ids)
        try:
            text = self.core.decode(ids, skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError) as error:
            raise InputError(_NO_IDS) from error
        if self.core.config.get("clean_up_tokenization_spaces") if clean is None else clean:
            for separated, joined in CLEAN_UP:
                text = text.replace(separated, joined)
        return text

    def batch_decode(self, sequences: Any, *args: Any, **kwargs: Any) -> list[str]:
        """``decode`` of every row."""
        if not isinstance(as_lists(sequences), list):
            raise InputError("batch_decode needs a list of lists of ids")
        return [self.decode(ids, *args, **kwargs) for ids in sequences]


# Classes by the names of Transformers, without ``Fast``.
TOKENIZERS = {"PreTrainedTokenizer": PreTrainedTokenizer}
for _name in CLASSES:
    _body = {
        "__doc__": f"{_name} of Transformers; see ``PreTrainedTokenizer``.",
        "__module__": "ownbert.transformers",
        "tokenizer_class": _name,
    }
    TOKENIZERS[_name] = type(_name, (PreTrainedTokenizer,), _body)


def _ids(value: Any) -> list[int]:
    """Ids as a list; ``InputError`` for anything else."""
    ids = as_lists(value)
    if not isinstance(ids, list) or not all(type(index) is int for index in ids):
        raise InputError(_NO_IDS)
    return ids


def _token(value: Any) -> str:
    if not isinstance(value, str):
        raise InputError("{value} is not a token; a token is a text", in_short(value))
    _require_characters(value)
    return value


def _batch_of(text: Any, pair: Any, *, words: bool) -> list[Any] | None:
    """The texts, or pairs of texts, of a call; None if it has a single input."""
    many = isinstance(text, list | tuple)
    if not many or (words and not (text and isinstance(text[0], list | tuple))):
        return None
    if pair is None:
        return list(text)
    if not isinstance(pair, list | tuple) or len(pair) != len(text):
        found = str(len(pair)) if isinstance(pair, list | tuple) else f"a {type(pair).__name__}"
        message = "{count} texts need the same number of second texts, not {value}"
        raise InputError(message, len(text), found)
    return list(zip(text, pair, strict=True))


def _require_characters(value: Any) -> None:
    """Raise ``InputError`` for half a surrogate pair in a string, also in lists."""
    for item in value if isinstance(value, list | tuple) else ():
        _require_characters(item)
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise InputError(
            "text contains half of a surrogate pair, which is not a character; was it read as "
            "UTF-8?"
        )
