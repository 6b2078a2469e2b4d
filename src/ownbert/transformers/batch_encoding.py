"""What a tokenizer returns: ids and masks, and their alignment with the text.

B sequences, S tokens in each (after padding, if any).
"""

from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ownbert.exceptions import InputError

if TYPE_CHECKING:
    import tokenizers


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
    """Columns as ``pt`` tensors or ``np`` arrays, int64 if they are empty.

    Raises:
        InputError: rows have different lengths, or the kind is unknown.
    """
    import numpy as np

    kind = str(getattr(kind, "value", kind))
    if kind not in ("pt", "np"):
        raise InputError(f"return_tensors is {kind!r}; 'pt' and 'np' are supported")
    found: dict[str, Any] = {}
    for key, value in columns.items():
        try:
            array = np.array(value, dtype=None if np.size(value) else "int64")
        except ValueError as error:
            raise InputError(
                f"{key} has rows of different lengths: with return_tensors give padding=True, "
                "and truncation=True with max_length"
            ) from error
        if kind == "pt":
            import torch

            # Labels may be floats; torch's default is single precision.
            array = array.astype("float32") if array.dtype.kind == "f" else array
            found[key] = torch.from_numpy(array)
        else:
            found[key] = array
    return found
