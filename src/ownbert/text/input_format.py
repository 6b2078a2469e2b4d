"""Where a model expects the special tokens: around one text, or around two and between them."""

from collections.abc import Sequence
from dataclasses import dataclass

# The segment of XLNet's <cls>.
_CLS_SEGMENT = 2


@dataclass(frozen=True)
class InputFormat:
    """The special tokens of a family in their places.

    BERT: [CLS] A [SEP], [CLS] A [SEP] B [SEP]. Without a first token (T5) A </s> and A </s> B </s>,
    and both texts are of one type. With ``double_sep`` (RoBERTa) two separators stand
    between the texts, which are of one type. With ``cls_last`` (XLNet) A <sep> <cls> and
    A <sep> B <sep> <cls>, and <cls> is of a type of its own.

    Args:
        cls_id, sep_id: the special tokens; ``cls_id`` None: there is no first one.
        double_sep, cls_last: see above.
    """

    cls_id: int | None
    sep_id: int
    double_sep: bool = False
    cls_last: bool = False

    def special(self, texts: int = 1) -> int:
        """The number of special tokens around one text, or two."""
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
        """The number of special tokens behind the last text."""
        return 2 if self.cls_last else 1

    def one(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text and the special tokens."""
        if self.cls_last:
            return [*ids, self.sep_id, *self._cls]
        return [*self._cls, *ids, self.sep_id]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of two texts and the special tokens, and the type of each."""
        if self.cls_last:
            ids = [*first, self.sep_id, *second, self.sep_id, *self._cls]
            types = [0] * (len(first) + 1) + [1] * (len(second) + 1) + [_CLS_SEGMENT]
            return ids, types
        left = [*self._cls, *first, self.sep_id]
        second_type = 0 if self.double_sep or self.cls_id is None else 1
        right = [*([self.sep_id] if self.double_sep else []), *second, self.sep_id]
        return left + right, [0] * len(left) + [second_type] * len(right)

    def types(self, length: int) -> list[int]:
        """The type of each token of one text with its special tokens, ``length`` in all."""
        if self.cls_last and length:
            return [0] * (length - 1) + [_CLS_SEGMENT]
        return [0] * length
