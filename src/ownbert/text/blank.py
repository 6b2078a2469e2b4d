"""Text that is already tokens (ids, codes, words): split at whitespace, look each token up."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ownbert.text.bert_rules import UNK, add_special_tokens

if TYPE_CHECKING:
    import tokenizers

# Python splits at these four control characters, ``tokenizers`` does not.
SEPARATORS = re.compile("[\x1c-\x1f]")
WHITESPACE = re.compile("[^\\S\x1c-\x1f]+")


def blank_backend(vocabulary: Sequence[str]) -> "tokenizers.Tokenizer":
    """A tokenizer that changes nothing.

    It has a normaliser that does nothing, because Transformers' BertTokenizerFast expects one.

    Args:
        vocabulary: the tokens in the order of their ids.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    ids = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return add_special_tokens(backend)


def split_whitespace(text: str) -> list[str]:
    """The tokens of ``text``, exactly as ``blank_backend`` splits it."""
    if SEPARATORS.search(text):
        return [token for token in WHITESPACE.split(text) if token]
    return text.split()
