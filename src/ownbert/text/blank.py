"""Text that is already tokenized (ids, codes, words), with whitespace between the tokens."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ownbert.text.bert_rules import UNK, add_special_tokens, split_at_whitespace

if TYPE_CHECKING:
    import tokenizers

# Python splits at these four control characters; ``tokenizers`` does not.
SEPARATORS = re.compile("[\x1c-\x1f]")
WHITESPACE = re.compile("[^\\S\x1c-\x1f]+")


def blank_backend(vocabulary: Sequence[str]) -> "tokenizers.Tokenizer":
    """Create a tokenizer that splits at whitespace and does not change the tokens.

    Its normaliser has no effect; Transformers' BertTokenizerFast requires one.

    Args:
        vocabulary: tokens in the order of their ids.
    """
    from tokenizers import Tokenizer, models

    ids = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    return add_special_tokens(split_at_whitespace(backend))


def split_whitespace(text: str) -> list[str]:
    """Split ``text`` at whitespace, exactly like ``blank_backend``."""
    if SEPARATORS.search(text):
        return [token for token in WHITESPACE.split(text) if token]
    return text.split()
