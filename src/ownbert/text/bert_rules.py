"""BERT's rules and WordPiece, built from components of the ``tokenizers`` library.

Text is cleaned up and lower-cased, accents are stripped, and Chinese characters and punctuation are
separated; then each word is split, from the left, into the longest pieces in the vocabulary
(google-research/bert ``tokenization.py``).
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import NormalizedString, PreTokenizedString, normalizers


PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
# Google's limit: a longer word is [UNK] regardless of its pieces.
LONGEST_WORD = 100
# Replaces words that must not be split and are not in the vocabulary, so that they become the
# unknown token instead of pieces. Unicode will never assign this code point to a character.
_NONCHARACTER = "\U0010ffff"


def wordpiece_backend(vocabulary: Sequence[str], **rules: bool | None) -> "tokenizers.Tokenizer":
    """Create a tokenizer with BERT's rules, which ``wordpiece_rules`` explains, and special tokens.

    The ids are those of the order of ``vocabulary``.
    """
    ids = {token: index for index, token in enumerate(vocabulary)}
    return add_special_tokens(wordpiece_rules(ids, **rules))  # pyright: ignore


def wordpiece_rules(
    ids: Mapping[str, int],
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    do_basic_tokenize: bool = True,
    unk_token: str = UNK,
) -> "tokenizers.Tokenizer":
    """Create a tokenizer with BERT's rules, with arbitrary ids and without special tokens.

    ``strip_accents`` None is the same as ``do_lower_case``, as in Google's code. Without
    ``do_basic_tokenize``, text is only split at whitespace.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    model = models.WordPiece(
        dict(ids),
        unk_token=unk_token,
        max_input_chars_per_word=LONGEST_WORD,
        continuing_subword_prefix=CONTINUATION,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=bool(tokenize_chinese_chars),
        strip_accents=strip_accents,
        lowercase=bool(do_lower_case),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=CONTINUATION)
    return backend if do_basic_tokenize else split_at_whitespace(backend)


def split_at_whitespace(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Replace the rules of ``backend``, in place: text is split at whitespace and not changed."""
    from tokenizers import normalizers, pre_tokenizers

    backend.normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def add_special_tokens(backend: "tokenizers.Tokenizer") -> "tokenizers.Tokenizer":
    """Register BERT's special tokens, in place, and add [CLS] and [SEP] around texts and pairs."""
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


def keep_whole(backend: "tokenizers.Tokenizer", words: Iterable[str]) -> "tokenizers.Tokenizer":
    """Copy a WordPiece ``backend`` so that it does not split ``words`` (``never_split``).

    Between whitespace, such a word keeps its accents and punctuation and becomes one token; so does
    any word that equals one of ``words`` after applying the rules. Words that are not in the
    vocabulary become the unknown token. Text is lower-cased first, as in Transformers, so words
    with capitals only have an effect in cased vocabularies. The copy runs Python code for every
    text and cannot be saved.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers

    copy = Tokenizer.from_str(backend.to_str())
    normalizer = backend.normalizer
    if not isinstance(normalizer, normalizers.BertNormalizer):
        return copy
    whole = frozenset(words)
    unknown = frozenset(word for word in whole if backend.token_to_id(word) is None)
    copy.normalizer = normalizers.Sequence([])
    copy.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(WordRules(normalizer, whole, unknown))
    return copy


class WordRules:
    """BERT's rules, with the settings of ``normalizer``, as a pre-tokenizer of ``tokenizers`` that
    does not split the words ``whole``; those in ``unknown`` are not in the vocabulary."""

    def __init__(
        self,
        normalizer: "normalizers.BertNormalizer",
        whole: Collection[str],
        unknown: Collection[str],
    ):
        from tokenizers import normalizers, pre_tokenizers

        self.whole, self.unknown = whole, unknown
        strips = normalizer.strip_accents
        self.clean = normalizers.BertNormalizer(
            clean_text=normalizer.clean_text,
            handle_chinese_chars=normalizer.handle_chinese_chars,
            strip_accents=False,
            lowercase=normalizer.lowercase,
        )
        self.fold = normalizers.BertNormalizer(
            clean_text=False,
            handle_chinese_chars=False,
            # Resolved as in the library; None would follow ``lowercase`` of this normaliser.
            strip_accents=normalizer.lowercase if strips is None else strips,
            lowercase=False,
        )
        self.whitespace = pre_tokenizers.WhitespaceSplit()
        self.parts = pre_tokenizers.BertPreTokenizer()

    def pre_tokenize(self, text: "PreTokenizedString") -> None:
        text.normalize(self.clean.normalize)
        text.split(self._words)

    def _words(self, _: int, text: "NormalizedString") -> list["NormalizedString"]:
        words = []
        for _word, place in self.whitespace.pre_tokenize_str(text.normalized):
            word = text.slice(place)
            if unicodedata.normalize("NFC", word.normalized) in self.whole:
                word.nfc()
                words.append(word)
                continue
            self.fold.normalize(word)
            parts = self.parts.pre_tokenize_str(word.normalized)
            words += [word.slice(part) for _part, part in parts]
        for word in words:
            if word.normalized in self.unknown:
                # Character by character, so that the offsets do not change.
                word.map(lambda _: _NONCHARACTER)
        return words


# Python splits at these four control characters; ``tokenizers`` does not.
SEPARATORS = re.compile("[\x1c-\x1f]")
WHITESPACE = re.compile("[^\\S\x1c-\x1f]+")


def blank_backend(vocabulary: Sequence[str]) -> "tokenizers.Tokenizer":
    """Create a tokenizer that splits at whitespace and does not change the tokens, which
    ``vocabulary`` has in the order of their ids. Its normaliser has no effect; Transformers'
    BertTokenizerFast requires one."""
    from tokenizers import Tokenizer, models

    ids = {token: index for index, token in enumerate(vocabulary)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    return add_special_tokens(split_at_whitespace(backend))


def split_whitespace(text: str) -> list[str]:
    """Split ``text`` at whitespace, exactly like ``blank_backend``."""
    if SEPARATORS.search(text):
        return [token for token in WHITESPACE.split(text) if token]
    return text.split()
