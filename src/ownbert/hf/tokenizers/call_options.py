"""The arguments of a tokenizer's call as in Transformers 4.57.6, and how texts are encoded.

``tokenizer`` is a ``PreTrainedTokenizerFast``, whose attributes are the defaults of its calls.
"""

import dataclasses
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ownbert.checks import known, maybe
from ownbert.exceptions import InputError
from ownbert.hf.tokenizers.batch_encoding import BatchEncoding

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger("ownbert.tokenizer")

PADDINGS = ("longest", "max_length", "do_not_pad")
TRUNCATIONS = ("longest_first", "only_first", "only_second", "do_not_truncate")
SIDES = ("right", "left")
# Transformers writes 1e30 for a model without a limit.
NO_LIMIT = int(1e20)
INPUTS = (
    "text must be a string, a list of strings (texts, or the words of one text with "
    "is_split_into_words=True) or a list of lists of words"
)
NOT_UNICODE = (
    "text contains half of a surrogate pair, which is not a character; was it read as UTF-8?"
)
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class CallOptions:
    """The arguments of a call in the order of ``encode_plus``; None: the tokenizer's default."""

    add_special_tokens: bool = True
    padding: Any = False
    truncation: Any = None
    max_length: int | None = None
    stride: int = 0
    is_split_into_words: bool = False
    pad_to_multiple_of: int | None = None
    padding_side: str | None = None
    return_tensors: str | None = None
    return_token_type_ids: bool | None = None
    return_attention_mask: bool | None = None
    return_overflowing_tokens: bool = False
    return_special_tokens_mask: bool = False
    return_offsets_mapping: bool = False
    return_length: bool = False
    verbose: bool = True
    split_special_tokens: bool | None = None

    @classmethod
    def of(cls, positional: tuple[Any, ...], named: dict[str, Any]) -> "CallOptions":
        """The options of a call.

        Raises:
            InputError: an argument does not exist.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in named if name not in known]
        if unknown:
            names = ", ".join(known)
            raise InputError(f"the tokenizer has no argument {', '.join(unknown)}; it has {names}")
        return cls(**by_name("the tokenizer's call", known, positional, named))

    def resolved(self, tokenizer: Any) -> "CallOptions":
        """The options with defaults filled in.

        ``padding`` and ``truncation`` become names of ``PADDINGS`` and ``TRUNCATIONS``, and
        ``max_length`` is set if they need it. A warning is logged if ``max_length`` is given
        without truncation, or needed and missing.

        Raises:
            InputError: values are invalid or contradict each other.
        """
        padding = _strategy("padding", self.padding, "longest", PADDINGS)
        truncation = self.truncation
        if self.max_length is not None and self.padding is False and truncation is None:
            message = "max_length is given without truncation: texts are truncated (longest_first)"
            warn_once(tokenizer, message)
            truncation = True
        truncation = _strategy("truncation", truncation, "longest_first", TRUNCATIONS)
        max_length = self.max_length
        if max_length is None and (padding == "max_length" or truncation != "do_not_truncate"):
            if tokenizer.model_max_length > NO_LIMIT:
                warn_once(
                    tokenizer,
                    "no max_length is given and the model has no limit: texts are neither "
                    "truncated nor padded to a length",
                )
                padding = "do_not_pad" if padding == "max_length" else padding
                truncation = "do_not_truncate"
            else:
                max_length = tokenizer.model_max_length
        resolved = dataclasses.replace(
            self, padding=padding, truncation=truncation, max_length=max_length
        )
        resolved._check(tokenizer.pad_token)
        return resolved

    def _check(self, pad_token: Any) -> None:
        if self.padding != "do_not_pad" and pad_token is None:
            raise InputError("padding needs a pad_token; set tokenizer.pad_token first")
        maybe(known(*SIDES))("padding_side", self.padding_side)
        for name in ("max_length", "stride", "pad_to_multiple_of"):
            value = getattr(self, name)
            integer = hasattr(value, "__index__") and not isinstance(value, bool)
            if value is not None and (not integer or value < 0):
                raise InputError(f"{name} is {value!r}; it must be a whole number, at least 0")
        multiple = self.pad_to_multiple_of
        both = self.truncation != "do_not_truncate" and self.padding != "do_not_pad"
        if both and multiple and self.max_length is not None and self.max_length % multiple:
            raise InputError(
                f"max_length {self.max_length} is not a multiple of pad_to_multiple_of "
                f"{multiple}, but both truncation and padding are requested"
            )

    def returns(self, column: str, names: Sequence[str]) -> bool:
        """Whether to return ``column``; by default if it is in ``names``, the model's inputs."""
        requested = getattr(self, f"return_{column}")
        return column in names if requested is None else bool(requested)


def by_name(
    who: str, order: Sequence[str], positional: tuple[Any, ...], named: dict[str, Any]
) -> dict[str, Any]:
    """Positional and named arguments as one dictionary by name.

    Raises:
        InputError: there are too many, or one is given twice.
    """
    if len(positional) > len(order):
        if not order:
            raise InputError(f"{who}: every argument needs its name")
        raise InputError(f"{who}: positional arguments are {', '.join(order)}")
    given = dict(zip(order, positional, strict=False))
    twice = [name for name in given if name in named]
    if twice:
        raise InputError(f"{who}: {', '.join(twice)} is given twice")
    return {**given, **named}


