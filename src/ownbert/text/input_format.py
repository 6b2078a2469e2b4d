"""Positions of special tokens in the inputs of a model: a single text or a pair of texts."""

from collections.abc import Sequence
from dataclasses import dataclass

# Token type of XLNet's <cls>.
_CLS_SEGMENT = 2


@dataclass(frozen=True)
class InputFormat:
    """The special tokens of a family around a single text or a pair.

    - BERT: [CLS] A [SEP] and [CLS] A [SEP] B [SEP].
    - Without ``cls_id`` (T5): A </s> and A </s> B </s>; both texts have the same token type.
    - ``double_sep`` (RoBERTa): <s> A </s> </s> B </s>; both texts have the same token type.
    - ``cls_last`` (XLNet): A <sep> <cls> and A <sep> B <sep> <cls>; <cls> has its own token type.

    Args:
        cls_id: id of the first token; None: no such token.
        sep_id: id of the token after each text.
        double_sep: whether a pair has two separators between the texts.
        cls_last: whether ``cls_id`` is the last token instead of the first.
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

    def one(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text with special tokens."""
        if self.cls_last:
            return [*ids, self.sep_id, *self._cls]
        return [*self._cls, *ids, self.sep_id]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of a pair of texts with special tokens, and their token types."""
        if self.cls_last:
            ids = [*first, self.sep_id, *second, self.sep_id, *self._cls]
            types = [0] * (len(first) + 1) + [1] * (len(second) + 1) + [_CLS_SEGMENT]
            return ids, types
        left = [*self._cls, *first, self.sep_id]
        second_type = 0 if self.double_sep or self.cls_id is None else 1
        right = [*([self.sep_id] if self.double_sep else []), *second, self.sep_id]
        return left + right, [0] * len(left) + [second_type] * len(right)

    def types(self, length: int) -> list[int]:
        """The token types of a single text; ``length`` includes special tokens."""
        if self.cls_last and length:
            return [0] * (length - 1) + [_CLS_SEGMENT]
        return [0] * length
