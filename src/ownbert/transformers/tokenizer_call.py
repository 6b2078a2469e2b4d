"""A call of a tokenizer: its options; and what it returns, ids and masks and their alignment with
the text.

B sequences, S tokens in each (after padding, if any).
"""

import dataclasses
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ownbert.checks import known, maybe, number, whole
from ownbert.exceptions import InputError
from ownbert.limits import LENGTH

if TYPE_CHECKING:
    import tokenizers


PADDINGS = ("longest", "max_length", "do_not_pad")
TRUNCATIONS = ("longest_first", "only_first", "only_second", "do_not_truncate")
SIDES = ("right", "left")
# Transformers' value for a model without a limit.
NO_LIMIT = int(1e30)
AUTO_TOKENIZER = "transformers.AutoTokenizer.from_pretrained(folder)"


@dataclass(frozen=True)
class CallOptions:
    """The options of a call; for their meaning see ``PreTrainedTokenizer.__call__``."""

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
    return_special_tokens_mask: bool | None = None
    return_offsets_mapping: bool | None = None
    split_special_tokens: bool = False

    @classmethod
    def of(cls, options: dict[str, Any], longest: float) -> "CallOptions":
        """Check the options of a call and fill in defaults.

        ``padding`` and ``truncation`` become names of ``PADDINGS`` and ``TRUNCATIONS``, and
        ``max_length`` is set to ``longest``, the tokenizer's ``model_max_length``, if they need it.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        if unknown := [name for name in options if name not in names]:
            message = (
                "the tokenizer has no argument {unknown}; it has {names}; for others use {other}"
            )
            raise InputError(message, ", ".join(unknown), ", ".join(names), AUTO_TOKENIZER)
        if (options.get("max_length") or 0) == NO_LIMIT:  # max_length=tokenizer.model_max_length
            options = {**options, "max_length": None}
        self = cls(**options)
        padding = _strategy("padding", self.padding, PADDINGS)
        truncation, limit = self.truncation, self.max_length
        if limit is not None and self.padding is False and truncation is None:
            truncation = True  # as in Transformers
        truncation = _strategy("truncation", truncation, TRUNCATIONS)
        if limit is None and (padding == "max_length" or truncation != "do_not_truncate"):
            number(1, 1e300)("model_max_length", longest)
            limit = None if longest >= NO_LIMIT else int(longest)
            if limit is None and padding == "max_length":
                raise InputError("padding='max_length' needs max_length: the model has no limit")
            truncation = "do_not_truncate" if limit is None else truncation
        return dataclasses.replace(self, padding=padding, truncation=truncation, max_length=limit)

    def __post_init__(self) -> None:
        maybe(known(*SIDES))("padding_side", self.padding_side)
        for name in ("max_length", "stride", "pad_to_multiple_of"):
            maybe(whole(0, LENGTH))(name, getattr(self, name))

    def returns(self, column: str, names: Sequence[str]) -> bool:
        """Whether to return ``column``; by default if it is in ``names``, the model's inputs."""
        requested = getattr(self, f"return_{column}")
        return column in names if requested is None else bool(requested)


def _strategy(name: str, value: Any, names: tuple[str, ...]) -> str:
    """One of ``names``; True is the first, False and None the last one."""
    if value is None or isinstance(value, bool):
        return names[0 if value else -1]
    if value not in names:
        message = "{name} is {value!r}; True, False or one of {names}"
        raise InputError(message, name, value, ", ".join(names))
    return value


class IndexSpan(NamedTuple):
    """Characters or tokens ``start`` to ``end``, ``end`` excluded."""

    start: int
    end: int


def _place(name: str) -> Callable[..., Any]:
    """The method of ``BatchEncoding`` that calls a method of one ``tokenizers.Encoding``."""

    def method(
        self: "BatchEncoding", batch_or_index: int, index: int | None = None, *sequence: int
    ) -> Any:
        batch, at = (0, batch_or_index) if index is None else (batch_or_index, index)
        found = getattr(self._encoding(batch), name)(at, *sequence)
        return IndexSpan(*found) if isinstance(found, tuple) else found

    return method


class BatchEncoding(UserDict):
    """``input_ids`` and so on: B lists of S numbers or tensors (B, S); S numbers for one text.

    Values are also attributes.

    Attributes:
        encodings: the B encodings of the ``tokenizers`` library; None for ids padded with ``pad``.
    """

    def __init__(
        self, data: dict[str, Any], encodings: "Sequence[tokenizers.Encoding] | None" = None
    ):
        super().__init__(data)
        self.encodings = encodings

    def __getattr__(self, name: str) -> Any:
        if name != "data" and name in self.__dict__.get("data", ()):
            return self.data[name]
        raise AttributeError(f"a BatchEncoding has no attribute {name!r}")

    def __getitem__(self, key: Any) -> Any:
        """The value of a name, or the encoding of an index."""
        return self._encoding(key) if isinstance(key, int) else self.data[key]

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of a sequence."""
        return self._encoding(batch_index).tokens

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token the index of its text, 0 or 1; None for special tokens."""
        return self._encoding(batch_index).sequence_ids

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token the index of its word; None for special tokens."""
        return self._encoding(batch_index).word_ids

    # Each takes (batch_index, index), or the index alone for the first sequence.
    token_to_word, token_to_chars = _place("token_to_word"), _place("token_to_chars")
    word_to_tokens, word_to_chars = _place("word_to_tokens"), _place("word_to_chars")
    char_to_token, char_to_word = _place("char_to_token"), _place("char_to_word")

    def to(self, device: Any) -> "BatchEncoding":
        """Move all tensors to ``device``, in place."""
        self.data = {k: v.to(device) if hasattr(v, "to") else v for k, v in self.data.items()}
        return self

    def _encoding(self, index: int) -> "tokenizers.Encoding":
        if not self.encodings:
            raise InputError("this encoding was made from ids: it has no words or characters")
        return self.encodings[index]


def as_lists(value: Any) -> Any:
    """Tensors and arrays as lists and numbers, also inside lists."""
    if isinstance(value, list | tuple):
        return [as_lists(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def as_tensors(columns: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Columns as ``pt`` tensors or ``np`` arrays, int64 if they are empty."""
    import numpy as np

    kind = str(getattr(kind, "value", kind))
    if kind not in ("pt", "np"):
        raise InputError("return_tensors is {kind!r}; 'pt' and 'np' are supported", kind)
    found: dict[str, Any] = {}
    for key, value in columns.items():
        try:
            array = np.array(value, dtype=None if np.size(value) else "int64")
        except ValueError as error:
            raise InputError(
                "{key} has rows of different lengths: with return_tensors give padding=True, "
                "and truncation=True with max_length",
                key,
            ) from error
        if kind == "pt":
            import torch

            # Labels may be floats; torch's default is single precision.
            array = array.astype("float32") if array.dtype.kind == "f" else array
            array = torch.from_numpy(array)
        found[key] = array
    return found
