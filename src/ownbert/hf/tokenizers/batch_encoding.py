"""What a tokenizer returns: ids and masks, and their alignment with the text.

B sequences, S tokens in each (after padding, if any).
"""

from collections import UserDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ownbert.exceptions import InputError

if TYPE_CHECKING:
    import tokenizers


class CharSpan(NamedTuple):
    """Characters ``start`` to ``end`` of a text, ``end`` excluded."""

    start: int
    end: int


class TokenSpan(NamedTuple):
    """Tokens ``start`` to ``end``, ``end`` excluded."""

    start: int
    end: int


class BatchEncoding(UserDict):
    """``input_ids`` and so on: B lists of S numbers or tensors (B, S); S numbers for one text.

    Methods that take ``(batch_index, index)`` take ``index`` alone for the first sequence.

    Attributes:
        n_sequences: number of texts in each sequence, 1 or 2; None if unknown.
        encodings: those of the ``tokenizers`` library, None if the ids did not come from text; then
            methods that refer to the text raise ``InputError``.
    """

    def __init__(
        self,
        data: dict[str, Any] | None = None,
        encoding: "tokenizers.Encoding | Sequence[tokenizers.Encoding] | None" = None,
        tensor_type: str | None = None,
        prepend_batch_axis: bool = False,
        n_sequences: int | None = None,
    ):
        super().__init__(data)
        one = encoding is not None and not isinstance(encoding, Sequence)
        self._encodings: Any = [encoding] if one else encoding
        if n_sequences is None and self._encodings:
            n_sequences = self._encodings[0].n_sequences
        self.n_sequences = n_sequences
        self.convert_to_tensors(tensor_type, prepend_batch_axis)

    @property
    def is_fast(self) -> bool:
        return self._encodings is not None

    @property
    def encodings(self) -> "Sequence[tokenizers.Encoding] | None":
        return self._encodings

    def __getitem__(self, item: Any) -> Any:
        """The value of a key, the encoding of an index, or a slice of every value."""
        if isinstance(item, str):
            return self.data[item]
        if self._encodings is not None:
            return self._encodings[item]
        if isinstance(item, slice):
            return {key: value[item] for key, value in self.data.items()}
        raise KeyError(f"{item!r}: an encoding without text supports keys and slices, not numbers")

    def __getattr__(self, name: str) -> Any:
        if name != "data" and name in self.__dict__.get("data", ()):
            return self.data[name]
        raise AttributeError(name)

    def tokens(self, batch_index: int = 0) -> list[str]:
        """The tokens of a sequence."""
        return self._encoding(batch_index).tokens

    def sequence_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token the index of its text, 0 or 1; None for special tokens."""
        return self._encoding(batch_index).sequence_ids

    def word_ids(self, batch_index: int = 0) -> list[int | None]:
        """For each token the number of its word; None for special tokens."""
        return self._encoding(batch_index).word_ids

    words = word_ids

    def token_to_sequence(self, first: int, token_index: int | None = None) -> int | None:
        """The index of a token's text, 0 or 1; None for special tokens."""
        encoding, token = self._at(first, token_index, from_end=True)
        return encoding.token_to_sequence(token)

    def token_to_word(self, first: int, token_index: int | None = None) -> int | None:
        """The number of a token's word; None for special tokens."""
        encoding, token = self._at(first, token_index, from_end=True)
        return encoding.token_to_word(token)

    def token_to_chars(self, first: int, token_index: int | None = None) -> CharSpan | None:
        """The characters of a token; None for special tokens."""
        encoding, token = self._at(first, token_index)
        span = encoding.token_to_chars(token)
        return None if span is None else CharSpan(*span)

    def word_to_tokens(
        self, first: int, word_index: int | None = None, sequence_index: int = 0
    ) -> TokenSpan | None:
        """The tokens of a word; None for a word that has none."""
        encoding, word = self._at(first, word_index, from_end=True)
        span = encoding.word_to_tokens(word, sequence_index)
        return None if span is None else TokenSpan(*span)

    def word_to_chars(
        self, first: int, word_index: int | None = None, sequence_index: int = 0
    ) -> CharSpan | None:
        """The characters of a word."""
        encoding, word = self._at(first, word_index)
        span = encoding.word_to_chars(word, sequence_index)
        return None if span is None else CharSpan(*span)

    def char_to_token(
        self, first: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The token that covers a character; None for a space between words."""
        encoding, char = self._at(first, char_index)
        return encoding.char_to_token(char, sequence_index)

    def char_to_word(
        self, first: int, char_index: int | None = None, sequence_index: int = 0
    ) -> int | None:
        """The number of the word that covers a character; None for a space between words."""
        encoding, char = self._at(first, char_index)
        return encoding.char_to_word(char, sequence_index)

    def convert_to_tensors(
        self, tensor_type: str | None = None, prepend_batch_axis: bool = False
    ) -> "BatchEncoding":
        """Make every value a tensor (``pt``) or an array (``np``), in place.

        Raises:
            InputError: rows have different lengths.
        """
        if tensor_type is None:
            return self
        kind = str(getattr(tensor_type, "value", tensor_type))
        for key, value in self.data.items():
            self.data[key] = as_tensor(key, [value] if prepend_batch_axis else value, kind)
        return self

    def to(self, device: Any, *, non_blocking: bool = False) -> "BatchEncoding":
        """Move all tensors to ``device``, in place; a dtype is ignored, ids stay integers."""
        import torch

        if isinstance(device, str | int | torch.device):
            self.data = {
                key: value.to(device=device, non_blocking=non_blocking)
                if isinstance(value, torch.Tensor)
                else value
                for key, value in self.data.items()
            }
        return self

    def _encoding(self, batch_index: int) -> "tokenizers.Encoding":
        if not self._encodings:
            raise InputError("this encoding was made from ids: it has no words or characters")
        return self._encodings[batch_index]

    def _at(
        self, first: int, second: int | None, *, from_end: bool = False
    ) -> "tuple[tokenizers.Encoding, int]":
        """The encoding and the index, from ``(batch_index, index)`` or from ``index`` alone."""
        batch, index = (0, first) if second is None else (first, second)
        encoding = self._encoding(batch)
        return encoding, index + len(encoding.ids) if from_end and index < 0 else index


def as_lists(value: Any) -> Any:
    """Tensors and arrays as lists and numbers, also inside lists."""
    if isinstance(value, list | tuple):
        return [as_lists(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def as_tensor(key: str, value: Any, kind: str) -> Any:
    """``value`` as a ``pt`` tensor or an ``np`` array, int64 if it is empty.

    Raises:
        InputError: rows have different lengths.
    """
    import numpy as np

    try:
        if kind == "np":
            return value if isinstance(value, np.ndarray) else _rectangular(np.asarray(value))
        if kind != "pt":
            raise InputError(f"return_tensors is {kind!r}; 'pt' and 'np' are supported")
        import torch

        if isinstance(value, torch.Tensor):
            return value
        array = _rectangular(np.asarray(value))
        # Labels may be floats; torch's default is single precision.
        return torch.from_numpy(array.astype("float32") if array.dtype.kind == "f" else array)
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(
            f"{key} has rows of different lengths: with return_tensors give padding=True, "
            "and truncation=True with max_length"
        ) from error


def _rectangular(array: Any) -> Any:
    """An array made from lists, int64 if it is empty; ``ValueError`` if their lengths differ."""
    if array.dtype == object:
        raise ValueError("rows of different lengths")
    return array.astype("int64") if array.size == 0 else array
