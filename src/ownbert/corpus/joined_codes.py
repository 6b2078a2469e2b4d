"""Recognises codes that are joined by separators without spaces."""

import re
from collections.abc import Sequence

# Marks that join codes in one token (A01,B20); a token may also end with one (A01, B20).
_JOINS = re.compile("[,;|/]")
# Tokens with such marks, as a share of all, and tokens that are too few to judge by repetitions.
_JOINED, _FEW = 0.25, 100


def are_joined(tokens: Sequence[str]) -> bool:
    """Whether tokens between whitespace are codes joined by separators: many have such a mark, and
    their parts have fewer distinct values than the tokens themselves."""
    parts = [[part for part in _JOINS.split(token) if part] for token in tokens]
    joined = sum(
        len(each) > 0 and each != [token] for each, token in zip(parts, tokens, strict=True)
    )
    if not joined or joined < _JOINED * len(tokens):
        return False
    distinct = {part for each in parts for part in each}
    return len(tokens) < _FEW or len(distinct) < len(set(tokens))
