"""Recognises codes that are joined by separators without spaces."""

import re
from collections.abc import Sequence

# Marks that join codes in one token (A01,B20); a token may also end with one (A01, B20).
_JOINS = re.compile("[,;|/]")
_PARTS = re.compile("[^,;|/]+")
# Tokens with such marks, as a share of all, and tokens that are too few to judge by repetitions.
_JOINED, _FEW = 0.25, 100


def part_spans(token: str) -> list[tuple[int, int]]:
    """The character spans (start, end) of the codes in a token; the whole token if it has none."""
    return [found.span() for found in _PARTS.finditer(token)] or [(0, len(token))]


def are_joined(tokens: Sequence[str]) -> bool:
    """Whether tokens between whitespace are codes joined by separators: many have such a mark, and
    their parts repeat more than the tokens themselves."""
    parts = [[part for part in _JOINS.split(token) if part] for token in tokens]
    joined = sum(
        len(codes) > 0 and codes != [token] for codes, token in zip(parts, tokens, strict=True)
    )
    if not joined or joined < _JOINED * len(tokens):
        return False
    flat = [part for codes in parts for part in codes]
    distinct, distinct_tokens = len(set(flat)), len(set(tokens))
    # Long lists of codes are all different, whatever the number of codes: there the codes must
    # occur twice as often.
    in_lists = 2 * distinct * len(tokens) <= distinct_tokens * len(flat)
    return len(tokens) < _FEW or distinct < distinct_tokens or in_lists