def warn_once(tokenizer: Any, message: str) -> None:
    if not tokenizer.deprecation_warnings.get(message):
        tokenizer.deprecation_warnings[message] = True
        log.warning("%s", message)


def _strategy(name: str, value: Any, default: str, known: tuple[str, ...]) -> str:
    """Convert an argument to one of ``known``; True is ``default``, False and None the last one."""
    if value is True:
        return default
    if value is False or value is None:
        return known[-1]
    text = str(getattr(value, "value", value))
    if text not in known:
        raise InputError(f"{name} is {value!r}; True, False or one of {', '.join(known)}")
    return text


def batch_of(text: Any, pair: Any, *, words: bool) -> list[Any] | None:
    """The texts, or pairs of texts, of a call; None if it has a single input.

    With ``words`` a list of strings is one text.

    Raises:
        InputError: an input is not text, or the two lists differ in length.
    """
    if not _is_text(text) or not (pair is None or _is_text(pair)):
        raise InputError(INPUTS)
    many = isinstance(text, list | tuple)
    if many and words:
        many = bool(text) and isinstance(text[0], list | tuple)
    if not many:
        return None
    if pair is None:
        return list(text)
    if isinstance(pair, str) or len(pair) != len(text):
        raise InputError(
            f"{len(text)} texts need the same number of second texts, not "
            + ("one string" if isinstance(pair, str) else str(len(pair)))
        )
    return list(zip(text, pair, strict=True))


def _is_text(value: Any) -> bool:
    """Whether ``value`` is one text, a list of texts or words, or a list of lists of words."""
    while isinstance(value, list | tuple):
        if not value:
            return True
        value = value[0]
    return isinstance(value, str)


def holds_ids(item: Any) -> bool:
    """Whether an item of a batch is ids or tokens, alone or as a pair, and not text."""
    return isinstance(item, list | tuple) and len(item) > 0 and not isinstance(item[0], str)


def _strings(value: Any) -> Iterator[str]:
    """All strings in lists of lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def encode_texts(
    encoder: "tokenizers.Tokenizer", texts: Sequence[Any], options: CallOptions, tokenizer: Any
) -> BatchEncoding:
    """Encode texts or pairs; log a warning for texts that are too long.

    Overflowing rows follow the row they belong to.

    Raises:
        InputError: an input is not text, or a maximum length or stride leaves no room.
    """
    _configure(encoder, options, tokenizer)
    try:
        encodings = encoder.encode_batch(
            list(texts),
            add_special_tokens=options.add_special_tokens,
            is_pretokenized=options.is_split_into_words,
        )
    except TypeError as error:
        lone = any(LONE_SURROGATE.search(text) for text in _strings(texts))
        raise InputError(NOT_UNICODE if lone else INPUTS) from error
    except BaseException as error:
        # The library panics, which is not an Exception, if a stride is too long for the rest of a
        # text of a pair, and raises a plain Exception if a text is too short to truncate.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise InputError(f"the text cannot be encoded with these arguments: {error}") from None
        raise
    overflow = options.return_overflowing_tokens
    groups = [[one, *one.overflowing] if overflow else [one] for one in encodings]
    rows = [row for group in groups for row in group]
    names = tokenizer.model_input_names
    columns: dict[str, Any] = {"input_ids": [row.ids for row in rows]}
    if options.returns("token_type_ids", names):
        columns["token_type_ids"] = [row.type_ids for row in rows]
    if options.returns("attention_mask", names):
        columns["attention_mask"] = [row.attention_mask for row in rows]
    if options.return_special_tokens_mask:
        columns["special_tokens_mask"] = [row.special_tokens_mask for row in rows]
    if options.return_offsets_mapping:
        columns["offset_mapping"] = [row.offsets for row in rows]
    if options.return_length:
        columns["length"] = [len(row.ids) for row in rows]
    if overflow:
        columns["overflow_to_sample_mapping"] = [n for n, group in enumerate(groups) for _ in group]
    longest, limit = max(map(len, rows), default=0), tokenizer.model_max_length
    if options.max_length is None and options.verbose and longest > limit > 0:
        warn_once(
            tokenizer,
            f"a text has {longest} tokens, but the model takes at most {limit}; set "
            "truncation=True",
        )
    return BatchEncoding(columns, rows, tensor_type=options.return_tensors)


def _configure(encoder: "tokenizers.Tokenizer", options: CallOptions, tokenizer: Any) -> None:
    """Set truncation and padding of the backend; ``InputError`` if it rejects them."""
    split = options.split_special_tokens
    encoder.encode_special_tokens = tokenizer.split_special_tokens if split is None else split
    encoder.no_truncation()
    if options.truncation != "do_not_truncate":
        try:
            encoder.enable_truncation(
                max_length=options.max_length,
                stride=options.stride,
                strategy=options.truncation,
                direction=tokenizer.truncation_side,
            )
        except Exception as error:  # the library raises nothing narrower
            raise InputError(f"truncation failed: {error}") from error
    if options.padding == "do_not_pad":
        encoder.no_padding()
    else:
        encoder.enable_padding(
            length=options.max_length if options.padding == "max_length" else None,
            direction=options.padding_side or tokenizer.padding_side,
            pad_id=tokenizer.pad_token_id,
            pad_token=tokenizer.pad_token,
            pad_type_id=tokenizer.pad_token_type_id,
            pad_to_multiple_of=options.pad_to_multiple_of,
        )
