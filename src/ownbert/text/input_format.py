"""Positions of special tokens in the inputs of a model: a single text or a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

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

    def template(self, *lengths: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """The sequence of one or two texts with these numbers of tokens.

        Returns:
            Its ids, to be filled with those of the texts; its token types; the start of each text.
        """
        import numpy as np

        size = sum(lengths) + self.special(len(lengths))
        ids = np.full(size, self.sep_id, dtype=np.int64)
        types = np.zeros(size, dtype=np.int64)
        starts, at = [], self.before
        for length in lengths:
            starts.append(at)
            at += length + 1 + self.double_sep
        if len(lengths) > 1 and self.cls_id is not None and not self.double_sep:
            types[starts[1] :] = 1
        if self.cls_id is not None:
            ids[-1 if self.cls_last else 0] = self.cls_id
        if self.cls_last:
            types[-1] = _CLS_SEGMENT
        return ids, types, starts

    def one(self, ids: Sequence[int]) -> list[int]:
        """The ids of a text with special tokens."""
        return self._filled(ids)[0]

    def pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """The ids of a pair of texts with special tokens, and their token types."""
        return self._filled(first, second)

    def _filled(self, *texts: Sequence[int]) -> tuple[list[int], list[int]]:
        ids, types, starts = self.template(*map(len, texts))
        for text, start in zip(texts, starts, strict=True):
            ids[start : start + len(text)] = text
        return ids.tolist(), types.tolist()

    def types(self, length: int) -> list[int]:
        """The token types of a single text; ``length`` includes special tokens."""
        if self.cls_last and length:
            return [0] * (length - 1) + [_CLS_SEGMENT]
        return [0] * length
