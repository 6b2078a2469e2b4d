"""BERT's rules and WordPiece, assembled from the parts of the ``tokenizers`` library.

Clean-up, Chinese characters apart, lower case, accents off, punctuation apart, then the longest
pieces of the vocabulary from the left (google-research/bert ``tokenization.py``).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
# Google's limit: a longer word is [UNK] whatever its pieces.
LONGEST_WORD = 100


def wordpiece_backend(
    vocabulary: Sequence[str],
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
) -> "tokenizers.Tokenizer":
    """A tokenizer with BERT's rules; a token's id is its place in ``vocabulary``.

    ``strip_accents`` left at None follows ``do_lower_case``, as in Google's code.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    ids = {token: index for index, token in enumerate(vocabulary)}
    model = models.WordPiece(
        ids,
        unk_token=UNK,
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=CONTINUATION,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=tokenize_chinese_chars,
        strip_accents=strip_accents,
        lowercase=do_lower_case,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return add_special_tokens(backend)


def add_special_tokens(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Mark BERT's special tokens, and put [CLS] and [SEP] around one text or two."""
    from tokenizers import AddedToken
    from tokenizers.processors import TemplateProcessing

    present = [token for token in SPECIAL_TOKENS if backend.token_to_id(token) is not None]
    backend.add_special_tokens([AddedToken(token, special=True) for token in present])
    if CLS in present and SEP in present:
        backend.post_processor = TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in (CLS, SEP)],
        )
    return backend
