"""The arguments of a tokenizer's call, their meaning and what is refused, as in 4.57.6."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ownbert.errors import InputError

PADDINGS = ("longest", "max_length", "do_not_pad")
TRUNCATIONS = ("longest_first", "only_first", "only_second", "do_not_truncate")
SIDES = ("right", "left")
# Transformers writes 1e30 for a model without a limit.
NO_LIMIT = int(1e20)


@dataclass(frozen=True)
class CallOptions:
    """In the order of ``encode_plus``; None is "as the tokenizer or its model has it"."""

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
        """``InputError`` for an argument that there is not."""
        known = [field.name for field in dataclasses.fields(cls)]
        unknown = [name for name in named if name not in known]
        if unknown:
            names = ", ".join(known)
            raise InputError(
                f"the tokenizer knows no argument {', '.join(unknown)}; known are {names}"
            )
        if len(positional) > len(known):
            raise InputError(f"{len(positional)} arguments are too many: {', '.join(known)}")
        given = dict(zip(known, positional, strict=False))
        twice = [name for name in given if name in named]
        if twice:
            raise InputError(f"{', '.join(twice)} is given twice")
        return cls(**given, **named)

    def resolved(self, tokenizer: Any) -> "CallOptions":
        """The same with ``padding`` and ``truncation`` as one of their names, ``max_length`` set
        where they need it, and what does not go together refused.

        Of ``tokenizer`` it takes ``model_max_length``, ``pad_token`` and ``say_once``.
        """
        padding = _named("padding", self.padding, True, "longest", PADDINGS)
        truncation = self.truncation
        if self.max_length is not None and padding == "do_not_pad" and truncation is None:
            tokenizer.say_once(
                "max_length is given without truncation: texts are cut (longest_first)"
            )
            truncation = "longest_first"
        truncation = _named("truncation", truncation, True, "longest_first", TRUNCATIONS)
        max_length = self.max_length
        if max_length is None and (padding == "max_length" or truncation != "do_not_truncate"):
            if tokenizer.model_max_length > NO_LIMIT:
                tokenizer.say_once(
                    "no max_length is given and the model has no limit: texts are neither cut "
                    "nor padded to a length"
                )
                padding = "do_not_pad" if padding == "max_length" else padding
                truncation = "do_not_truncate"
            else:
                max_length = tokenizer.model_max_length
        found = dataclasses.replace(
            self, padding=padding, truncation=truncation, max_length=max_length
        )
        found.check(tokenizer)
        return found

    def check(self, tokenizer: Any) -> None:
        if self.padding != "do_not_pad" and tokenizer.pad_token is None:
            raise InputError("padding needs a pad_token; set tokenizer.pad_token first")
        if self.padding_side is not None and self.padding_side not in SIDES:
            raise InputError(f"padding_side is {self.padding_side!r}; {' or '.join(SIDES)}")
        for name in ("max_length", "stride", "pad_to_multiple_of"):
            value = getattr(self, name)
            if value is not None and (not _is_whole(value) or value < 0):
                raise InputError(f"{name} is {value!r}; a whole number from 0 is needed")
        multiple = self.pad_to_multiple_of
        both = self.truncation != "do_not_truncate" and self.padding != "do_not_pad"
        if both and multiple and self.max_length is not None and self.max_length % multiple:
            raise InputError(
                f"max_length {self.max_length} is no multiple of pad_to_multiple_of {multiple}, "
                "and both cutting and padding are asked for"
            )


def _named(name: str, value: Any, yes: Any, meaning: str, known: tuple[str, ...]) -> str:
    if value is yes:
        return meaning
    if value is False or value is None:
        return known[-1]
    text = str(getattr(value, "value", value))
    if text not in known:
        raise InputError(f"{name} is {value!r}; True, False or one of {', '.join(known)}")
    return text


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)
